"""Packed rows keep their documents apart: Gated DeltaNet and its convolution, with kernels or in plain torch.

A packed row is several documents in one [1, T] tensor with `cu_seq_lens_q` [documents + 1] (int32, starts and the end)
and `seq_idx` [1, T] (the document of each token), as TRL's padding-free collator makes them
(trl/trainer/sft_trainer.py:204). Full attention reads the boundaries from the position ids. Gated DeltaNet does not:
its recurrent state and its 4-wide convolution run over the boundary unless the kernel takes part, and transformers'
torch fallback refuses packed rows (transformers/integrations/hub_kernels.py:1033). `install` puts exact torch versions
there, and uses fla and causal_conv1d where they are installed.
"""

import importlib.util
import inspect
import itertools

import torch
import torch.nn.functional as F
import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as modeling

_reference_delta_rule = modeling.torch_chunk_gated_delta_rule
_reference_convolution = modeling.causal_conv1d_fn


def install() -> dict[str, str]:
    """Make packed rows exact on this machine and return the kernels in use, for run.json.

    Raises:
        RuntimeError: this transformers no longer calls the two functions that are replaced.
    """
    source = inspect.getsource(modeling.Qwen3_5MoeGatedDeltaNet.forward)
    for name in ("causal_conv1d_fn(", "torch_chunk_gated_delta_rule(", 'pop("cu_seq_lens_q"'):
        if name not in source:
            raise RuntimeError(f"Qwen3_5MoeGatedDeltaNet.forward does not use {name}: packed rows would leak")
    kernels = {"delta_rule": "fla", "convolution": "causal_conv1d", "device": "cpu"}
    if torch.cuda.is_available():
        kernels["device"] = torch.cuda.get_device_name()
    if importlib.util.find_spec("fla") is None:
        modeling.torch_chunk_gated_delta_rule = chunk_gated_delta_rule_packed
        kernels["delta_rule"] = "torch, documents as a padded batch"
    if importlib.util.find_spec("causal_conv1d") is None:
        modeling.causal_conv1d_fn = causal_conv1d_packed
        kernels["convolution"] = "torch, masked by document"
    return kernels


def is_slow_on_this_device(kernels: dict[str, str]) -> bool:
    """Whether a GPU runs Gated DeltaNet in plain torch (several times slower than fla's kernels)."""
    return kernels["device"] != "cpu" and kernels["delta_rule"] != "fla"


def causal_conv1d_packed(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """Depthwise causal convolution that sees only tokens of its own document.

    Args:
        hidden_states: [B, channels, T]; weight: [channels, K]; bias: [channels] or None.
        seq_idx: [B, T], the document of each token; None = one document a row.
        cu_seq_lens_q: only to refuse a packed row that comes without `seq_idx`.

    Returns:
        [B, channels, T] in the dtype of `hidden_states`.

    Raises:
        ValueError: boundaries are given but `seq_idx` is not.
    """
    if seq_idx is None:
        if cu_seq_lens_q is not None and cu_seq_lens_q.numel() > 2:
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
