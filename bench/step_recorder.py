"""What a trainer's steps cost and log, and how much of a step only communicates."""

import time
from typing import Any

import torch
from transformers import TrainerCallback

from bench.kernel_groups import communication


class StepRecorder(TrainerCallback):
    """Loss, gradient norm, router load and seconds of each step (without the loading of its rows), peak memory from the
    second step on, and a profile of one step, whose seconds are left out. `profiled_step=0`: no step is profiled."""

    def __init__(self, gpu: bool, profiled_step: int) -> None:
        self._gpu, self._profiled = gpu, profiled_step
        self._logs: list[dict[str, float]] = []
        self._seconds: list[float] = []
        self._started = 0.0
        self._profiler: Any = None
        self._communication: dict[str, float] | None = None
        self._peak: tuple[int, int] = (0, 0)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        step = state.global_step + 1
        if self._gpu:
            torch.cuda.synchronize()
            if step == 2:
                torch.cuda.reset_peak_memory_stats()
            if step == self._profiled:
                self._peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
                self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                self._profiler.__enter__()
        self._started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if self._gpu:
            torch.cuda.synchronize()
        if state.global_step != self._profiled:
            self._seconds.append(time.perf_counter() - self._started)
        elif self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self._communication = communication(self._profiler.events())

    def on_train_end(self, args, state, control, **kwargs) -> None:
        if self._gpu and not self._profiled:
            self._peak = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs is not None and "loss" in logs:
            self._logs.append(dict(logs))

    def found(self) -> dict[str, Any]:
        """JSON-able; `communication` is None on a CPU."""
        peak, reserved = (size / 2**30 for size in self._peak)
        return {
            "losses": [float(row["loss"]) for row in self._logs],
            "norms": [float(row["grad_norm"]) for row in self._logs],
            "load_max_over_mean": [row["router/load_max_over_mean"] for row in self._logs],
            "seconds": self._seconds,
            "peak_gib": peak if self._gpu else None,
            "reserved_gib": reserved if self._gpu else None,
            "communication": self._communication,
        }
