"""Packed rows: documents do not see each other (fault 1), forward and backward, through the whole model."""

import pytest
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from agentworld.train import experts, fused_layers, kernels, model
from agentworld.train.config import ArchitectureSettings, ModelSettings

LENGTHS = (70, 3, 93, 64, 1)


class VocabularyOf256:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return 256


@pytest.fixture(scope="module")
def tiny():
    kernels.install()
    architecture = ArchitectureSettings(hidden_size=64, moe_intermediate_size=32, shared_expert_intermediate_size=32)
    return model.build(ModelSettings(dtype="float32", architecture=architecture), VocabularyOf256(), seed=0).eval()


def documents(seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 256, (1, length), generator=draw) for length in LENGTHS]


def packed_arguments(parts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    lengths = [part.shape[1] for part in parts]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": torch.cat([torch.full((length,), i) for i, length in enumerate(lengths)])[None].to(torch.int32),
        "use_cache": False,
    }


def packed_logits(tiny, parts: list[torch.Tensor]) -> torch.Tensor:
    return tiny(input_ids=torch.cat(parts, 1), **packed_arguments(parts)).logits


def test_packed_equals_alone(tiny) -> None:
    parts = documents(0)
    with torch.no_grad():
        logits = packed_logits(tiny, parts)
        start = 0
        for part in parts:
            alone = tiny(input_ids=part, use_cache=False).logits
            torch.testing.assert_close(logits[:, start : start + part.shape[1]], alone, atol=1e-5, rtol=0)
            start += part.shape[1]


def test_changing_a_document_changes_nothing_in_the_others(tiny) -> None:
    parts = documents(0)
    other = [documents(1)[0], *parts[1:]]
    with torch.no_grad():
        before, after = packed_logits(tiny, parts), packed_logits(tiny, other)
    assert torch.equal(before[:, LENGTHS[0] :], after[:, LENGTHS[0] :])
    assert not torch.equal(before[:, : LENGTHS[0]], after[:, : LENGTHS[0]])


def test_gradient_stays_in_its_document(tiny) -> None:
    parts = documents(0)
    embedded = tiny.model.embed_tokens(torch.cat(parts, 1)).detach().requires_grad_()
    logits = tiny(inputs_embeds=embedded, **packed_arguments(parts)).logits
    second, third = LENGTHS[0], LENGTHS[0] + LENGTHS[1]
    logits[:, second:third].pow(2).mean().backward()
    assert embedded.grad[:, second:third].abs().sum() > 0
    assert embedded.grad[:, :second].abs().max() == 0
    assert embedded.grad[:, third:].abs().max() == 0


def test_gradients_of_packed_rows_equal_those_of_single_documents(tiny) -> None:
    parts = documents(0)
    tiny.zero_grad()
    packed_logits(tiny, parts).pow(2).sum().backward()
    packed = {name: p.grad.clone() for name, p in tiny.named_parameters() if p.grad is not None}
    tiny.zero_grad()
    for part in parts:
        tiny(input_ids=part, use_cache=False).logits.pow(2).sum().backward()
    for name, parameter in tiny.named_parameters():
        if parameter.grad is not None:
            scale = parameter.grad.abs().max().clamp(min=1e-6)
            assert (packed[name] - parameter.grad).abs().max() / scale < 1e-3, name
    tiny.zero_grad()


def test_stock_fallback_refuses_packed_rows() -> None:
    """The day transformers' own fallback keeps documents apart, this module can shrink."""
    stock = kernels._reference_delta_rule
    x = torch.zeros(1, 4, 2, 8)
    gate = torch.zeros(1, 4, 2)
    with pytest.raises(ValueError, match="packed sequences apart"):
        stock(x, x, x, g=gate, beta=gate, cu_seqlens=torch.tensor([0, 2, 4]))


def test_convolution_refuses_boundaries_without_document_numbers() -> None:
    with pytest.raises(ValueError, match="documents would leak"):
        kernels.causal_conv1d_packed(
            torch.zeros(1, 2, 4), torch.zeros(2, 4), cu_seq_lens_q=torch.tensor([0, 2, 4], dtype=torch.int32)
        )


def test_convolution_against_a_naive_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 9, generator=draw, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    document = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2]])
    expected = torch.zeros_like(x)
    for t in range(9):
        for k in range(4):
            source = t - 3 + k
            if source >= 0 and document[0, source] == document[0, t]:
                expected[0, :, t] += weight[:, k] * x[0, :, source]
    found = kernels.causal_conv1d_packed(x, weight, activation=None, seq_idx=document)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_install_reports_what_is_in_use_and_restore_undoes_it() -> None:
    in_use = kernels.install()
    assert in_use == kernels.install()
    assert {"device", "delta_rule", "convolution", "experts", "router", "norms", "attention"} <= set(in_use)
    assert ALL_EXPERTS_FUNCTIONS["grouped_mm"] is experts.experts_forward
    if "torch" in in_use["delta_rule"]:
        assert modeling.torch_chunk_gated_delta_rule is kernels.chunk_gated_delta_rule_packed
    kernels.restore()
    assert modeling.causal_conv1d_fn is kernels._reference_convolution
    assert modeling.torch_chunk_gated_delta_rule is kernels._reference_delta_rule
    assert ALL_EXPERTS_FUNCTIONS["grouped_mm"] is experts._stock_implementation
    assert modeling.Qwen3_5MoeRMSNorm.forward is fused_layers._norm
    kernels.install()


def test_slow_parts_are_named_on_a_gpu_only() -> None:
    """Fault 29: without fla a GPU runs Gated DeltaNet in plain torch, and says so."""
    slow = {"device": "NVIDIA H200", "delta_rule": "torch, documents as a padded batch", "norms": "transformers"}
    fast = {"device": "NVIDIA H200", "delta_rule": "fla", "experts": "grouped_mm, Triton rows", "attention": "sdpa"}
    assert kernels.slow_parts(slow) == ["delta_rule", "norms"]
    assert kernels.slow_parts(fast) == []
    assert kernels.slow_parts(slow | {"device": "cpu"}) == []


def test_model_with_our_experts_equals_plain_transformers(tiny) -> None:
    """Loss and every gradient of the whole model in fp32, on one unpacked batch."""
    ids = torch.cat([part for part in documents(3) if part.shape[1] > 60], 1)[:, :192].view(2, 96)
    found = []
    for put in (kernels.restore, kernels.install):
        put()
        tiny.zero_grad()
        loss = tiny(input_ids=ids, labels=ids, use_cache=False, output_router_logits=True).loss
        loss.backward()
        found.append((loss.detach(), {name: p.grad.clone() for name, p in tiny.named_parameters()}))
    tiny.zero_grad()
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-6)
    for name, expected in found[0][1].items():
        assert (found[1][1][name] - expected).norm() <= 1e-5 * expected.norm().clamp(min=1e-6), name
