"""How many tokens each expert gets: counted on all ranks, logged every step, with a warning for dead and hot experts.

    metrics.jsonl, W&B           a step: router/load_max_over_mean, router/load_min_over_mean (the fullest and the
                                 emptiest expert against the even share of their layer, over all layers) and
                                 router/dead_experts (over all layers, without a token in this step)
    <stage>/router_load.jsonl    every `WINDOW_STEPS` steps: step, steps, counts[layer][expert] summed over the window

A count is one token and one of its chosen experts. AutoEP's own buffer `tokens_per_expert` is not used: it belongs to
one rank, is never reset, counts padding, and counts twice under activation checkpointing
(deepspeed/module_inject/auto_ep_layer.py:981).
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.moe.ep_router import TokenChoiceTopKRouter
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter

from agentworld.train import engine
from agentworld.train.progress import cut_after

WINDOW_STEPS = 50
HOT = 8.0  # times the even share
HOT_TOKENS = 0.9  # or this share of all tokens, where the even share is large: 8 experts, 2 a token
JUDGED_TOKENS = 100  # of an even share in a window: with fewer, an expert may miss its tokens by chance
NAMED_EXPERTS = 5  # in one warning
CHOSEN = {Qwen3_5MoeTopKRouter: 2, TokenChoiceTopKRouter: 1}  # where [tokens, top k] stands in a router's output


class RouterLoad:
    """Counts, over the forwards that train, how many tokens each expert of each layer gets on this rank.

    Not counted are padding, forwards without gradients (evaluation, generation, old log-probabilities), and the second
    forward of activation checkpointing: that one runs in the backward pass, outside the forward of the model's body.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """
        Args:
            device: where the model computes; its parameters may lie elsewhere (`engine.offload_param`).

        Raises:
            ValueError: the model has no router of a known class.
        """
        routers = [module for module in model.modules() if type(module) in CHOSEN]
        if not routers:
            raise ValueError(f"{type(model).__name__} holds none of {', '.join(kind.__name__ for kind in CHOSEN)}")
        self.top_k: int = routers[0].top_k
        self._counts = torch.zeros(len(routers), routers[0].num_experts, dtype=torch.int64, device=device)
        self._counting = False
        self._real: torch.Tensor | None = None  # [tokens], 1 for a token and 0 for padding
        body = model.get_decoder()
        self._hooks = [
            body.register_forward_pre_hook(self._begin, with_kwargs=True),
            body.register_forward_hook(self._end, always_call=True),
            *(router.register_forward_hook(self._counter(layer)) for layer, router in enumerate(routers)),
        ]

    def take(self) -> torch.Tensor:
        """The counts since the last call, [layers, experts] int64 on the CPU, summed over all ranks; collective."""
        if dist.is_initialized():
            dist.all_reduce(self._counts)
        counts = self._counts.cpu().clone()
        self._counts.zero_()
        return counts

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, body: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._counting = body.training and torch.is_grad_enabled()
        mask = kwargs.get("attention_mask")
        if self._counting and mask is not None and not (torch.is_tensor(mask) and mask.ndim == 2):
            raise ValueError("router load: the attention mask is not [batch, tokens], padding would be counted")
        self._real = None if mask is None or not self._counting else mask.reshape(-1).long()

    def _end(self, *unused: Any) -> None:
        self._counting, self._real = False, None

    def _counter(self, layer: int):
        @torch.no_grad()
        def count(router: nn.Module, args: tuple, output: tuple[torch.Tensor, ...]) -> None:
            if not self._counting:
                return
            chosen = output[CHOSEN[type(router)]]
            each = torch.ones(1, dtype=torch.int64, device=chosen.device) if self._real is None else self._real
            self._counts[layer].scatter_add_(0, chosen.reshape(-1), each.view(-1, 1).expand_as(chosen).reshape(-1))

        return count


class RouterLoadCallback(TrainerCallback):
    """Adds the router's load to the trainer's log, on every rank; stands before `ProgressCallback`, which writes it.

    It also refuses to train when `expert_parallel` was asked for and DeepSpeed has not divided the experts.
    """

    def __init__(self, stage_dir: Path, expert_parallel: int) -> None:
        self._path, self._degree = stage_dir / "router_load.jsonl", expert_parallel
        self._load: RouterLoad | None = None
        self._latest: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs
    ) -> None:
        engine.require_expert_parallel(model, self._degree)
        self._load = RouterLoad(model, args.device)
        self._window = Window(self._load.top_k)
        if state.is_world_process_zero and self._path.exists():
            cut_after(self._path, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        assert self._load is not None
        counts = self._load.take()
        self._latest = summary(counts)
        self._window.add(counts)
        if self._window.steps == WINDOW_STEPS:
            self._close_window(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs,
    ) -> None:
        if logs is not None and "loss" in logs:  # the callbacks share one dictionary
            logs.update(self._latest)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        assert self._load is not None
        self._load.remove()
        if self._window.steps:
            self._close_window(state)

    def _close_window(self, state: TrainerState) -> None:
        warnings, row = self._window.close(state.global_step)
        if state.is_world_process_zero:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            for text in warnings:
                print(f"agentworld: WARNING: {text}", file=sys.stderr, flush=True)


class Window:
    """Counts of several steps, and what they say about single experts; each expert is named once."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._counts: torch.Tensor | None = None
        self._known: set[tuple[str, int, int]] = set()
        self.steps = 0

    def add(self, counts: torch.Tensor) -> None:
        self._counts = counts.clone() if self._counts is None else self._counts + counts
        self.steps += 1

    def close(self, step: int) -> tuple[list[str], Mapping[str, Any]]:
        """Warnings, and the line of router_load.jsonl; the next window starts empty."""
        assert self._counts is not None
        row = {"step": step, "steps": self.steps, "counts": self._counts.tolist()}
        warnings = []
        for layer, counts in enumerate(self._counts):
            even = counts.sum().item() / len(counts)
            if even < JUDGED_TOKENS:
                continue
            limit = min(HOT * even, HOT_TOKENS * counts.sum().item() / self._top_k)
            warnings += self._named(layer, counts == 0, "got no token")
            warnings += self._named(layer, counts > limit, f"got more than {limit / even:.1f} times an even share")
        self._counts, self.steps = None, 0
        return warnings, row

    def _named(self, layer: int, found: torch.Tensor, said: str) -> list[str]:
        new = [expert for expert in found.nonzero().flatten().tolist() if (said, layer, expert) not in self._known]
        if not new:
            return []
        self._known |= {(said, layer, expert) for expert in new}
        names = ", ".join(map(str, new[:NAMED_EXPERTS]))
        others = f" and {len(new) - NAMED_EXPERTS} more" if len(new) > NAMED_EXPERTS else ""
        return [f"router: layer {layer}, expert {names}{others} {said} in the last {self.steps} steps"]


def summary(counts: torch.Tensor) -> dict[str, float]:
    """What a step logs, from counts [layers, experts]; nothing if nothing was counted."""
    even = counts.double().mean(dim=1, keepdim=True)
    if not (even > 0).all():
        return {}
    relative = counts / even
    return {
        "router/load_max_over_mean": relative.max().item(),
        "router/load_min_over_mean": relative.min().item(),
        "router/dead_experts": int((counts == 0).sum().item()),
    }
