"""Every shipped recipe, and every option of every group, composes."""

from dataclasses import asdict

import pytest
import torch
import yaml
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from agentworld.data.errors import RequestError
from agentworld.train import pipeline
from agentworld.train.compose import GROUPS, RECIPES, compose, options
from agentworld.train.contradictions import validate_processes
from agentworld.train.model import architecture_fields


@pytest.mark.parametrize("name", options("recipe"))
def test_recipe_composes_and_its_batches_divide(name):
    config = compose([f"recipe={name}"])
    assert config.recipe == name
    validate_processes(config, config.nproc)
    assert config.nproc == config.cluster.nodes * config.cluster.tasks_per_node, "one machine or SLURM: the same ranks"


@pytest.mark.parametrize(
    "option", [f"{group}={name}" for group in GROUPS if group != "recipe" for name in options(group)]
)
def test_option_composes(option):
    name, _, chosen = option.partition("=")
    written = leaves(yaml.safe_load((RECIPES / name / f"{chosen}.yaml").read_text()))
    needed = ["rl.pilot_completions=2"] if chosen == "reference" else []
    found = leaves(asdict(getattr(compose(["recipe=smoke", option, *needed]), name)))
    recipe = leaves(yaml.safe_load((RECIPES / "recipe" / "smoke.yaml").read_text()).get(name, {}))
    assert {key: found[key] for key in written} == {key: recipe.get(key, value) for key, value in written.items()}


def leaves(node: dict, prefix: str = "") -> dict:
    nested = [leaves(value, f"{prefix}{key}.") for key, value in node.items() if isinstance(value, dict)]
    flat = {f"{prefix}{key}": value for key, value in node.items() if not isinstance(value, dict)}
    return {key: value for part in (flat, *nested) for key, value in part.items()}


def test_the_released_size_starts_from_weights_and_data_that_are_there(tmp_path):
    config = compose(["recipe=agentworld-35b-a3b", f"run.root={tmp_path}"])
    with pytest.raises(RequestError, match=r"data\.trajectories: trajectories\.jsonl is not a file"):
        pipeline.run(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "option,vocabulary,total",
    [("qwen3_5-35b-a3b", 248320, 34_660_610_688), ("mini", 16384, 530_000_000), ("tiny", 1024, 1_440_000)],
)
def test_models_have_the_size_that_they_name(option, vocabulary, total):
    """34,660,610,688 parameters are those of the released text model."""
    architecture = compose(["recipe=smoke", f"model={option}"]).model.architecture
    with torch.device("meta"):
        built = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(vocab_size=vocabulary, **architecture_fields(architecture)))
    count = sum(parameter.numel() for parameter in built.parameters())
    assert count == total if option.startswith("qwen") else count == pytest.approx(total, rel=0.01)


def test_every_group_is_a_folder_with_options():
    folders = sorted(path.name for path in RECIPES.iterdir() if path.is_dir() and not path.name.startswith("_"))
    assert folders == sorted(GROUPS)
    assert all(options(group) for group in GROUPS)


def test_smoke_runs_anywhere():
    config = compose(["recipe=smoke"])
    assert (config.engine.device, config.nproc, config.model.path, config.data.trajectories) == ("cpu", 2, "", [])
    assert config.wandb.mode == "offline"
    assert not config.data.mask.enabled
