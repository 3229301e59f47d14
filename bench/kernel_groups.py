"""GPU time by kind of kernel, from torch's profiler."""

import re
from collections import defaultdict
from collections.abc import Callable

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
