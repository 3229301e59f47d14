"""The routed experts as one function: equal to transformers' eager loop, output and gradients."""

import pytest
import torch
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeExperts

from agentworld.train import experts

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


def block(count: int, hidden: int = 64, width: int = 32, seed: int = 0) -> Qwen3_5MoeExperts:
    config = Qwen3_5MoeTextConfig(hidden_size=hidden, moe_intermediate_size=width, num_experts=count)
    config._experts_implementation = "eager"
    made = Qwen3_5MoeExperts(config)
    draw = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) * 0.1
    return made


def routing(case: str, tokens: int, count: int, top_k: int) -> torch.Tensor:
    """[tokens, top_k] distinct experts a token."""
    draw = torch.Generator().manual_seed(1)
    if case == "random":
        return torch.rand(tokens, count, generator=draw).topk(top_k).indices
    few = torch.arange(count - top_k, count)  # all other experts stay empty, the first one included
    return torch.stack([few[torch.randperm(top_k, generator=draw)] for _ in range(tokens)])


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)).item()


def outputs_and_gradients(run, made, x, index, weights, grad) -> dict[str, torch.Tensor]:
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    made.zero_grad()
    y = run(made, x, index, weights)
    y.backward(grad)
    found = {"y": y.detach(), "x": x.grad, "weights": weights.grad}
    return found | {name: p.grad.clone() for name, p in made.named_parameters()}


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("case", "tokens", "count", "top_k", "hidden", "width"),
    [
        ("random", 96, 8, 2, 64, 32),
        ("few", 33, 16, 3, 64, 32),
        ("random", 1, 8, 2, 64, 32),
        ("random", 64, 8, 8, 96, 48),
    ],
)
def test_equal_to_the_eager_loop(device, dtype, case, tokens, count, top_k, hidden, width) -> None:
    """Against every expert in a loop, in float64, on values that the dtype can hold."""
    kind = getattr(torch, dtype)
    made = block(count, hidden, width).to(kind).double()  # weights that bf16 can hold, exact in all three
    draw = torch.Generator().manual_seed(2)
    x, grad = (torch.randn(tokens, hidden, generator=draw).to(kind).double() for _ in range(2))
    weights = torch.rand(tokens, top_k, generator=draw).to(kind).double()
    index = routing(case, tokens, count, top_k)
    expected = outputs_and_gradients(type(made).forward, made, x, index, weights, grad)
    made = made.to(device, kind)
    given = [value.to(device, kind) for value in (x, weights, grad)]
    found = outputs_and_gradients(experts.experts_forward, made, given[0], index.to(device), given[1], given[2])
    limit = 1e-5 if dtype == "float32" else (1e-2 if tokens > 1 else 3e-2)  # few values: their rounding shows
    for name, value in expected.items():
        assert relative_error(found[name].cpu(), value) < limit, name
        if value.dim() == 3:  # an expert without tokens has no gradient, not an unwritten one
            empty = [e for e in range(count) if e not in index.unique()]
            assert found[name][empty].abs().sum() == 0, name
