"""The benchmark of a colocated vLLM, with a receiver in place of vLLM: it finds what is put into the receiver."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from test_vllm_rollouts import Engine, installed  # noqa: F401  a fixture

from agentworld.train import engine, kernels, model
from agentworld.train.compose import compose
from bench import routing_noise
from bench import vllm_rollouts as bench
from bench.random_policy import drawn, random_tokenizer, random_trainer

TINY = {"prompts": 4, "generations": 2, "longest_prompt": 24, "new_tokens": 8, "fixed": 2, "greedy_tokens": 4}
TINY_WIDTHS = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_attention_heads": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip


class Vllm(Engine):
    """An engine in bfloat16 whose log-probabilities are `offset` too high, of prompts and of samples."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.model.to(torch.bfloat16)
        self.offset = 0.25

    def generate(self, prompts, sampling_params, use_tqdm) -> list:
        asked = vars(sampling_params)
        if "prompt_logprobs" in asked:
            return [SimpleNamespace(prompt_logprobs=self.prompt(row["prompt_token_ids"])) for row in prompts]
        if asked["temperature"] > 0:
            return super().generate(prompts, sampling_params, use_tqdm)
        rows = [self.greedy(row["prompt_token_ids"], asked["max_tokens"]) for row in prompts]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in rows]

    def prompt(self, ids: list[int]) -> list:
        found = zip(ids[1:], self.log_probs(ids[:1], ids[1:]), strict=True)
        return [None, *({token: SimpleNamespace(logprob=value)} for token, value in found)]

    @torch.no_grad()
    def greedy(self, ids: list[int], count: int) -> list[int]:
        for _ in range(count):
            ids = [*ids, int(self.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())]
        return ids[-count:]


def test_the_benchmark_finds_what_differs(tmp_path, installed, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("trl.generation.vllm_generation.LLM", Vllm, raising=False)
    module = ModuleType("vllm")
    module.SamplingParams = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(bench.WIDTHS, "tiny", TINY_WIDTHS)
    config = compose(bench.overrides("tiny", TINY))
    engine.start_rank(config.engine)
    kernels.install()
    trainer = random_trainer(config, tmp_path, TINY)
    found = bench.watched(trainer, {"sizes": TINY, "repeats": 1})
    assert [row["updates"] for row in found["updates"]] == [0, 1, 2, 3]
    for row in found["updates"]:
        assert row["vllm-training"]["sequence_mean"] == pytest.approx(0.25, abs=0.02)
        assert row["training-float32"]["token_mean"] < 0.03
    moved = [row["training-training before"]["token_mean"] for row in found["updates"][1:]]
    assert min(moved) > 0.004, "the model learns, and more than rounding"
    for row in found["rollouts"]:
        assert row["vllm-training"]["sequence_mean"] == pytest.approx(0.25, abs=0.05)
        assert row["tokens"] <= 4 * 2 * 8
    assert found["greedy"]["tokens"] == 8 and len(found["tokens_per_s"]["vllm"]) == 1


def test_forced_routes_are_taken(monkeypatch) -> None:
    """The float32 model with its own routes is itself; with a shuffled choice of experts it is not."""
    monkeypatch.setitem(bench.WIDTHS, "tiny", TINY_WIDTHS)
    kernels.restore()
    found = routing_noise.measure("tiny", 1, 24)
    assert len(found["tokens_routed_otherwise"]) == 4
    tokenizer = random_tokenizer()
    policy = model.build(compose(bench.overrides("tiny", TINY)).model, tokenizer, seed=0).float()
    ids = drawn(tokenizer, (1, 24), torch.Generator().manual_seed(1))
    with routing_noise.routes() as own:
        free = routing_noise.log_probs(policy, ids)
    with routing_noise.routes(own) as again:
        assert torch.equal(routing_noise.log_probs(policy, ids), free)
    assert [routing_noise.other_experts(*pair) for pair in zip(own, again, strict=True)] == [0.0] * 4
    others = [(logits, weights, (experts + 1) % 4) for logits, weights, experts in own]
    with routing_noise.routes(others):
        assert not torch.allclose(routing_noise.log_probs(policy, ids), free)
    assert 0 < routing_noise.other_experts(own[0], others[0]) <= 1
