"""The benchmark of vLLM, with receivers in place of vLLM: it finds what is put into them."""

import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from ranks import on_ranks
from test_vllm_rollouts import Client, Engine, installed, receiving  # noqa: F401  a fixture
from trl.generation import vllm_generation

from agentworld.train import engine, kernels, model
from agentworld.train.compose import compose
from bench import routing_noise, vllm_watch
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


class Server(Client):
    """A server in bfloat16 whose log-probabilities are `offset` too high, of prompts and of samples."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.offset = 0.25

    def get_sequence_logprobs(self, sequences, prompt_lengths, top_logprobs) -> dict:
        assert prompt_lengths == [1] * len(sequences)
        return {"actual_logprobs": [[[p] for p in self.log_probs(ids[:1], ids[1:])] for ids in sequences]}


def in_place_of_vllm() -> None:
    """For a process that runs a case and ends."""
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm"].SamplingParams = vllm_generation.SamplingParams = SimpleNamespace
    vllm_generation.LLM, vllm_generation.is_vllm_available = Vllm, lambda: True
    bench.WIDTHS["tiny"] = TINY_WIDTHS


def finds_what_was_put_in(found: dict, samples: int) -> None:
    assert [row["updates"] for row in found["updates"]] == [0, 1, 2, 3]
    for row in found["updates"]:
        assert row["vllm-training"]["sequence_mean"] == pytest.approx(0.25, abs=0.02)
        assert row["training-float32"]["token_mean"] < 0.03
    moved = [row["training-training before"]["token_mean"] for row in found["updates"][1:]]
    assert min(moved) > 0.004, "the model learns, and more than rounding"
    for row in found["rollouts"]:
        assert row["vllm-training"]["sequence_mean"] == pytest.approx(0.25, abs=0.05)
        assert samples < row["tokens"] <= samples * 8


@pytest.mark.parametrize("name", ["state-float32", "server"])
def test_the_benchmark_finds_what_differs(tmp_path, installed, monkeypatch, name) -> None:  # noqa: F811
    monkeypatch.setattr(vllm_generation, "LLM", Vllm, raising=False)
    monkeypatch.setattr(vllm_generation, "VLLMClient", Server)
    module = ModuleType("vllm")
    module.SamplingParams = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(bench.WIDTHS, "tiny", TINY_WIDTHS)
    monkeypatch.setattr(Server, "longest", TINY["longest_prompt"] + TINY["new_tokens"])
    address = ["rl.rollout.server_base_url=http://host:9"] if name == "server" else []
    config = compose(bench.overrides("tiny", TINY, [*bench.CASES[name].keys, *address]))
    engine.start_rank(config.engine)
    kernels.install()
    trainer = random_trainer(config, tmp_path, TINY)
    if name == "server":
        receiving(Server.made, trainer).model.to(torch.bfloat16)
    found = vllm_watch.watched(trainer, {"sizes": TINY, "repeats": 1})
    finds_what_was_put_in(found, samples=4 * 2)
    assert len(found["tokens_per_s"]["vllm"]) == len(found["tokens_per_s"]["transformers"]) == 1
    if name == "server":
        assert found["greedy"] is None and Server.made.settings[0] == "http://host:9"
    else:
        assert found["greedy"]["tokens"] == 8


RANKS = """
import sys
sys.path[:0] = [FOLDER, f"{FOLDER}/.."]
import test_vllm_bench as case
from bench import vllm_rollouts, vllm_watch

case.in_place_of_vllm()
vllm_watch.machine, vllm_watch.version = lambda gpu: {}, lambda name: "none"
result = vllm_watch.measure({"case": "tensor-parallel", "widths": "tiny", "sizes": case.TINY, "repeats": 0, "ranks": 2,
    "keys": list(vllm_rollouts.CASES["tensor-parallel"].keys), "options": {}, "folder": OUT})
"""


def test_the_benchmark_runs_on_two_ranks(tmp_path) -> None:
    """ZeRO-3, the experts over both ranks, one vLLM over both: what both ranks find is the same."""
    given = f"FOLDER, OUT = {str(Path(__file__).parent)!r}, {str(tmp_path)!r}\n"
    first, second = on_ranks(2, given + RANKS, tmp_path, timeout=600)
    for found in (first, second):
        finds_what_was_put_in(found, samples=4 * 2)
        assert found["tokens_per_s"] is None and found["greedy"]["tokens"] == 8
    for one, other in zip(first["updates"], second["updates"], strict=True):
        assert one["training-float32"] == other["training-float32"]


def test_the_documented_command_starts_the_server_of_the_benchmark() -> None:
    """docs/rollouts.md and the benchmark start a server with the same flags."""
    text = (Path(__file__).parents[1] / "docs" / "rollouts.md").read_text().replace("\\\n", " ")
    command = next(line for line in text.splitlines() if "vllm serve" in line and line.startswith("VLLM_SERVER"))
    words = shlex.split(command)
    assert words[:3] == ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve"]
    flags = words[words.index("--max-model-len") + 2 :]
    assert flags == list(bench.SERVER_FLAGS)


def test_forced_routes_are_taken(monkeypatch) -> None:
    """The float32 model with its own routes is itself; with a shuffled choice of experts it is not."""
    monkeypatch.setitem(bench.WIDTHS, "tiny", TINY_WIDTHS)
    kernels.restore()
    found = routing_noise.measure("tiny", 1, 24)
    assert len(found["tokens_routed_otherwise"]) == 4
    tokenizer = random_tokenizer()
    policy = model.build(compose(bench.overrides("tiny", TINY, bench.COLOCATED)).model, tokenizer, seed=0).float()
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
