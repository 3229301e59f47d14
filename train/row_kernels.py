"""Elementwise work on rows sorted by expert, one pass over memory each: Triton on a GPU, the same formulas in torch
elsewhere.

Shapes: T tokens, K experts a token, M = T x K rows, H hidden, I expert width. Arithmetic is fp32 whatever the dtype of
the rows. Every output element is written by exactly one program (no atomics), so results do not depend on the order of
execution.
"""

import importlib.util

import torch
import torch.nn.functional as F

HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _gather_kernel(x, source, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        origin = tl.load(source + row, mask=row < rows, other=0).to(tl.int64)
        values = tl.load(x + origin[:, None] * width + column[None, :], mask=inside, other=0.0)
        tl.store(out + row[:, None] * width + column[None, :], values, mask=inside)

    @triton.jit
    def _sum_kernel(rows, places, out, width, COUNT: tl.constexpr, BLOCK: tl.constexpr):
        token = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)
        inside = column < width
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for k in tl.static_range(COUNT):
            place = tl.load(places + token * COUNT + k).to(tl.int64)
            total += tl.load(rows + place * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _swiglu_kernel(gate_up, weight, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        start = gate_up + row[:, None] * (2 * width) + column[None, :]
        gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(start + width, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float32)
        result = gate * tl.sigmoid(gate) * up * scale[:, None]
        tl.store(out + row[:, None] * width + column[None, :], result.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _swiglu_backward_kernel(
        grad, gate_up, weight, grad_gate_up, grad_weight, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, BLOCK)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        wide = row[:, None] * (2 * width) + column[None, :]
        narrow = row[:, None] * width + column[None, :]
        gate = tl.load(gate_up + wide, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + wide + width, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + narrow, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        product = silu * up
        tl.store(out + narrow, (product * scale[:, None]).to(out.dtype.element_ty), mask=inside)
        total = tl.sum(g * product, axis=1)
        tl.store(grad_weight + row, total.to(grad_weight.dtype.element_ty), mask=row < rows)
        g *= scale[:, None]
        grad_gate = g * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        tl.store(grad_gate_up + wide, grad_gate.to(grad_gate_up.dtype.element_ty), mask=inside)
        tl.store(grad_gate_up + wide + width, (g * silu).to(grad_gate_up.dtype.element_ty), mask=inside)


def gather_rows(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Row `source[m]` of `x` [T, H] for each m: [M, H]."""
    if not _on_gpu(x):
        return x[source.long()]
    rows, width = len(source), x.shape[1]
    out = x.new_empty(rows, width)
    block, together = triton.next_power_of_2(width), 4  # four loads of 16 bytes in flight a thread at a width of 2048
    grid = (triton.cdiv(rows, together),)
    _gather_kernel[grid](x, source, out, rows, width, ROWS=together, BLOCK=block, num_warps=8)
    return out


def sum_rows(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The sum over k of row `places[t, k]` of `rows` [M, H], in fp32, returned in the dtype of `rows`: [T, H]."""
    tokens, count = places.shape
    if not _on_gpu(rows):
        return _wide(rows[places.long()]).sum(1).to(rows.dtype)
    out = rows.new_empty(tokens, rows.shape[1])
    block = triton.next_power_of_2(rows.shape[1])
    _sum_kernel[(tokens,)](rows, places, out, rows.shape[1], COUNT=count, BLOCK=block, num_warps=8)
    return out


def weighted_swiglu(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(gate) x up x weight: [M, I] from `gate_up` [M, 2 I] (gate first) and `weight` [M]."""
    if not _on_gpu(gate_up):
        gate, up = _wide(gate_up).chunk(2, dim=-1)
        return (F.silu(gate) * up * _wide(weight)[:, None]).to(gate_up.dtype)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block, together = _tile(width)
    _swiglu_kernel[(triton.cdiv(rows, together),)](gate_up, weight, out, rows, width, ROWS=together, BLOCK=block)
    return out


def weighted_swiglu_backward(
    grad: torch.Tensor, gate_up: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `weighted_swiglu` and its output once more, so that the forward need not keep it.

    Args:
        grad: [M, I], with respect to the output.

    Returns:
        (gradient of gate_up [M, 2 I], gradient of weight [M], output [M, I]).
    """
    if not _on_gpu(gate_up):
        gate, up = _wide(gate_up).chunk(2, dim=-1)
        g, scale = _wide(grad), _wide(weight)[:, None]
        sigmoid = gate.sigmoid()
        silu = gate * sigmoid
        product = silu * up
        inner = torch.cat([g * scale * up * sigmoid * (1 + gate * (1 - sigmoid)), g * scale * silu], dim=-1)
        total = (g * product).sum(-1).to(weight.dtype)
        return inner.to(gate_up.dtype), total, (product * scale).to(gate_up.dtype)
    rows, width = grad.shape
    grad_gate_up, grad_weight, out = torch.empty_like(gate_up), torch.empty_like(weight), torch.empty_like(grad)
    block, together = _tile(width)
    _swiglu_backward_kernel[(triton.cdiv(rows, together),)](
        grad, gate_up, weight, grad_gate_up, grad_weight, out, rows, width, ROWS=together, BLOCK=block
    )
    return grad_gate_up, grad_weight, out


def _on_gpu(x: torch.Tensor) -> bool:
    return HAS_TRITON and x.is_cuda


def _wide(x: torch.Tensor) -> torch.Tensor:
    """fp32, or fp64 as it is."""
    return x if x.dtype == torch.float64 else x.float()


def _tile(width: int) -> tuple[int, int]:
    """Columns of a program (a power of two) and its rows, about 2048 elements together."""
    block = triton.next_power_of_2(width)
    return block, max(1, 2048 // block)
