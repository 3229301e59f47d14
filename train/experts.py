"""The routed experts of a MoE block as one differentiable function over rows sorted by expert.

transformers' own `grouped_mm` implementation (transformers/integrations/moe.py:404) spends most of its time on unfused
passes over the [tokens x top-k, hidden] tensors: multiplication by the routing weights, masked fills, and `index_put`
in the backward of the gather. Here a row is sorted once; gather, SwiGLU x routing weight and the sum over top-k are one
pass each, their backwards are gathers too, and the forward keeps only the input and the first product:

    rows  = x[token of row]                                   [M, H]     M = tokens x top-k, sorted by expert
    inner = rows @ gate_up[expert]^T                          [M, 2 I]   grouped matrix product
    out   = (silu(gate) * up * routing weight) @ down^T       [M, H]     grouped matrix product
    y     = sum over the K rows of a token                    [T, H]

The routing weight multiplies before the second product and not after it: the same function, and its gradient is then a
sum over I and not over H.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from transformers.activations import ACT2FN
from transformers.integrations import moe

from agentworld.train.row_kernels import gather_rows, sum_rows, weighted_swiglu, weighted_swiglu_backward

SILU = (torch.nn.SiLU, type(ACT2FN["silu"]))
_stock_implementation = moe.grouped_mm_experts_forward


def sort_by_expert(index: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Order the (token, choice) pairs by expert, without a host synchronisation.

    Args:
        index: [T, K], the experts of each token, 0 <= expert < `experts`.

    Returns:
        (order [M] int64: the flat pair of each row; places [T, K] int32: the row of each pair;
        ends [experts] int32: where each expert's rows end).
    """
    narrow = torch.int16 if experts < 2**15 else torch.int32  # a radix sort takes a pass for each byte of the key
    ids, order = torch.sort(index.reshape(-1).to(narrow), stable=True)
    numbers = torch.arange(experts, device=index.device, dtype=narrow)
    ends = torch.searchsorted(ids, numbers, right=True, out_int32=True)
    rows = torch.arange(len(order), device=index.device, dtype=torch.int32)
    places = torch.empty_like(rows).scatter_(0, order, rows).view(index.shape)
    return order, places, ends


class RoutedExperts(torch.autograd.Function):
    """y [T, H] of x [T, H], gate_up [E, 2 I, H], down [E, H, I], routing weights [T, K] and experts [T, K]."""

    @staticmethod
    def forward(ctx, x, gate_up, down, weights, index):
        order, places, ends = sort_by_expert(index, gate_up.shape[0])
        tokens = (order // index.shape[1]).to(torch.int32)
        scale = weights.reshape(-1)[order]
        inner = F.grouped_mm(gather_rows(x, tokens), gate_up.transpose(1, 2), offs=ends)
        rows = F.grouped_mm(weighted_swiglu(inner, scale), down.transpose(1, 2), offs=ends)
        ctx.save_for_backward(x, gate_up, down, inner, scale, tokens, places, ends)
        return sum_rows(rows, places)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, gate_up, down, inner, scale, tokens, places, ends = ctx.saved_tensors
        needs_x, needs_gate_up, needs_down, needs_weights, _ = ctx.needs_input_grad
        grad_rows = gather_rows(grad.contiguous(), tokens)
        grad_product = F.grouped_mm(grad_rows, down, offs=ends)
        grad_inner, grad_scale, product = weighted_swiglu_backward(grad_product, inner, scale)
        grad_down = F.grouped_mm(grad_rows.t(), product, offs=ends) if needs_down else None
        del grad_rows, grad_product, product
        grad_x = sum_rows(F.grouped_mm(grad_inner, gate_up, offs=ends), places) if needs_x else None
        grad_gate_up = None
        if needs_gate_up:
            grad_gate_up = F.grouped_mm(grad_inner.t(), gather_rows(x, tokens), offs=ends)
        grad_weights = grad_scale[places.long()] if needs_weights else None
        return grad_x, grad_gate_up, grad_down, grad_weights, None


def experts_forward(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """transformers' interface for an implementation of the experts (`ALL_EXPERTS_FUNCTIONS`), for gated SiLU experts
    without biases; anything else goes to the stock implementation.

    Args:
        hidden_states: [T, H]; top_k_index, top_k_weights: [T, K].
    """
    if not is_supported(module):
        return _stock_implementation(module, hidden_states, top_k_index, top_k_weights)
    gate_up, down = module.gate_up_proj, module.down_proj
    x = hidden_states.to(gate_up.dtype).contiguous()
    return RoutedExperts.apply(x, gate_up, down, top_k_weights, top_k_index).to(hidden_states.dtype)


def is_supported(module: torch.nn.Module) -> bool:
    """Whether the experts are SwiGLU without biases, gate before up, [experts, out, in], all of them on this rank."""
    return (
        isinstance(module.act_fn, SILU)
        and module.has_gate
        and module.is_concatenated
        and not (module.has_bias or module.is_transposed or module.has_post_expert_norm or module._is_expert_parallel)
    )
