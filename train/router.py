"""The top-k router of a MoE block in one kernel each way, in Triton.

The stock router takes the softmax over all experts, its top k, and divides these by their sum; the sum over all experts
cancels, so the weights are the softmax over the k largest logits alone, and the gradient reaches only those.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter

from agentworld.train.row_kernels import HAS_TRITON

_stock_router = Qwen3_5MoeTopKRouter.forward
ROWS = 8

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _route(logits, weights, index, tokens, experts, K: tl.constexpr, KB: tl.constexpr, ROWS: tl.constexpr,
               BLOCK: tl.constexpr):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column, choice = tl.arange(0, BLOCK), tl.arange(0, KB)
        mask = (row < tokens)[:, None] & (column < experts)[None, :]
        z = tl.load(logits + row[:, None] * experts + column[None, :], mask=mask, other=-float("inf")).to(tl.float32)
        largest = tl.full((ROWS, KB), -float("inf"), dtype=tl.float32)
        chosen = tl.zeros((ROWS, KB), dtype=tl.int32)
        for k in tl.static_range(K):
            best = tl.argmax(z, axis=1)  # of equal ones the first: the same again when recomputed
            largest = tl.where(choice[None, :] == k, tl.max(z, axis=1)[:, None], largest)
            chosen = tl.where(choice[None, :] == k, best[:, None], chosen)
            z = tl.where(column[None, :] == best[:, None], -float("inf"), z)
        e = tl.exp(largest - tl.max(largest, axis=1)[:, None])
        w = e / tl.sum(e, axis=1)[:, None]
        mask = (row < tokens)[:, None] & (choice < K)[None, :]
        place = row[:, None] * K + choice[None, :]
        tl.store(weights + place, w.to(weights.dtype.element_ty), mask=mask)
        tl.store(index + place, chosen.to(tl.int64), mask=mask)

    @triton.jit
    def _route_backward(grad, logits, index, grad_logits, tokens, experts, K: tl.constexpr, KB: tl.constexpr,
                        ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column, choice = tl.arange(0, BLOCK), tl.arange(0, KB)
        mask = (row < tokens)[:, None] & (choice < K)[None, :]
        place = row[:, None] * K + choice[None, :]
        chosen = tl.load(index + place, mask=mask, other=0)
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        z = tl.load(logits + row[:, None] * experts + chosen, mask=mask, other=-float("inf")).to(tl.float32)
        z = tl.where((row < tokens)[:, None], z, 0.0)
        e = tl.exp(z - tl.max(z, axis=1)[:, None])
        w = e / tl.sum(e, axis=1)[:, None]
        inner = w * (g - tl.sum(w * g, axis=1)[:, None])
        out = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for k in tl.static_range(K):
            value = tl.sum(tl.where(choice[None, :] == k, inner, 0.0), axis=1)
            expert = tl.sum(tl.where(choice[None, :] == k, chosen, 0), axis=1)
            out = tl.where(column[None, :] == expert[:, None], value[:, None], out)
        mask = (row < tokens)[:, None] & (column < experts)[None, :]
        start = grad_logits + row[:, None] * experts + column[None, :]
        tl.store(start, out.to(grad_logits.dtype.element_ty), mask=mask)


class TopKSoftmax(torch.autograd.Function):
    """(weights [T, K] in the dtype of the logits, experts [T, K] int64) of logits [T, experts]."""

    @staticmethod
    def forward(ctx, logits, top_k):
        weights = logits.new_empty(len(logits), top_k)
        index = torch.empty(weights.shape, device=logits.device, dtype=torch.int64)
        _route[_grid(logits)](logits, weights, index, *logits.shape, **_sizes(logits, top_k))
        ctx.save_for_backward(logits, index)
        ctx.mark_non_differentiable(index)
        return weights, index

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        logits, index = ctx.saved_tensors
        out = torch.empty_like(logits)
        arguments = (grad.contiguous(), logits, index, out, *logits.shape)
        _route_backward[_grid(logits)](*arguments, **_sizes(logits, index.shape[1]))
        return out, None


def router(self: torch.nn.Module, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`Qwen3_5MoeTopKRouter.forward`: (logits [T, experts], weights [T, K], experts [T, K])."""
    if not (HAS_TRITON and hidden_states.is_cuda):
        return _stock_router(self, hidden_states)
    logits = F.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    return logits, *TopKSoftmax.apply(logits, self.top_k)


def _grid(logits: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(len(logits), ROWS),)


def _sizes(logits: torch.Tensor, top_k: int) -> dict[str, int]:
    power = triton.next_power_of_2
    return {"K": top_k, "KB": power(top_k), "ROWS": ROWS, "BLOCK": power(logits.shape[1]), "num_warps": 4}
