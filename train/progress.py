"""What a stage shows while it trains: the step line, metrics.jsonl, and W&B. Nothing here changes the training.

    <stage>/metrics.jsonl   one object a step: stage, step, time (unix seconds), loss, lr, grad_norm, tokens,
                            tokens_per_s, in RL reward (mean over the rollout that the step learns from), the
                            router's load (router_load.py), and every other scalar of the trainer's log under its
                            name there

A number that is not finite is written as null, and named in `not_finite`: the file stays valid JSON.
"""

import atexit
import json
import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentworld.train.config import WandbSettings
from agentworld.train.run_directory import write_text
from agentworld.train.weights_and_biases import TrackedStage

PLAIN_LINES = 20  # a stage, where the output is no terminal
RATE_STEPS = 20  # the step line's tokens/s is a mean over these
RENAMED = {"learning_rate": "lr", "num_tokens": "tokens"}
UNLOGGED = ("epoch", "total_flos", "step", "step_time")  # nothing to learn from, or told otherwise


class ProgressCallback(TrainerCallback):
    """Active on the first rank only. The trainer must run with `logging_steps=1` and `disable_tqdm=True`, and without
    `transformers.PrinterCallback`, which would print each log as a dictionary."""

    def __init__(
        self,
        stage: str,
        stage_dir: Path,
        total_steps: int,
        wandb: WandbSettings,
        run_name: str,
        config: Mapping[str, Any],
        lineage: Mapping[str, Any],
    ) -> None:
        """
        Args:
            stage_dir: <run>/<stage>; total_steps: optimizer steps of the whole stage.
            run_name: the W&B group; config: the resolved recipe; lineage: what the stage started from (paths, hashes).
        """
        self._stage, self._stage_dir, self._total = stage, stage_dir, total_steps
        self._wandb, self._run_name = wandb, run_name
        self._config = {"recipe": config, "lineage": lineage, "stage": stage}
        self._metrics: MetricsFile | None = None
        self._tracked: TrackedStage | None = None
        self._rollout: dict[str, Any] = {}  # reward of the rollout in use: the trainer logs it at its first step only

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if not state.is_world_process_zero:
            return
        self._stage_dir.mkdir(parents=True, exist_ok=True)
        self._metrics = MetricsFile(self._stage_dir / "metrics.jsonl", after_step=state.global_step)
        self._rollout = {"reward": self._metrics.reward} if self._metrics.reward is not None else {}
        self._tracked = TrackedStage(self._wandb, self._stage, self._stage_dir, self._run_name, self._config)
        self._tokens = TokenCounter(before=max(self._metrics.tokens, state.num_input_tokens_seen))
        self._rate = Throughput(tokens=self._tokens.before, now=time.monotonic())
        self._line = StepLine(self._stage, state.global_step, self._total)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs,
    ) -> None:
        if self._metrics is None or not logs or "loss" not in logs:  # the summary at the end holds no step
            return
        assert self._tracked is not None
        if "reward" in logs:
            self._rollout = {"reward": logs["reward"]}
        if "num_tokens" in logs:
            logs = {**logs, "num_tokens": self._tokens.total(logs["num_tokens"])}
        self._rate.update(logs.get("num_tokens"), time.monotonic())
        row = metrics_row(self._stage, state.global_step, time.time(), {**self._rollout, **logs}, self._rate.last)
        self._metrics.append(row)
        self._tracked.log(row)
        self._line.show(row, self._rate.smoothed)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if self._metrics is None:
            return
        assert self._tracked is not None
        self._line.close()
        self._tracked.finish()


def metrics_row(
    stage: str, step: int, now: float, logs: Mapping[str, Any], tokens_per_s: float | None
) -> dict[str, Any]:
    """One line of metrics.jsonl from what the trainer logged at a step. Units: seconds, tokens, nats."""
    row: dict[str, Any] = {"stage": stage, "step": step, "time": round(now, 3), "tokens_per_s": tokens_per_s}
    row.update(dict.fromkeys(("loss", "lr", "grad_norm")))  # always there, if need be as null
    row.update({RENAMED.get(key, key): value for key, value in logs.items() if key not in UNLOGGED})
    kept = {key: value for key, value in row.items() if value is None or isinstance(value, (int, float, str))}
    strange = {key: str(v) for key, v in kept.items() if isinstance(v, float) and not math.isfinite(v)}
    return {**kept, **dict.fromkeys(strange), **({"not_finite": strange} if strange else {})}


class MetricsFile:
    """metrics.jsonl, a line a step."""

    def __init__(self, path: Path, after_step: int) -> None:
        """Lines after the step that the stage resumes from, and a half-written one, are cut off."""
        self.tokens = 0.0  # that the stage had seen at the last line kept
        self.reward: float | None = None  # of the rollout in use at the last line kept
        if path.exists():
            rows = cut_after(path, after_step)
            self.tokens = max((row.get("tokens") or 0.0 for row in rows), default=0.0)
            self.reward = rows[-1].get("reward") if rows else None
        self._path = path

    def append(self, row: Mapping[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def cut_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop the lines of a file after the step that a stage resumes from, and a half-written one; returns the others."""
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    write_text(path, "".join(f"{line}\n" for line in kept))
    return [json.loads(line) for line in kept]


def _step_of(line: str) -> float:
    """The step of a line; infinite for a line that a kill has cut."""
    try:
        return json.loads(line)["step"]
    except json.JSONDecodeError:
        return math.inf


class TokenCounter:
    """Tokens of the whole stage from the trainer's counter, which may start again at 0 when a stage is resumed
    (trl/trainer/sft_trainer.py:1215; GRPOTrainer restores its own)."""

    def __init__(self, before: float) -> None:
        """`before`: tokens seen before this start of the stage."""
        self.before = before
        self._offset: float | None = None

    def total(self, counted: float) -> float:
        if self._offset is None:
            self._offset = self.before if counted < self.before else 0.0
        return counted + self._offset


class Throughput:
    """Tokens per second from a counter that may stand still: in RL it moves at rollouts, not at every step.

    `last` is the rate between the last two moves of the counter, `smoothed` the one over the last `RATE_STEPS` moves;
    None before the first.
    """

    def __init__(self, tokens: float, now: float) -> None:
        self._moves: deque[tuple[float, float]] = deque([(now, tokens)], maxlen=RATE_STEPS + 1)
        self.last: float | None = None
        self.smoothed: float | None = None

    def update(self, tokens: float | None, now: float) -> None:
        """Take the counter at time `now` in seconds; None = not logged at this step."""
        before = self._moves[-1]
        if tokens is None or tokens <= before[1] or now <= before[0]:
            return
        self._moves.append((now, tokens))
        self.last, self.smoothed = _rate(before, self._moves[-1]), _rate(self._moves[0], self._moves[-1])


def _rate(earlier: tuple[float, float], later: tuple[float, float]) -> float:
    return (later[1] - earlier[1]) / (later[0] - earlier[0])


class StepLine:
    """The line of the current step: live on a terminal, otherwise printed about `PLAIN_LINES` times a stage."""

    def __init__(self, stage: str, done: int, total: int, console: Console | None = None) -> None:
        self._stage, self._first, self._total = stage, done, total
        self._console = console or Console()
        self._started = time.monotonic()
        self._every = max(1, total // PLAIN_LINES)
        self._latest: Text | None = None
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            atexit.register(self._live.stop)  # an error must not leave the terminal without its cursor

    def show(self, row: Mapping[str, Any], tokens_per_s: float | None) -> None:
        """Show the row of a step that has just ended."""
        step = row["step"]
        elapsed = time.monotonic() - self._started
        remaining = elapsed / max(1, step - self._first) * (self._total - step)
        self._latest = Text(step_text(self._stage, self._total, row, tokens_per_s, remaining))
        if self._live is not None:
            self._live.update(self._latest, refresh=True)
        elif step % self._every == 0 or step in (self._first + 1, self._total):
            self._console.print(self._latest, soft_wrap=True)

    def close(self) -> None:
        """Leave the last line on the screen."""
        if self._live is None:
            return
        self._live.stop()
        atexit.unregister(self._live.stop)
        if self._latest is not None:
            self._console.print(self._latest)


def step_text(
    stage: str, total: int, row: Mapping[str, Any], tokens_per_s: float | None, remaining_seconds: float
) -> str:
    """`cpt  120/600  loss 1.234  5.9k tok/s  lr 2.9e-3  gnorm 0.81  eta 1:15`; in RL the reward stands first."""
    parts = [stage, f"{row['step']:>{len(str(total))}}/{total}"]
    if "reward" in row:
        parts.append(f"reward {_number(row['reward'], '{:.2f}')}")
    parts.append(f"loss {_number(row['loss'], '{:.3f}')}")
    parts.append(f"{_thousands(tokens_per_s)} tok/s")
    parts.append(f"lr {_exponent(row['lr'])}")
    parts.append(f"gnorm {_number(row['grad_norm'], '{:.2f}')}")
    parts.append(f"eta {_clock(remaining_seconds)}")
    return "  ".join(parts)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _thousands(value: float | None) -> str:
    if value is None:
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}"


def _exponent(value: float | None) -> str:
    """2.9e-3 instead of 2.9e-03."""
    if not value:
        return "-" if value is None else "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
