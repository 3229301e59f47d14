"""The GPU kernels that replace transformers' layers: equal outputs and gradients, and packed documents stay apart."""

import pytest
import torch
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from agentworld.train import fused_layers, kernels, router

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
PACKINGS = {
    "one": [256],
    "sixty-four": [4] * 64,
    "single tokens": [1] * 37 + [90, 1, 1, 127],
    "uneven": [70, 3, 93, 64, 1],
}


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request) -> torch.dtype:
    return request.param


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to("cuda", dtype).requires_grad_()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)).item()


def assert_equal(found, expected, inputs: list[torch.Tensor], limit: float) -> None:
    """Outputs and gradients with respect to all `inputs` (the same random gradient of the output on both sides). The
    expected side runs on the fp32 copies of the inputs."""
    wide = [x.detach().float().requires_grad_() for x in inputs]
    ys, zs = found(*inputs), expected(*wide)
    for y, z in zip(ys, zs, strict=True):
        assert y.dtype == inputs[0].dtype
        assert relative_error(y, z) < limit
    grads = [torch.randn_like(z) for z in zs]
    found_grads = torch.autograd.grad(ys, inputs, [g.to(y.dtype) for g, y in zip(grads, ys, strict=True)])
    expected_grads = torch.autograd.grad(zs, wide, [g.to(y.dtype).float() for g, y in zip(grads, ys, strict=True)])
    for number, (a, b) in enumerate(zip(found_grads, expected_grads, strict=True)):
        assert relative_error(a, b) < limit, f"gradient of input {number}"


def with_weight(layer: torch.nn.Module, forward, weight: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    del layer.weight
    layer.weight = weight
    return forward(layer, *inputs)


@pytest.mark.parametrize(("rows", "width"), [(513, 2048), (300, 256)])
def test_norms(dtype, rows, width) -> None:
    def run(kind, forward):
        return lambda weight, *inputs: [with_weight(kind(width).cuda(), forward, weight, *inputs)]

    x, gate, weight = draw(rows, width, dtype=dtype), draw(rows, width, seed=1, dtype=dtype), draw(width, dtype=dtype)
    plain = modeling.Qwen3_5MoeRMSNorm
    assert_equal(run(plain, fused_layers.norm), run(plain, fused_layers._norm), [weight, x], LIMIT[dtype])
    gated = modeling.Qwen3_5MoeRMSNormGated
    forwards = fused_layers.gated_norm, fused_layers._gated_norm
    assert_equal(run(gated, forwards[0]), run(gated, forwards[1]), [weight, x, gate], LIMIT[dtype])


@pytest.mark.parametrize(("tokens", "count", "top_k"), [(513, 256, 8), (13, 24, 3)])
def test_router(tokens, count, top_k) -> None:
    """fp32 logits have no ties, so the experts must be the same ones in the same order."""
    config = Qwen3_5MoeTextConfig(hidden_size=64, num_experts=count, num_experts_per_tok=top_k)

    def run(forward):
        return lambda weight, x: forward(with_router_weight(config, weight), x)

    x, weight = draw(tokens, 64), draw(count, 64, seed=1)
    found, expected = run(router.router)(weight, x), run(router._stock_router)(weight, x)
    assert torch.equal(found[2], expected[2])
    assert_equal(
        lambda *i: run(router.router)(*i)[1:2], lambda *i: run(router._stock_router)(*i)[1:2], [weight, x], 1e-5
    )


def with_router_weight(config, weight: torch.Tensor) -> torch.nn.Module:
    made = modeling.Qwen3_5MoeTopKRouter(config).cuda()
    del made.weight
    made.weight = weight
    return made


def test_shared_expert(dtype) -> None:
    config = Qwen3_5MoeTextConfig(hidden_size=64)

    def run(forward):
        def layer(gate, up, down, x):
            made = modeling.Qwen3_5MoeMLP(config, 48).cuda()
            for name, value in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
                del getattr(made, name).weight
                getattr(made, name).weight = value
            return [forward(made, x)]

        return layer

    weights = [draw(48, 64, seed=1, dtype=dtype), draw(48, 64, seed=2, dtype=dtype), draw(64, 48, seed=3, dtype=dtype)]
    inputs = [(w * 0.1).detach().requires_grad_() for w in weights] + [draw(77, 64, dtype=dtype)]
    assert_equal(run(fused_layers.mlp), run(fused_layers._mlp), inputs, LIMIT[dtype])


def test_rotary_with_other_positions_in_each_row(dtype) -> None:
    angles = torch.rand(2, 33, 16, device="cuda") * 6
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    q, k = (draw(2, 33, heads, 64, seed=heads, dtype=dtype) for heads in (4, 2))

    def run(rotate):
        return lambda q, k: rotate(q.transpose(1, 2), k.transpose(1, 2), cos.to(q.dtype), sin.to(q.dtype))

    assert_equal(run(fused_layers.rotary), run(fused_layers._rotary), [q, k], LIMIT[dtype])


def packing(lengths: list[int]) -> dict:
    bounds = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
    number = torch.repeat_interleave(torch.tensor(lengths))[None].to("cuda", torch.int32)
    return {"cu_seq_lens_q": bounds, "seq_idx": number}


@pytest.mark.parametrize("lengths", PACKINGS.values(), ids=PACKINGS.keys())
def test_convolution_of_packed_rows(dtype, lengths) -> None:
    arguments = packing(lengths)
    x, weight = draw(1, sum(lengths), 96, dtype=dtype), draw(96, 4, seed=1, dtype=dtype)

    def run(arguments, fused):
        def convolution(x, weight):
            y = kernels.causal_conv1d_packed(x.transpose(1, 2), weight, None, "silu", **arguments, fused=fused)
            return [y.transpose(1, 2)]

        return convolution

    assert_equal(run(arguments, True), run(arguments, False), [x, weight], LIMIT[dtype])
    rows = draw(3, 50, 96, seed=2, dtype=dtype)  # not packed: a document a row
    assert_equal(run({}, True), run({}, False), [rows, weight], LIMIT[dtype])


@pytest.mark.parametrize("lengths", PACKINGS.values(), ids=PACKINGS.keys())
def test_attention_of_packed_rows(lengths) -> None:
    """Against attention through the full mask, in fp32."""
    total = sum(lengths)
    arguments = packing(lengths)
    number = arguments["seq_idx"][0]
    mask = (number[:, None] == number[None, :]) & torch.ones(total, total, device="cuda").tril().bool()
    config = Qwen3_5MoeTextConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=256)
    config._attn_implementation = "sdpa"
    module = modeling.Qwen3_5MoeAttention(config, 3)
    rows = [draw(1, heads, total, 256, seed=heads + i, dtype=torch.bfloat16) for i, heads in enumerate((4, 2, 2))]
    options = {"scaling": 256**-0.5, "cu_seq_lens_q": arguments["cu_seq_lens_q"], "max_length_q": max(lengths)}

    def packed(q, k, v):
        return [fused_layers.packed_attention(module, q, k, v, None, **options)[0]]

    def masked(q, k, v):
        return [fused_layers._sdpa(module, q, k, v, mask[None, None], scaling=options["scaling"])[0]]

    assert_equal(packed, masked, rows, LIMIT[torch.bfloat16])


def test_attention_refuses_a_packed_row_that_nothing_keeps_apart() -> None:
    config = Qwen3_5MoeTextConfig(head_dim=64)
    config._attn_implementation = "sdpa"
    module = modeling.Qwen3_5MoeAttention(config, 3)
    q = draw(1, 4, 8, 64)  # fp32: no FlashAttention
    with pytest.raises(ValueError, match="documents would leak"):
        fused_layers.packed_attention(module, q, q, q, None, cu_seq_lens_q=packing([3, 5])["cu_seq_lens_q"])


@pytest.mark.parametrize("lengths", PACKINGS.values(), ids=PACKINGS.keys())
def test_whole_model_keeps_documents_apart(lengths) -> None:
    """Changing the first document changes nothing in the others, and no gradient crosses: exactly, in bf16."""
    from bench.layer_speed import TINY, build

    active = kernels.install()
    try:
        assert kernels.slow_parts(active) == []
        model = build(TINY, 4, "cuda", torch.bfloat16)
        ids = torch.randint(0, 256, (2, sum(lengths)), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        ids[1, lengths[0] :] = ids[0, lengths[0] :]
        arguments = packing(lengths) | {"max_length_q": max(lengths), "max_length_k": max(lengths), "use_cache": False}
        arguments["cu_seq_lens_k"] = arguments["cu_seq_lens_q"]
        arguments["position_ids"] = torch.cat([torch.arange(n) for n in lengths])[None].cuda()
        embedded = [model.model.embed_tokens(row[None]).detach().requires_grad_() for row in ids]
        logits = [model(inputs_embeds=x, **arguments).logits[0] for x in embedded]
        assert not torch.equal(logits[0][: lengths[0]], logits[1][: lengths[0]])
        if len(lengths) > 1:
            torch.testing.assert_close(logits[0][lengths[0] :], logits[1][lengths[0] :], atol=1e-2, rtol=0)
            logits[0][lengths[0] :].float().pow(2).sum().backward()
            assert embedded[0].grad[0, : lengths[0]].abs().max() == 0
            assert embedded[0].grad[0, lengths[0] :].abs().max() > 0
    finally:
        kernels.restore()
