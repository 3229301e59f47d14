"""What a recipe becomes in the trainers' arguments: every key under its name, with a value that is not its default.
Nothing is trained."""

from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from transformers import get_scheduler
from trl import GRPOConfig, SFTConfig

from agentworld.data.render import Renderer
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import cpt, engine, rl, stage, vllm_rollouts
from agentworld.train.config import Config, CptSettings, RlSettings, SftSettings, StageSettings
from agentworld.train.resume import Resumption
from agentworld.train.stage import Stage, common_arguments
from agentworld.train.trainers import scheduler_arguments

TOKENIZER = train_tokenizer(["text"], 264)
# A value other than the default of every key of each settings class that becomes one argument of the same name.
COMMON = {
    "learning_rate": 3e-4, "max_steps": 37, "warmup_steps": 5, "weight_decay": 0.07, "adam_beta1": 0.81,
    "adam_beta2": 0.93, "max_grad_norm": 0.6, "router_aux_loss_coef": 0.004, "save_steps": 9,
}  # fmt: skip
SCHEDULE = {"lr_scheduler": "cosine", "min_lr_ratio": 0.3}
RL = {
    "num_generations": 4, "epsilon": 5e-4, "epsilon_high": 7e-4, "beta": 0.02, "temperature": 0.9,
    "mask_truncated_completions": True,
}  # fmt: skip
# 6 x 4 completions in 3 mini-batches of 8, on 2 ranks with 2 in a micro-batch: 2 micro-steps each.
SIZES = {"prompts_per_rollout": 6, "mini_batches": 3, "completions_per_device": 2, "max_completion_tokens": 33}
ELSEWHERE = {"save_total_limit"}  # stage.train
RL_ELSEWHERE = {"pilot_completions", "drop_solved", "drop_hopeless", "domain_weights", "rollout"}
# What no recipe sets, of every stage: the losses of each step, as they are, and checkpoints that StageTrainer rotates.
FIXED = {
    "save_strategy": "steps", "save_total_limit": None, "logging_strategy": "steps", "logging_steps": 1,
    "logging_nan_inf_filter": False, "report_to": [], "disable_tqdm": True, "seed": 11, "data_seed": 11,
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False,
    "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.3},
}  # fmt: skip


class Plain(Resumption):
    """Without DeepSpeed, which `TrainingArguments` would start in this process."""

    def engine(self, settings, render) -> None:
        return None


def config_of(**model) -> Config:
    config = Config(seed=11)
    config.engine.device, config.model.dtype = "cpu", "float32"
    for key, value in model.items():
        setattr(config.model, key, value)
    return config


def stage_of(settings: StageSettings, config: Config | None = None, resumption: Resumption | None = None) -> Stage:
    place, start = Path("run"), resumption or Plain()
    name = {CptSettings: "cpt", SftSettings: "sft", RlSettings: "rl"}[type(settings)]
    return Stage(name, config or config_of(), place, settings, place / "parent", TOKENIZER, start)


def rl_settings(**changed) -> RlSettings:
    return RlSettings(**(COMMON | SCHEDULE | RL | SIZES | changed))


def gspo(settings: RlSettings, config: Config | None = None, ranks: int = 2) -> GRPOConfig:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "world_size", lambda: ranks)
        return rl.gspo_arguments(stage_of(settings, config), settings)


def of(arguments: object, names) -> dict:
    return {name: getattr(arguments, name) for name in names}


def test_no_key_is_left_out_and_none_has_its_default() -> None:
    """A new key must be added to a table here, or to what is read elsewhere."""
    common = COMMON.keys() | SCHEDULE.keys() | ELSEWHERE
    assert common == {field.name for field in fields(StageSettings)}
    assert common | RL.keys() | SIZES.keys() | RL_ELSEWHERE == {field.name for field in fields(RlSettings)}
    defaults = asdict(RlSettings())
    given = COMMON | RL | SIZES | {"min_lr_ratio": 0.3}
    assert not [key for key, value in given.items() if defaults[key] == value]
    assert len({str(value) for value in COMMON.values()}) == len(COMMON), "two keys that are swapped are seen"


def test_every_key_of_rl_reaches_the_trainer() -> None:
    arguments = gspo(rl_settings())
    assert of(arguments, COMMON) == COMMON and of(arguments, FIXED) == FIXED and of(arguments, RL) == RL
    assert Path(arguments.output_dir) == Path("run/rl/checkpoints")
    assert arguments.max_completion_length == 33
    assert (arguments.top_p, arguments.top_k) == (1.0, 0), "the policy's own distribution is sampled"
    assert arguments.generation_kwargs == {"use_cache": True} and not arguments.use_vllm
    assert not arguments.log_completions


def test_the_objective_is_that_of_gspo() -> None:
    """arXiv:2507.18071: ratio and clip of whole sequences, the mean over a group's sequences, advantages by group."""
    objective = {"importance_sampling_level": "sequence", "loss_type": "grpo", "scale_rewards": "group"}
    assert of(gspo(rl_settings()), objective) == objective


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 4), (2, 2)])
def test_a_rollout_is_used_in_as_many_steps_as_the_recipe_has_mini_batches(ranks, accumulation) -> None:
    arguments = gspo(rl_settings(), ranks=ranks)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (2, accumulation)
    assert arguments.steps_per_generation == 3 * accumulation
    completions = arguments.steps_per_generation * arguments.per_device_train_batch_size * ranks
    assert completions == 6 * 4, "the whole rollout"


def test_prompts_are_shuffled_unless_the_weights_have_drawn_their_order() -> None:
    assert gspo(rl_settings()).shuffle_dataset
    assert not gspo(rl_settings(domain_weights={"terminal": 1.0})).shuffle_dataset


def test_vllm_stops_at_the_end_token_of_the_tokenizer() -> None:
    config = config_of()
    config.rl.rollout.engine = "vllm_server"
    arguments = gspo(rl_settings(), config)
    expected = vllm_rollouts.arguments(config, Renderer(TOKENIZER).end_id)
    assert of(arguments, expected) == expected and arguments.use_vllm


@pytest.mark.parametrize("settings_class", [CptSettings, SftSettings])
def test_every_key_of_cpt_and_sft_reaches_the_trainer(monkeypatch, settings_class) -> None:
    """The arguments are looked at as they are given too: TRL or transformers may change them afterwards."""
    made: dict = {}
    monkeypatch.setattr(cpt, "SFTConfig", lambda **given: made.update(given) or SFTConfig(**given))
    monkeypatch.setattr(cpt, "PackedTrainer", lambda **given: given)
    monkeypatch.setattr(cpt, "load_model", lambda start: f"model of {start.name}")
    monkeypatch.setattr(Stage, "rows", lambda start, name: f"rows {name}")
    start = stage_of(settings_class(**COMMON, **SCHEDULE, rows_per_device=3, gradient_accumulation_steps=5))
    trainer = cpt.packed_trainer(start)
    arguments = trainer.pop("args")
    name = start.name
    assert trainer == {"model": f"model of {name}", "train_dataset": f"rows {name}", "processing_class": TOKENIZER}
    assert of(arguments, COMMON) == COMMON and of(arguments, FIXED) == FIXED
    assert Path(arguments.output_dir) == Path("run") / name / "checkpoints"
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (3, 5)
    assert made["average_tokens_across_devices"] is True, "one mean over the labels of all ranks"
    assert made["padding_free"] is True and made["packing"] is False, "rows are packed already"
    assert made["max_length"] is None and made["dataset_kwargs"] == {"skip_prepare_dataset": True}
    assert made.keys() - common_arguments(start).keys() == {
        "per_device_train_batch_size", "gradient_accumulation_steps", "average_tokens_across_devices", "padding_free",
        "packing", "max_length", "dataset_kwargs",
    }  # fmt: skip


@pytest.mark.parametrize("recompute", ["none", "mixers", "layers"])
def test_each_recompute_is_done_by_one_of_two(monkeypatch, recompute) -> None:
    """Whole layers by the trainer, mixers by us; `none` by neither, though TRL's default is to recompute layers."""
    recomputed: list = []
    monkeypatch.setattr(stage.model, "load", lambda parent, dtype: (parent, dtype))
    monkeypatch.setattr(stage.recompute, "recompute_mixers", recomputed.append)
    made = stage_of(rl_settings(), config_of(recompute=recompute))
    assert gspo(made.settings, made.config).gradient_checkpointing is (recompute == "layers")
    assert stage.load_model(made) == (made.parent, "float32")
    assert recomputed == ([(made.parent, "float32")] if recompute == "mixers" else [])


def test_dtype_and_device_are_those_of_the_recipe(monkeypatch) -> None:
    settings = rl_settings()
    assert gspo(settings, config_of(dtype="bfloat16")).bf16
    monkeypatch.setattr(engine, "uses_cpu", lambda settings: False)
    given = common_arguments(stage_of(settings))
    assert not given["use_cpu"] and given["dataloader_pin_memory"] and not given["bf16"]


def test_deepspeed_gets_the_engine_of_the_recipe() -> None:
    config = config_of(dtype="bfloat16")
    config.engine.zero_stage, config.engine.reduce_bucket_size = 2, 12345
    given = common_arguments(stage_of(rl_settings(), config, Resumption()))["deepspeed"]
    assert given == engine.deepspeed_config(config.engine, config.model)
    assert given["zero_optimization"]["reduce_bucket_size"] == 12345 and given["bf16"] == {"enabled": True}
    resumed = common_arguments(stage_of(rl_settings(), config, Resumption(elastic=True)))["deepspeed"]
    assert resumed == given | {"checkpoint": {"load_universal": True}}


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("constant", [0.0, 0.5, 1.0, 1.0, 1.0]),
        ("cosine", [0.0, 0.5, 1.0, 0.65, 0.3]),  # half-way down 0.3 + 0.7 / 2
    ],
)
def test_the_learning_rate_goes_up_and_then_down_to_its_share(kind, rates) -> None:
    """At steps 0, 2, 4 (the end of the warm-up), 7 and 10 of 10, by the scheduler that transformers makes of it."""
    given = scheduler_arguments(kind, 0.3)
    assert given["lr_scheduler_type"] == {"constant": "constant_with_warmup", "cosine": "cosine_with_min_lr"}[kind]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = get_scheduler(given["lr_scheduler_type"], optimizer, 4, 10, given.get("lr_scheduler_kwargs"))
    met = []
    for _ in range(11):
        met.append(scheduler.get_last_lr()[0] / 2.0)
        optimizer.step()
        scheduler.step()
    assert [met[step] for step in (0, 2, 4, 7, 10)] == pytest.approx(rates)
