"""GPU time by kind of kernel, from torch's profiler."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

# The first pattern that occurs in a kernel's name decides. Names are those of CUDA, CUTLASS, fla 0.6 and our Triton
# kernels (train/row_kernels.py).
GROUPS = (
    ("grouped matrix products (experts)", r"grouped|GroupProblemShape|GroupedGemm|prepare_grouped"),
    ("rows of the experts: gather, SwiGLU, sum", r"_gather_kernel|_sum_kernel|_swiglu_kernel|_swiglu_backward_kernel"),
    ("attention", r"flash|fmha|sdpa|attention|cudnn::fusion"),
    ("convolution", r"conv"),
    ("delta rule", r"delta_rule|chunk_|wy_|l2norm|^kernel_kernel|recompute_w_u"),  # TileLang's is called kernel_kernel
    ("norms", r"layer_norm|rms|norm"),
    ("SwiGLU and gates (fla)", r"swiglu|sigmoidglu|swish"),
    ("rotary (fla)", r"rotary"),
    ("cross-entropy and softmax", r"_forward_kernel|_backward_kernel|[sS]oft[mM]ax|cross_entropy|nll"),
    ("dense matrix products", r"gemm|nvjet|cutlass|cublas|splitK|gemv|sm90_xmma|ampere|dot_kernel|reduce_1Block"),
    ("router, sort, top-k", r"_route|[sS]ort|topk|TopK|[rR]adix|histogram|searchsorted|bitonic|gatherTopK|scan"),
    ("indexing", r"index|gather|scatter|embedding"),
    ("copies", r"copy|Memcpy|memcpy|CatArray|Memset|fill|FillFunctor|direct_copy"),
    ("reductions", r"reduce"),
    ("elementwise", r"elementwise|vectorized|pointwise|unrolled"),
)


def profile(function: Callable[[], object], calls: int = 2) -> dict[str, float]:
    """Milliseconds of GPU time a call for each group, "other" for names that fit none, and "idle": time between the
    first and the last kernel in which none ran."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    times: dict[str, float] = defaultdict(float)
    spans = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            start, end = event.time_range.start, event.time_range.end
            spans.append((start, end))
            times[group_of(event.name)] += (end - start) / 1000 / calls
    times["idle"] = _idle(sorted(spans)) / 1000 / calls
    return dict(times)


def group_of(kernel: str) -> str:
    """The group of a kernel; one that fits none counts as other, by its name."""
    for group, pattern in GROUPS:
        if re.search(pattern, kernel):
            return group
    return f"other: {kernel[:60]}"


def _idle(spans: list[tuple[float, float]]) -> float:
    idle, until = 0.0, spans[0][0] if spans else 0.0
    for start, end in spans:
        idle += max(0.0, start - until)
        until = max(until, end)
    return idle


def communication(events: Iterable[Any]) -> dict[str, float]:
    """Milliseconds of a profiled step on one rank, of its events: `step` from the first kernel to the last, `nccl` in
    which a kernel of NCCL runs (waiting for the other ranks counts), `exposed` in which nothing else runs beside it,
    `idle` in which no kernel runs, and `exposed_share` of the step; then NCCL's kernels by name."""
    kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(event.time_range.start, event.time_range.end, event.name) for event in kernels]
    nccl = _merged([(start, end) for start, end, name in spans if "nccl" in name.lower()])
    other = _merged([(start, end) for start, end, name in spans if "nccl" not in name.lower()])
    both = _merged([*nccl, *other])
    step = both[-1][1] - both[0][0]
    exposed = _length(both) - _length(other)
    times = {"step": step, "nccl": _length(nccl), "exposed": exposed, "idle": step - _length(both)}
    found = {key: value / 1000 for key, value in times.items()} | {"exposed_share": exposed / step}
    for start, end, name in spans:
        if "nccl" in name.lower():
            short = name.split("(")[0]
            found[short] = found.get(short, 0.0) + (end - start) / 1000
    return found


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of spans, as spans that do not touch."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)
