"""`model.recompute: mixers`: what mixes tokens is computed again in the backward pass, and nothing else.

A decoder layer is a token mixer (Gated DeltaNet or attention) and a MoE block. Our routed experts keep little for
their backward pass (train/experts.py), so most of what a layer keeps belongs to its mixer, which is also the cheaper
half to compute twice. `layers` recomputes whole layers and is transformers' own, set in `TrainingArguments`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3_5MoeForCausalLM


def recompute_mixers(model: Qwen3_5MoeForCausalLM) -> None:
    """Let the mixer of each layer keep its inputs only, while `model` trains.

    It lives in this process alone: no weight, no name and no field of the configuration changes. The forward hooks of a
    mixer (ZeRO-3's) stay outside, those of the modules in it run again.
    """
    for mixer in mixers(model):
        mixer.forward = functools.partial(_forward, mixer, mixer.forward)


def keep_mixers(model: Qwen3_5MoeForCausalLM) -> None:
    """Undo `recompute_mixers`, for a comparison with it."""
    for mixer in mixers(model):
        mixer.__dict__.pop("forward", None)


def mixers(model: Qwen3_5MoeForCausalLM) -> list[nn.Module]:
    """What mixes tokens in each layer: Gated DeltaNet or attention."""
    return [
        layer.linear_attn if layer.block_type == "linear_attention" else layer.self_attn for layer in model.model.layers
    ]


def _forward(mixer: nn.Module, forward: Callable[..., Any], hidden_states: torch.Tensor, **inputs: Any) -> Any:
    """`forward` of a mixer, to be computed again where there is a backward pass of training. With a cache it runs once:
    it writes its states there, and a second time would append them again.

    The hidden states are handed on by position, where `checkpoint` keeps them as autograd keeps what it saves.
    """
    if mixer.training and torch.is_grad_enabled() and inputs.get("cache") is None:
        return checkpoint(forward, hidden_states, use_reentrant=False, **inputs)
    return forward(hidden_states, **inputs)
