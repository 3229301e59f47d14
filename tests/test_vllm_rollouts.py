"""Rollouts by vLLM, against receivers that stand in for it: what is sent is what the training engine computes with.

vLLM itself is not run here. The receivers take tensors by name, as its loader of the released checkpoint does
(vllm/model_executor/models/qwen3_5.py), into a plain model of transformers, and sample from that.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ranks import on_ranks
from test_gspo import made_trainer
from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForCausalLM
from trl.generation import vllm_generation

from agentworld.data.errors import RequestError
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import export, model, vllm_rollouts
from agentworld.train.config import Config, RolloutSettings
from agentworld.train.gspo import GspoTrainer

END = 3


class Receiver:
    """A plain model that gets its weights as vLLM would, and what was asked of it."""

    def __init__(self) -> None:
        self.model: Qwen3_5MoeForCausalLM | None = None
        self.calls: list[str] = []
        self.offset = 0.0  # added to the log-probabilities that are reported: vLLM's differ from the trainer's
        self.sampled: list[dict] = []

    def load_weights(self, tensors) -> None:
        """Names of the released layout only, each of the shape that the plain model has."""
        own = dict(self.model.named_parameters())
        for name, tensor in tensors:
            assert name == "lm_head.weight" or name.startswith("model.language_model."), name
            target = own[name.replace("model.language_model.", "model.")]
            assert target.shape == tensor.shape and target.dtype == tensor.dtype, name
            target.data.copy_(tensor)
            self.received.add(name)

    @torch.no_grad()
    def sample(self, prompts: list[list[int]], tokens: int, stop: list[int]) -> list[list[int]]:
        found = []
        for prompt in prompts:
            ids = list(prompt)
            for _ in range(tokens):
                logits = self.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                ids.append(int(torch.multinomial(logits.softmax(-1), 1)))
                if ids[-1] in stop:
                    break
            found.append(ids[len(prompt) :])
        return found

    @torch.no_grad()
    def log_probs(self, prompt: list[int], completion: list[int]) -> list[float]:
        logits = self.model(torch.tensor([prompt + completion]), use_cache=False).logits[0]
        rows = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        return [rows[t, token].item() + self.offset for t, token in enumerate(completion)]


class Client(Receiver):
    """In place of `trl.generation.vllm_client.VLLMClient`; `made` is the last one."""

    made: "Client"
    longest = 18  # tokens of a sequence

    def __init__(self, base_url: str, group_port: int, connection_timeout: float) -> None:
        super().__init__()
        self.settings = (base_url, group_port, connection_timeout)
        Client.made = self

    def init_communicator(self, device) -> None:
        self.calls.append("init_communicator")

    def get_server_info(self) -> dict:
        return {"model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": self.longest}}

    def update_named_params(self, metadata, tensors) -> None:
        self.calls.append("update")
        self.received = set()
        announced = iter(metadata)

        def checked():
            for name, tensor in tensors:
                assert next(announced) == (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
                yield name, tensor

        self.load_weights(list(checked()))  # TRL's client packs several before it sends them
        assert next(announced, None) is None and len(self.received) == len(list(self.model.named_parameters()))

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def generate(self, prompts, features, n, max_tokens, logprobs, generation_kwargs, **sampling) -> dict:
        self.calls.append("generate")
        self.sampled.append(generation_kwargs | sampling | {"n": n})
        repeated = [prompt for prompt in prompts for _ in range(n)]
        completions = self.sample(repeated, max_tokens, generation_kwargs["stop_token_ids"])
        log_probs = [[[p] for p in self.log_probs(*pair)] for pair in zip(repeated, completions, strict=True)]
        return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": log_probs}


class Engine(Receiver):
    """In place of `vllm.LLM`: reads the configuration of the directory that it is started from."""

    made: "Engine"

    def __init__(self, **options) -> None:
        super().__init__()
        self.options = options
        self.received = set()
        config = Qwen3_5MoeConfig.from_pretrained(options["model"])
        self.model = Qwen3_5MoeForCausalLM(config.text_config).eval()
        runner = SimpleNamespace(model=self)
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=worker)
        Engine.made = self

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def wake_up(self, tags: list[str]) -> None:
        self.calls += [f"wake {tag}" for tag in tags]

    def sleep(self, level: int) -> None:
        self.calls.append("sleep")

    def generate(self, prompts, sampling_params, use_tqdm) -> list:
        self.calls.append("generate")
        options = vars(sampling_params)
        self.sampled.append(options)
        found = []
        for prompt in (row["prompt_token_ids"] for row in prompts):
            [ids] = self.sample([prompt], options["max_tokens"], options["stop_token_ids"])
            rows = [
                {i: SimpleNamespace(logprob=p, rank=1)} for i, p in zip(ids, self.log_probs(prompt, ids), strict=True)
            ]
            found.append(
                SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=ids, logprobs=rows)])
            )
        return found


@pytest.fixture()
def installed(monkeypatch) -> None:
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "VLLMClient", Client)
    monkeypatch.setattr(vllm_generation, "LLM", Engine, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SimpleNamespace, raising=False)
    monkeypatch.setattr(vllm_generation, "empty_cache", lambda: None)


def vllm_config(engine: str, **rollout) -> Config:
    config = Config()
    config.data.rl_prompt_tokens, config.rl.max_completion_tokens = 12, 6
    config.rl.rollout = RolloutSettings(engine=engine, **rollout)
    return config


def vllm_arguments(config: Config) -> dict:
    return vllm_rollouts.arguments(config, END)


def colocated(directory: Path | None):
    return functools.partial(GspoTrainer, vllm_directory=directory)


def logits_differ_by(plain, trained) -> float:
    ids = torch.randint(5, 250, (2, 20), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return (plain(ids, use_cache=False).logits - trained.eval()(ids, use_cache=False).logits).abs().max().item()


def compared_after_each_update(receiver, trainer) -> list[float]:
    """Train; after each sync, the largest difference of the receiver's logits from the trainer's, which has learnt."""
    differences, sync = [], trainer.vllm_generation.sync_weights

    def watched() -> None:
        assert not differences or logits_differ_by(receiver.model, trainer.model) > 1e-4
        sync()
        differences.append(logits_differ_by(receiver.model, trainer.model))
        trainer.model.train()

    trainer.vllm_generation.sync_weights = watched
    trainer.train()
    return differences


def receiving(client: Client, trainer) -> Client:
    client.model = Qwen3_5MoeForCausalLM(trainer.model.config).eval()
    return client


def test_a_server_gets_the_weights_of_each_rollout(tmp_path, installed) -> None:
    """Two rollouts of two steps: what is received equals the trainer, and old log-probabilities are the trainer's."""
    config = vllm_config("vllm_server", server_base_url="http://host:9", group_port=4, server_timeout=2.0)
    olds: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    trainer = made_trainer(tmp_path, max_steps=4, steps_per_generation=2, **vllm_arguments(config))
    client = receiving(Client.made, trainer)
    client.offset = 0.05  # the sampler's own log-probabilities are off by so much
    score = trainer._generate_and_score_completions

    def watched(inputs):
        out = score(inputs)
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
        with torch.no_grad():
            own, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, mask, out["completion_ids"].size(1)
            )
        kept = out["completion_mask"].bool()
        olds.append((out["old_per_token_logps"][kept], own[kept], out["sampling_per_token_logps"][kept]))
        lengths = out["completion_mask"].sum(1, keepdim=True)
        weights = torch.exp(-client.offset * lengths)
        assert torch.allclose(out["importance_sampling_ratio"], weights, atol=1e-4), "training over sampling"
        return out

    trainer._generate_and_score_completions = watched
    differences = compared_after_each_update(client, trainer)
    assert client.settings == ("http://host:9", 4, 2.0)
    assert client.calls == ["init_communicator", *["update", "reset", "generate"] * 2]
    assert len(differences) == 2 and max(differences) < 1e-5
    assert client.sampled[0]["stop_token_ids"] == [END] and client.sampled[0]["n"] == 4
    for old, own, sampled in olds:
        assert torch.allclose(old, own, atol=1e-6)
        assert torch.allclose(old, sampled - client.offset, atol=1e-5)


def test_without_the_correction_old_log_probabilities_are_still_the_trainers(tmp_path, installed) -> None:
    config = vllm_config("vllm_server", importance_sampling_correction=False)
    trainer = made_trainer(tmp_path, max_steps=1, steps_per_generation=2, **vllm_arguments(config))
    client = receiving(Client.made, trainer)
    client.offset = 0.05
    seen = []
    score = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: seen.append(score(inputs)) or seen[-1]
    trainer.train()
    [out] = seen
    kept = out["completion_mask"].bool()
    gap = (out["sampling_per_token_logps"] - out["old_per_token_logps"])[kept]
    assert torch.allclose(gap, torch.full_like(gap, 0.05), atol=1e-5)
    assert "importance_sampling_ratio" not in out


def test_a_server_with_a_short_context_is_refused(tmp_path, installed, monkeypatch) -> None:
    monkeypatch.setattr(Client, "longest", 17)
    with pytest.raises(RequestError, match=r"takes 17 tokens, .* are 18: start it with --max-model-len 18"):
        made_trainer(tmp_path, steps_per_generation=2, **vllm_arguments(vllm_config("vllm_server")))


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_colocated_engine_starts_from_the_released_layout_and_gets_the_weights(tmp_path, installed, sleeps) -> None:
    config = vllm_config("vllm_colocate", enable_sleep_mode=sleeps, gpu_memory_utilization=0.4)
    tokenizer = train_tokenizer(["echo apple\n", "cat a.txt\n"], 300)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    plain = made_trainer(tmp_path).model
    (tmp_path / "parent").mkdir()
    export.write_safetensors(plain, plain.config, tmp_path / "parent", shard_bytes=60_000)
    config.model.dtype = "float32"
    place = (config, tmp_path / "parent", tmp_path / "rl", tmp_path / "tokenizer")
    started = vllm_rollouts.directory(*place)
    before = {path.name: path.stat().st_mtime_ns for path in started.iterdir()}
    assert started == tmp_path / "rl" / "vllm_model" and "tokenizer.json" in before
    assert vllm_rollouts.directory(*place) == started
    assert before == {path.name: path.stat().st_mtime_ns for path in started.iterdir()}, "made once"
    assert vllm_rollouts.directory(config, started, *place[2:]) == started, "released already"
    stored = json.loads((started / "config.json").read_text())
    assert stored["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    assert logits_differ_by(model.load(started, "float32"), plain) == 0.0

    arguments = vllm_arguments(config)
    trainer = made_trainer(tmp_path, max_steps=4, steps_per_generation=2, trainer_class=colocated(started), **arguments)
    assert vllm_generation.LLM is Engine
    engine = Engine.made
    options = {"model": str(started), "language_model_only": True, "gdn_prefill_backend": "triton"}
    options |= {"mamba_ssm_cache_dtype": "float32", "gpu_memory_utilization": 0.4, "max_model_len": 18}
    assert {name: engine.options[name] for name in options} == options
    differences = compared_after_each_update(engine, trainer)
    assert max(differences) < 1e-5 and engine.sampled[0]["stop_token_ids"] == [END]
    assert len(differences) == 2 and "seed" not in engine.sampled[0], (
        "one seed would make all samples of a prompt equal"
    )
    assert engine.calls.count("sleep") == (3 if sleeps else 0) and engine.calls.count("generate") == 2


RANKS = """
import sys
sys.path.insert(0, FOLDER)
from pathlib import Path
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import Qwen3_5MoeForCausalLM
from trl.generation import vllm_generation
from trl.models.utils import unwrap_model_for_generation
import test_vllm_rollouts as case
from test_gspo import made_trainer
from agentworld.train import engine, export, kernels
from agentworld.train.config import EngineSettings, ModelSettings

kernels.install()
vllm_generation.is_vllm_available = lambda: True
vllm_generation.VLLMClient, vllm_generation.LLM = case.Client, case.Engine
vllm_generation.SamplingParams = case.SimpleNamespace
result = {}
for stage, degree, kind in CASES:
    settings = EngineSettings(zero_stage=stage, expert_parallel=degree, device="cpu")
    engine.start_rank(settings)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    trainer = made_trainer(
        Path(OUT), per_device_train_batch_size=2, steps_per_generation=2, max_steps=4,
        trainer_class=case.colocated(Path(OUT) / "released" if kind == "vllm_colocate" else None),
        deepspeed=engine.deepspeed_config(settings, ModelSettings(dtype="float32")),
        **case.vllm_arguments(case.vllm_config(kind)),
    )
    own = kind == "vllm_colocate" or engine.rank() == 0
    if own:
        receiver = case.Engine.made if kind == "vllm_colocate" else case.receiving(case.Client.made, trainer)
    differences, sync = [], trainer.vllm_generation.sync_weights
    def watched():
        sync()
        ids = torch.randint(5, 250, (2, 20), generator=torch.Generator().manual_seed(3))
        # As TRL samples: without the hooks of ZeRO-3, which would learn this forward pass and fetch for it again.
        with torch.no_grad(), unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as policy:
            expected = policy(ids, use_cache=False).logits
        if own:
            with torch.no_grad():
                difference = (receiver.model(ids, use_cache=False).logits - expected).abs().max().item()
            differences.append([difference, expected.abs().sum().item()])
    trainer.vllm_generation.sync_weights = watched
    trainer.train()
    blocks = type(trainer.model.model.layers[0].mlp).__name__
    result[f"{stage}-{degree}-{kind}"] = [blocks, differences, trainer.state.global_step]
"""


def test_the_experts_of_all_ranks_arrive(tmp_path) -> None:
    """Two gloo ranks: the first sends for all to a server; each feeds the engine in its own process."""
    plain = made_trainer(tmp_path).model
    (tmp_path / "released").mkdir()
    export.write_safetensors(plain, plain.config, tmp_path / "released", layout="release")
    cases = [(3, 1, "vllm_server"), (1, 2, "vllm_server"), (3, 2, "vllm_colocate")]
    given = f"FOLDER, OUT, CASES = {str(Path(__file__).parent)!r}, {str(tmp_path)!r}, {cases!r}\n"
    first, second = on_ranks(2, given + RANKS, tmp_path, timeout=600)
    for (_, degree, kind), case in zip(cases, first, strict=True):
        for rank, found in enumerate((first[case], second[case])):
            blocks, differences, steps = found
            assert (blocks == "AutoEPMoELayer") == (degree > 1) and steps == 4, case
            assert len(differences) == (2 if kind == "vllm_colocate" or rank == 0 else 0), (case, rank)
            assert all(difference < 1e-5 for difference, _ in differences), (case, rank, differences)
            assert len({total for _, total in differences}) == len(differences), "the second rollout has other weights"
