"""Packed rows keep their documents apart: Gated DeltaNet and its convolution, with kernels or in plain torch.

A packed row is several documents in one [1, T] tensor with `cu_seq_lens_q` [documents + 1] (int32, starts and the end)
and `seq_idx` [1, T] (the document of each token), as TRL's padding-free collator makes them
(trl/trainer/sft_trainer.py:204). Full attention reads the boundaries from the position ids. Gated DeltaNet does not:
its recurrent state and its 4-wide convolution run over the boundary unless the kernel takes part, and transformers'
torch fallback refuses packed rows (transformers/integrations/hub_kernels.py:1033). `install` puts exact torch versions
there, and on a GPU the fast kernels: fla's for Gated DeltaNet, norms, SwiGLU and rotary embedding
(`agentworld.train.fused_layers`), our own for the routed experts and the router (`agentworld.train.experts`,
`agentworld.train.router`). docs/performance.md says what each gives.
"""

import functools
import importlib.util
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as modeling
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentworld.train import experts, fused_layers, router, row_kernels

_reference_delta_rule = modeling.torch_chunk_gated_delta_rule
_reference_convolution = modeling.causal_conv1d_fn
_replaced: list[tuple[Any, str, Any]] = []  # owner, name and original of everything that `install` has put elsewhere


def install() -> dict[str, str]:
    """Make packed rows exact on this machine, put fast kernels where it has them, and return the kernels in use, for
    run.json. A second call changes nothing.

    Raises:
        RuntimeError: this transformers no longer calls the functions that are replaced.
    """
    restore()
    _check_that_packed_rows_reach_the_kernels()
    gpu, fla = torch.cuda.is_available(), importlib.util.find_spec("fla") is not None
    fused, triton = gpu and fla, gpu and row_kernels.HAS_TRITON
    kernels = {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "delta_rule": "fla" if fla else "torch, documents as a padded batch",
        "convolution": "fla" if fused else "torch, masked by document",
        "experts": f"grouped_mm, {'Triton' if triton else 'torch'} rows",
        "router": "Triton" if triton else "transformers",
        "norms": "fla" if fused else "transformers",
        "swiglu": "fla" if fused else "transformers",
        "rotary": "fla" if fused else "transformers",
        "attention": "sdpa, packed rows by document" if gpu else "sdpa",
        "cross_entropy": f"trl fused head, {'Triton' if triton else 'torch'} tiles",
    }
    if not fla:
        _replace(modeling, "torch_chunk_gated_delta_rule", chunk_gated_delta_rule_packed)
    _replace(modeling, "causal_conv1d_fn", causal_conv1d_packed)
    _replace(ALL_EXPERTS_FUNCTIONS, "grouped_mm", experts.experts_forward)
    if fused:
        _replace(modeling.Qwen3_5MoeRMSNorm, "forward", fused_layers.norm)
        _replace(modeling.Qwen3_5MoeRMSNormGated, "forward", fused_layers.gated_norm)
        _replace(modeling.Qwen3_5MoeMLP, "forward", fused_layers.mlp)
        _replace(modeling, "apply_rotary_pos_emb", fused_layers.rotary)
    if triton:
        _replace(modeling.Qwen3_5MoeTopKRouter, "forward", router.router)
    if gpu:
        _replace(ALL_ATTENTION_FUNCTIONS, "sdpa", fused_layers.packed_attention)
        _replace(modeling.Qwen3_5MoeTextModel, "forward", fused_layers.text_model)
    return kernels


def install_packing_only() -> dict[str, str]:
    """Only what keeps the documents of a packed row apart, in plain torch where transformers has nothing: the slow
    side of a comparison."""
    restore()
    if importlib.util.find_spec("fla") is None:
        _replace(modeling, "torch_chunk_gated_delta_rule", chunk_gated_delta_rule_packed)
    _replace(modeling, "causal_conv1d_fn", functools.partial(causal_conv1d_packed, fused=False))
    return {"convolution": "torch, masked by document"}


def restore() -> None:
    """Undo `install`: transformers as it was, for a comparison with it."""
    while _replaced:
        owner, name, original = _replaced.pop()
        _put(owner, name, original)


def slow_parts(kernels: dict[str, str]) -> list[str]:
    """Names of the parts that run without their fast kernel although this machine has a GPU."""
    if kernels["device"] == "cpu":
        return []
    slow = ("torch", "transformers")
    return [name for name, kernel in kernels.items() if kernel in slow or kernel.split(",")[0] == "torch"]


def _replace(owner: Any, name: str, replacement: Any) -> None:
    original = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
    _replaced.append((owner, name, original))
    _put(owner, name, replacement)


def _put(owner: Any, name: str, value: Any) -> None:
    """Into a registry of transformers (for all models of this process) or onto a module or class."""
    if isinstance(owner, Mapping):
        owner.register(name, value)
    else:
        setattr(owner, name, value)


def _check_that_packed_rows_reach_the_kernels() -> None:
    source = inspect.getsource(modeling.Qwen3_5MoeGatedDeltaNet.forward)
    for name in ("causal_conv1d_fn(", "torch_chunk_gated_delta_rule(", 'pop("cu_seq_lens_q"'):
        if name not in source:
            raise RuntimeError(f"Qwen3_5MoeGatedDeltaNet.forward does not use {name}: packed rows would leak")
    attention = inspect.getsource(modeling.Qwen3_5MoeAttention.forward)
    if "**kwargs," not in attention.split("attention_interface(")[1]:
        raise RuntimeError("Qwen3_5MoeAttention.forward does not hand on cu_seq_lens_q: packed rows would leak")


def causal_conv1d_packed(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    fused: bool = True,
    **kwargs,
) -> torch.Tensor:
    """Depthwise causal convolution that sees only tokens of its own document.

    Args:
        hidden_states: [B, channels, T]; weight: [channels, K]; bias: [channels] or None.
        seq_idx: [B, T], the document of each token; None = one document a row.
        cu_seq_lens_q: [documents + 1], for fla's kernel; without it, only to refuse a packed row that comes without
            `seq_idx`.
        fused: use fla's kernel on a GPU.

    Returns:
        [B, channels, T] in the dtype of `hidden_states`.

    Raises:
        ValueError: boundaries are given but `seq_idx` is not, where it is needed.
    """
    packed = cu_seq_lens_q is not None and cu_seq_lens_q.numel() > 2
    fused = fused and hidden_states.is_cuda and importlib.util.find_spec("fla") is not None
    if fused and (packed or seq_idx is None):
        bounds = cu_seq_lens_q if packed else None
        return fused_layers.fla_convolution(hidden_states, weight, bias, activation, bounds)
    if seq_idx is None:
        if packed:
            raise ValueError("a packed row reached the convolution without seq_idx: documents would leak")
        return _reference_convolution(hidden_states, weight, bias, activation=activation)
    length, width = hidden_states.shape[-1], weight.shape[-1]
    x = hidden_states.to(weight.dtype)
    out = x * weight[:, width - 1, None]
    for back in range(1, width):
        earlier = F.pad(x, (back, 0))[..., :length]
        same_document = seq_idx == F.pad(seq_idx, (back, 0), value=-1)[:, :length]
        out = out + earlier * same_document[:, None] * weight[:, width - 1 - back, None]
    if bias is not None:
        out = out + bias[:, None]
    if activation is not None:
        out = modeling.ACT2FN[activation](out)
    return out.to(hidden_states.dtype)


def chunk_gated_delta_rule_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The chunked gated delta rule with a fresh state at the start of each document.

    Documents become the rows of right-padded batches, one batch for each power of two of the length: the rule is
    causal, so padding after a document changes nothing in it.

    Args:
        query, key: [1, T, key heads, key dim]; value: [1, T, value heads, value dim]; g, beta: [1, T, value heads].
        cu_seqlens: [documents + 1], or None for the reference behaviour ([B, T, ...]).

    Returns:
        (output [1, T, value heads, value dim], None) for packed rows.

    Raises:
        ValueError: a packed row with a batch dimension other than 1, or with a carried state.
    """
    options = {"use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
    if cu_seqlens is None or cu_seqlens.numel() <= 2:
        options |= {"initial_state": initial_state, "output_final_state": output_final_state}
        return _reference_delta_rule(query, key, value, g=g, beta=beta, **options)
    if initial_state is not None or output_final_state or query.shape[0] != 1:
        raise ValueError("a packed row must be one [1, T] tensor without a cache (use_cache=False)")
    bounds = cu_seqlens.tolist()
    pieces = [slice(start, end) for start, end in itertools.pairwise(bounds)]
    outputs: dict[int, torch.Tensor] = {}
    for group in _similar_lengths(pieces):
        batch = [_as_batch(x, [pieces[row] for row in group]) for x in (query, key, value, g, beta)]
        out, _ = _reference_delta_rule(*batch[:3], g=batch[3], beta=batch[4], **options)
        for place, row in enumerate(group):
            outputs[row] = out[place, : pieces[row].stop - pieces[row].start]
    return torch.cat([outputs[row] for row in range(len(pieces))])[None], None


def _similar_lengths(pieces: list[slice]) -> list[list[int]]:
    """Indices of the documents, grouped so that padding at most doubles the tokens of a group."""
    groups: dict[int, list[int]] = {}
    for row, piece in enumerate(pieces):
        groups.setdefault((piece.stop - piece.start).bit_length(), []).append(row)
    return list(groups.values())


def _as_batch(x: torch.Tensor, pieces: list[slice]) -> torch.Tensor:
    """[1, T, ...] to [documents, longest, ...], padded with zeros on the right (beta 0 writes nothing to the state)."""
    return torch.nn.utils.rnn.pad_sequence([x[0, piece] for piece in pieces], batch_first=True)
