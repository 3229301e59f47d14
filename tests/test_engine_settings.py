"""Engine settings: each one that is written reaches DeepSpeed, and what it cannot do is refused with the reason."""

import json
from dataclasses import fields

import pytest
from deepspeed.module_inject.auto_ep_config import parse_autoep_config
from deepspeed.runtime.config import DeepSpeedConfig

from agentworld.data.errors import RequestError
from agentworld.train import engine
from agentworld.train.compose import compose, options
from agentworld.train.config import EngineSettings, ModelSettings
from agentworld.train.engine import deepspeed_config, inference_config

# Values other than the defaults, for every key that is read under (stage, degree, offload).
STAGE_3 = {
    "zero_stage": 3, "expert_parallel": 2, "reduce_bucket_size": 1001, "overlap_comm": True,
    "contiguous_gradients": False, "communication_data_type": "float32", "grad_accum_dtype": "float32",
    "stage3_prefetch_bucket_size": 1002, "stage3_param_persistence_threshold": 1003,
    "stage3_max_live_parameters": 1004, "stage3_max_reuse_distance": 1005, "sub_group_size": 1006,
    "offload_optimizer": "cpu", "offload_param": "cpu", "pin_memory": False, "use_grouped_mm": False,
    "combine_impl": "fused_weighted_sum", "async_split_plan": True, "compiled_adam": True,
}  # fmt: skip
STAGE_2 = {
    "zero_stage": 2, "expert_parallel": 4, "allgather_bucket_size": 1007, "round_robin_gradients": True,
    "gate_up_impl": "fused",
}  # fmt: skip


def parsed(config: dict) -> DeepSpeedConfig:
    config = json.loads(json.dumps(config))
    batch = {"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    return DeepSpeedConfig(config | batch | {"gradient_clipping": 1.0})


@pytest.mark.parametrize("chosen", [STAGE_3, STAGE_2], ids=["stage 3", "stage 2"])
def test_every_rendered_key_is_read_by_deepspeed(chosen) -> None:
    """AutoEP's parser ignores what it does not know; the one of ZeRO refuses it."""
    settings = EngineSettings(**chosen)
    rendered = deepspeed_config(settings, ModelSettings(dtype="bfloat16"))
    found = parsed(rendered)
    for key, value in rendered["zero_optimization"].items():
        read = getattr(found.zero_config, key.removeprefix("stage3_"), None)
        if isinstance(value, dict):
            assert {name: getattr(read, name) for name in value} == value, key
        else:
            assert read == value, key
    read = parse_autoep_config(rendered["expert_parallel"])
    for key, value in rendered["expert_parallel"].items():
        assert getattr(read, key) == value, key
    assert found.expert_parallel_config.autoep_size == chosen["expert_parallel"]
    assert found.optimizer_params["torch_adam"] is not settings.compiled_adam
    assert str(found.communication_data_type) == ("torch.float32" if chosen is STAGE_3 else "None")
    assert found.grad_accum_dtype == ("fp32" if chosen is STAGE_3 else None)


def test_every_setting_changes_what_is_rendered() -> None:
    """`device` chooses the process group; all others stand in DeepSpeed's configuration."""
    named = {field.name for field in fields(EngineSettings)} - {"device"}
    assert named == set(STAGE_3) | set(STAGE_2)
    for chosen in (STAGE_3, STAGE_2):
        whole = deepspeed_config(EngineSettings(**chosen), ModelSettings())
        for key in chosen:
            without = deepspeed_config(
                EngineSettings(**{name: value for name, value in chosen.items() if name != key}), ModelSettings()
            )
            assert without != whole, key


@pytest.mark.parametrize("engine", options("engine"))
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_every_engine_composes_with_every_degree_that_divides(engine, degree) -> None:
    config = compose(["recipe=mini", f"engine={engine}", f"engine.expert_parallel={degree}", f"nproc={degree}"])
    rendered = deepspeed_config(config.engine, config.model)
    assert rendered["zero_optimization"]["stage"] == int(engine[4])
    assert ("expert_parallel" in rendered) == (degree > 1)
    assert parsed(rendered).zero_config.overlap_comm is (engine[4] == "3"), "DeepSpeed's own default of the stage"


def test_the_defaults_are_those_of_deepspeed() -> None:
    for stage in (1, 3):
        rendered = deepspeed_config(EngineSettings(zero_stage=stage, overlap_comm=stage == 3), ModelSettings())
        bare = rendered | {"zero_optimization": {"stage": stage}}
        assert parsed(rendered).zero_config == parsed(bare).zero_config
        assert "optimizer" in rendered, "AutoEP under ZeRO 1 and 2 takes no optimizer of a trainer"
    rendered = deepspeed_config(EngineSettings(expert_parallel=2), ModelSettings())
    bare = parse_autoep_config({"enabled": True, "autoep_size": 2})
    read = parse_autoep_config(rendered["expert_parallel"])
    bare.combine_impl = "weighted_sum"  # what "auto" stands for (deepspeed/module_inject/auto_ep_layer.py)
    assert read == bare


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["engine.zero_stage=0"], ["engine.zero_stage=0", "1, 2, 3"]),
        (["engine=zero1", "engine.offload_param=cpu"], ["engine.offload_param=cpu", "engine.zero_stage=3"]),
        (["engine=zero3", "engine.allgather_bucket_size=5"], ["engine.allgather_bucket_size=5", "1 or 2"]),
        (["engine=zero2", "engine.sub_group_size=5"], ["engine.sub_group_size=5", "engine.zero_stage=3"]),
        (["engine.pin_memory=false"], ["engine.pin_memory=false", "engine.offload_optimizer=cpu"]),
        (["engine.use_grouped_mm=false"], ["engine.use_grouped_mm=false", "engine.expert_parallel"]),
        (["engine.offload_optimizer=nvme"], ["engine.offload_optimizer=nvme", "none, cpu"]),
        (["engine.reduce_bucket_size=0"], ["engine.reduce_bucket_size", "greater than 0"]),
        (["engine.communication_data_type=bfloat16"], ["engine.communication_data_type=bfloat16", "float32"]),
        (["engine.expert_parallel=2", "engine.use_grouped_mm=false", "engine.gate_up_impl=fused"], ["grouped_mm=true"]),
        (["engine.expert_parallel=2", "engine.combine_impl=fused_weighted_sum"], ["Triton", "GPU"]),
        (["engine.expert_parallel=2", "engine.async_split_plan=true"], ["engine.async_split_plan=true", "GPU"]),
        (["engine.expert_parallel=16", "nproc=16"], ["engine.expert_parallel=16", "model.architecture.num_experts=8"]),
        (["engine.expert_parallel=2", "nproc=3"], ["engine.expert_parallel=2", "nproc=2"]),
        (["engine.sequence_parallel=2"], ["engine.sequence_parallel", "ZeRO-3"]),
        (["engine.load_balance_coeff=0.1"], ["engine.load_balance_coeff", "cpt.router_aux_loss_coef"]),
        (["engine.expert_tensor_parallel=2"], ["engine.expert_tensor_parallel", "only 1"]),
        (["engine.optimizer=adam"], ["engine.optimizer", "AdamW"]),
        (["engine.stage3_prefetch_bucketsize=1"], ["did you mean engine.stage3_prefetch_bucket_size?"]),
    ],
)  # fmt: skip
def test_what_deepspeed_cannot_do_is_refused_with_the_reason(overrides, said) -> None:
    """Fault 28: before anything starts."""
    with pytest.raises(RequestError) as refused:
        compose(["recipe=smoke", *overrides])
    assert "\n" not in str(refused.value)
    for part in said:
        assert part in str(refused.value), refused.value


def test_the_experts_of_a_given_model_decide(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_experts": 6}}))
    given = ["recipe=smoke", f"model.path={tmp_path}", "nproc=4"]
    with pytest.raises(
        RequestError, match=r"engine\.expert_parallel=4 does not divide num_experts of .*config\.json=6"
    ):
        compose([*given, "engine.expert_parallel=4"])
    compose([*given, "engine.expert_parallel=2"])


def test_a_model_that_is_only_evaluated_is_divided_as_in_training_and_has_no_optimizer() -> None:
    for settings, live in ((EngineSettings(**STAGE_3), 1004), (EngineSettings(**STAGE_2), 10**9)):
        rendered = inference_config(settings, ModelSettings(dtype="bfloat16"))
        assert '"auto"' not in json.dumps(rendered) and "optimizer" not in rendered and rendered["bf16"]["enabled"]
        found = DeepSpeedConfig(json.loads(json.dumps(rendered)))
        assert found.zero_optimization_stage == 3
        assert found.zero_config.max_live_parameters == live and found.zero_config.offload_optimizer is None
        experts = parse_autoep_config(rendered["expert_parallel"])
        assert experts.autoep_size == settings.expert_parallel and experts.gate_up_impl == settings.gate_up_impl


def test_each_rank_of_a_node_computes_on_its_own_gpu(monkeypatch) -> None:
    monkeypatch.setattr(engine, "uses_cpu", lambda settings: settings.device == "cpu")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert str(engine.device(EngineSettings(device="auto"))) == "cuda:3"
    assert str(engine.device(EngineSettings(device="cpu"))) == "cpu"
