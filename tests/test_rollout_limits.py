"""Rollout settings: each one reaches TRL under its name, and what cannot work is refused with the reason."""

import importlib.metadata
import json

import pytest
from test_config import SMOKE, refusal
from trl import GRPOConfig

from agentworld.data.errors import RequestError
from agentworld.train import plan, rollout_limits, vllm_memory
from agentworld.train.compose import compose
from agentworld.train.config import RolloutSettings
from agentworld.train.contradictions import validate_processes
from agentworld.train.vllm_rollouts import arguments

RELEASE = "model.export_layout=release"
SERVER, COLOCATE = "rl.rollout.engine=vllm_server", "rl.rollout.engine=vllm_colocate"
# A value other than the default of every key that vLLM's engines read, and of GRPOConfig what it becomes.
CHANGED = {
    "server_base_url": "http://judge:8001", "server_host": "10.0.0.1", "server_port": 8002, "server_timeout": 9.0,
    "group_port": 51000, "gpu_memory_utilization": 0.5, "tensor_parallel_size": 2, "max_model_length": 4000,
    "enable_sleep_mode": True, "importance_sampling_correction": False, "importance_sampling_mode": "token_mask",
    "importance_sampling_clip_max": 2.0, "importance_sampling_clip_min": 0.5,
}  # fmt: skip


def made(tmp_path, **rollout) -> GRPOConfig:
    config = compose([SMOKE])
    config.rl.rollout = RolloutSettings(**rollout)
    return GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], **arguments(config, 7))


def test_every_key_reaches_trl(tmp_path) -> None:
    assert CHANGED.keys() == rollout_limits.READ_BY.keys()
    for engine, mode in (("vllm_server", "server"), ("vllm_colocate", "colocate")):
        found = made(tmp_path, engine=engine, **CHANGED)
        assert found.use_vllm and found.vllm_mode == mode
        assert {key: getattr(found, f"vllm_{key}") for key in CHANGED} == CHANGED
    open_above = made(tmp_path, engine=engine, importance_sampling_clip_max=0.0, importance_sampling_clip_min=0.5)
    assert open_above.vllm_importance_sampling_clip_max is None, "0 is no bound"
    plain = made(tmp_path)
    assert not plain.use_vllm and plain.generation_kwargs == {"use_cache": True}


def test_the_defaults_are_those_of_trl(tmp_path) -> None:
    theirs = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    ours = made(tmp_path, engine="vllm_server")
    for key in set(CHANGED) - {"max_model_length"}:
        assert getattr(ours, f"vllm_{key}") == getattr(theirs, f"vllm_{key}"), key
    config = compose([SMOKE])
    assert ours.vllm_max_model_length == config.data.rl_prompt_tokens + config.rl.max_completion_tokens


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((SERVER, "engine.device=cpu", RELEASE), "needs GPUs, and engine.device=cpu"),
        ((COLOCATE, "engine.device=cpu"), "take rl.rollout.engine=transformers"),
        (("rl.rollout.engine=vllm",), "is not one of transformers, vllm_server, vllm_colocate"),
        (("rl.rollout.server_port=9000",), "has no effect with rl.rollout.engine=transformers; it is for vllm_server"),
        ((SERVER, RELEASE, "rl.rollout.tensor_parallel_size=2"), "tensor_parallel_size has no effect"),
        ((COLOCATE, "rl.rollout.gpu_memory_utilization=1.0"), "is a share of a GPU between 0 and 1"),
        ((COLOCATE, "rl.rollout.gpu_memory_utilization=0.0"), "is a share of a GPU between 0 and 1"),
        ((COLOCATE, "rl.rollout.max_model_length=100"), "is less than data.rl_prompt_tokens="),
        ((COLOCATE, "rl.rollout.importance_sampling_mode=off"), "importance_sampling_mode=off is not one of"),
        ((COLOCATE, "rl.rollout.importance_sampling_clip_min=3.0"), "clip_min=3.0 must be below its clip_max=3.0"),
        ((COLOCATE, "rl.rollout.importance_sampling_clip_max=0"), "are both 0, no bound"),
        ((COLOCATE, "rl.rollout.tensor_parallel_size=0"), "tensor_parallel_size must be greater than 0"),
        (("rl.rollout.batch_size=-1",), "batch_size must not be negative"),
        ((SERVER, RELEASE, "rl.rollout.server_base_url=host:8000"), "must be like http://HOST:8000"),
        ((SERVER,), "set model.export_layout=release"),
        ((COLOCATE, "model.dtype=float32"), "Gated DeltaNet take no float32"),
    ],
)
def test_what_cannot_work_is_refused(overrides, said) -> None:
    assert said in refusal("engine.device=auto", *overrides)


def test_a_server_may_serve_the_released_start(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["A"], "text_config": {"num_experts": 8}}))
    compose([SMOKE, "engine.device=auto", "model.dtype=bfloat16", SERVER, f"model.path={tmp_path}"])
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": 8}))
    assert "released layout" in refusal("engine.device=auto", SERVER, f"model.path={tmp_path}")


def test_one_bound_is_enough_and_without_the_correction_none_is_needed() -> None:
    def refused(high: float, low: float, correction: bool) -> bool:
        try:
            rollout_limits._validate_correction(
                RolloutSettings(
                    importance_sampling_clip_max=high,
                    importance_sampling_clip_min=low,
                    importance_sampling_correction=correction,
                )
            )
        except RequestError:
            return True
        return False

    cases = [(0.0, 0.5, True), (3.0, 0.0, True), (0.0, 0.0, False), (0.0, 0.0, True)]
    assert [refused(*case) for case in cases] == [False, False, False, True]


def test_a_directory_is_released_by_its_config(tmp_path) -> None:
    assert not rollout_limits.is_released(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RequestError, match=r"config\.json: cannot be read as JSON"):
        rollout_limits.is_released(tmp_path)


def test_engines_of_vllm_divide_the_ranks() -> None:
    config = compose(["recipe=mini", COLOCATE, "rl.rollout.tensor_parallel_size=4"])
    with pytest.raises(RequestError, match="tensor_parallel_size=4 does not divide the 2 processes"):
        validate_processes(config, 2)
    validate_processes(config, 4)


def test_vllm_must_be_there_in_a_version_that_trl_takes(monkeypatch) -> None:
    def installed(version: str) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
        rollout_limits.require_vllm(RolloutSettings(engine="vllm_server"))

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    installed("0.24.0")
    installed("0.31.0+cu130")
    for version in ("0.21.0", "0.32.1", "1.0.0"):
        with pytest.raises(RequestError, match=rf"vLLM {version} is installed, and TRL works with 0\.22 to 0\.31"):
            installed(version)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(RequestError, match=r"pip install 'agentworld\[vllm\]'"):
        rollout_limits.require_vllm(RolloutSettings(engine="vllm_colocate"))
    rollout_limits.require_vllm(RolloutSettings())


def planned(*keys: str) -> tuple[plan.Plan, plan.Check]:
    made = plan.make(compose(["recipe=agentworld-35b-a3b", "stage=rl", "rl.rollout.batch_size=0", *keys]))
    [check] = [check for check in made.checks if check.name == "memory rl"]
    return made, check


def test_the_plan_knows_who_samples() -> None:
    """Fewer prompts at once take less; vLLM's hours are not those of `generate`, and it may need another copy."""
    whole, _ = planned()
    before, batched = whole.stages["rl"], planned("rl.rollout.batch_size=1")[0].stages["rl"]
    assert batched.moments["generation"] < before.moments["generation"]
    assert batched.parts["cache"] * 8 == before.parts["cache"], "one of the 8 prompts of a rank"
    colocated, _ = planned(COLOCATE)
    assert "generation" not in colocated.stages["rl"].moments and colocated.work["rl"].decoding_hours == 0.0
    assert colocated.disk["exports"] == 2 * whole.disk["exports"], "RL's start in the released layout"


def test_what_a_vllm_needs_to_the_byte() -> None:
    """By hand, for the 35B size: weights, keys and values of 10 layers with 2 heads of 256 for 36,864 tokens, and the
    float32 states of 30 layers with 32 heads of [128, 128]; over 7 GPUs rounded up."""
    made, _ = planned(COLOCATE)
    config = made.config
    for dtype, element in (("bfloat16", 2), ("float32", 4)):
        config.model.dtype = dtype
        whole = element * 34_660_610_688 + 36_864 * 10 * 2 * 2 * 256 * element + 30 * 32 * 128 * 128 * 4
        for degree in (1, 7):
            config.rl.rollout.tensor_parallel_size = degree
            found = vllm_memory.needed(config, made.architecture, made.parameters)
            assert whole <= found * degree < whole + degree


def test_a_colocated_vllm_is_planned_with_its_weights_and_beside_training() -> None:
    """By hand: 34.66 billion parameters in bfloat16 are 64.6 GiB; 10 attention layers with 2 heads of 256 keep 20 KiB a
    token, 0.7 GiB for 36,864; 30 % of 79 GiB are 23.7 and training has 34.4."""
    memory_of = "rl.rollout.gpu_memory_utilization"
    _, check = planned(COLOCATE)
    assert not check.passed and "vLLM needs 65.3 GiB" in check.detail and "tensor_parallel_size" in check.detail
    _, check = planned(COLOCATE, "rl.rollout.tensor_parallel_size=8")
    assert check.passed and "34.4 GiB" in check.detail and check.detail.endswith("fit a card of 80 GB")
    _, check = planned(COLOCATE, "rl.rollout.tensor_parallel_size=8", f"{memory_of}=0.7")
    assert not check.passed and "training's 34.4 GiB a GPU and vLLM's share of 97.3" in check.detail
    _, check = planned(COLOCATE, f"{memory_of}=0.6", "rl.rollout.enable_sleep_mode=true")
    assert check.passed and check.detail.endswith("fit a card of 141 GB"), "asleep while the model is trained"
    _, check = planned(COLOCATE, f"{memory_of}=0.85", "rl.rollout.enable_sleep_mode=true")
    assert not check.passed and "training's 8.1 GiB" in check.detail, "awake beside weights, gradients and moments"
