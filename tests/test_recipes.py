"""Every shipped recipe, and every option of every group, composes."""

import pytest

from agentworld.train.compose import GROUPS, RECIPES, compose, options


@pytest.mark.parametrize("name", options("recipe"))
def test_recipe_composes(name):
    assert compose([f"recipe={name}"]).recipe == name


@pytest.mark.parametrize(
    "option", [f"{group}={name}" for group in GROUPS if group != "recipe" for name in options(group)]
)
def test_option_composes(option):
    compose(["recipe=smoke", option])


def test_every_group_is_a_folder_with_options():
    folders = sorted(path.name for path in RECIPES.iterdir() if path.is_dir() and not path.name.startswith("_"))
    assert folders == sorted(GROUPS)
    assert all(options(group) for group in GROUPS)


def test_smoke_runs_anywhere():
    config = compose(["recipe=smoke"])
    assert (config.engine.device, config.nproc, config.model.path, config.data.trajectories) == ("cpu", 2, "", [])
    assert config.wandb.mode == "offline"
    assert not config.data.mask.enabled
