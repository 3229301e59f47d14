"""From `recipes/` and the command line to one typed, checked `Config`. Imports no torch.

Every override is checked against the schema before Hydra sees it, so that a mistake is answered with the key, what was
expected and the nearest valid one. Hydra's compose API is used, never `@hydra.main`, so no `outputs/` appears.

    RequestError    unknown recipe, key or option, wrong type, contradictory pair: one line, exit code 2
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agentworld.data.errors import RequestError
from agentworld.rewards.settings import RewardSettings
from agentworld.train.config import Config
from agentworld.train.contradictions import validate
from agentworld.train.engine_limits import LEFT_OUT

GROUPS = ("recipe", "model", "engine", "data", "reward", "cluster")
RECIPES = Path(str(files("agentworld.recipes")))

ConfigStore.instance().store(name="schema", node=Config)


def compose(overrides: Sequence[str]) -> Config:
    """The checked configuration of `recipe=NAME key=value ...`.

    Raises:
        RequestError: naming the key and the nearest valid one, the expected type, or the two keys that contradict.
    """
    schema = OmegaConf.structured(Config)
    checked = [_checked(override, schema) for override in overrides]
    recipe = next((text.partition("=")[2] for text in reversed(checked) if text.startswith("recipe=")), None)
    if recipe is None:
        raise RequestError(f"no recipe given; add one of: {', '.join(f'recipe={name}' for name in options('recipe'))}")
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(RECIPES)):
            composed = hydra_compose("agentworld", overrides=checked)
        composed.recipe = recipe
        config = OmegaConf.to_object(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(f"recipe {recipe}: {_one_line(error)}") from error
    assert isinstance(config, Config)
    _expand(config)
    validate(config)
    return config


def compose_reward(name: str, overrides: Sequence[str]) -> RewardSettings:
    """The checked reward of `recipes/reward/<name>.yaml` and `reward.key=value ...`, without a recipe around it.

    Args:
        name: of such a file, or a run directory, whose reward it is then.

    Raises:
        RequestError: no such reward or key, a wrong type, a contradiction.
    """
    schema = OmegaConf.structured(Config)
    try:
        if (Path(name) / "recipe.yaml").is_file():
            described = OmegaConf.structured(load_recipe(name).reward)
        else:
            described = OmegaConf.load(RECIPES / "reward" / f"{name}.yaml")
        tree = OmegaConf.merge(schema, {"reward": described})
        for text in overrides:
            key = text.partition("=")[0]
            if not key.startswith("reward."):
                raise RequestError(f"{text}: only keys of reward can be set here, such as reward.judge.model=NAME")
            value = _parsed(_checked(text, schema).removeprefix("++"), key).value()
            OmegaConf.update(tree, key, value, merge=True)
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise RequestError(f"reward {name}: {_one_line(error)}") from error
    assert isinstance(config, Config)
    _expand(config)
    config.stage = "data"  # what RL needs beside its reward is not asked for
    validate(config)
    return config.reward


def options(group: str) -> list[str]:
    """The names that `group=NAME` takes: the files of `recipes/<group>/`."""
    return sorted(path.stem for path in (RECIPES / group).glob("*.yaml"))


def to_yaml(config: Config) -> str:
    """The resolved recipe as YAML, keys in the order of the schema."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def load_recipe(run_dir: str | Path) -> Config:
    """The configuration that a run directory holds in `recipe.yaml`.

    Raises:
        RequestError: there is none, or it does not fit the schema of this version.
    """
    path = Path(run_dir) / "recipe.yaml"
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path)))
    except FileNotFoundError:
        raise RequestError(f"{path} does not exist; {run_dir} is not a run directory") from None
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise RequestError(f"{path}: {_one_line(error)}") from error
    assert isinstance(config, Config)
    return config


def _expand(config: Config) -> None:
    """Put the home directory in place of ~ in every path, as a shell does not behind `key=`."""
    config.run.root = _expanded(config.run.root)
    config.model.path = _expanded(config.model.path)
    config.reward.judge.cache = _expanded(config.reward.judge.cache)
    for source in config.data.documents:
        source.path = _expanded(source.path)
    config.data.trajectories = [_expanded(path) for path in config.data.trajectories]
    config.reward.verifiers = [_expanded(path) for path in config.reward.verifiers]
    config.data.held_out = [_expanded(path) for path in config.data.held_out]


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _checked(text: str, schema: DictConfig) -> str:
    """One override in the form that Hydra takes, after checking its key and its value against the schema."""
    if text.startswith(("+", "~")):
        raise RequestError(f"{text}: keys are fixed by the schema and cannot be added or removed; write key=value")
    key, equals, raw = text.partition("=")
    if not equals:
        raise RequestError(f"{text!r} is no key=value override; for example seed=1")
    if "@" in key:
        raise RequestError(f"{text}: packages cannot be overridden; write {key.partition('@')[0]}=NAME")
    if key in GROUPS and not raw.startswith("{"):
        return _checked_option(key, raw)
    annotation = _annotation(key)
    if annotation is str and not raw.startswith(("'", '"')) and "${" not in raw:
        text = f"{key}={_quoted(raw)}"  # a path may hold =, ~ or spaces, and a run may be named 1e5
    override = _parsed(text, key)
    if override.is_sweep_override():
        raise RequestError(f"{text}: sweeps are not supported; give one value, a list is written {key}=[a,b]")
    _check_value(schema, key, raw, annotation, override.value())
    is_of_mapping = get_origin(annotation) is dict or key not in _known_keys(Config(), "")
    return f"++{text}" if is_of_mapping else text  # Hydra adds names to a mapping only where it is told to


def _checked_option(group: str, name: str) -> str:
    known = options(group)
    if name not in known:
        raise RequestError(f"unknown {group} {name!r}{_nearest(name, known)}; available: {', '.join(known)}")
    return f"{group}={name}"


def _annotation(key: str) -> Any:
    """The declared type of a dotted key.

    Raises:
        RequestError: the schema has no such key.
    """
    known = _known_keys(Config(), "")
    if key == "dry_run":
        raise RequestError(
            "dry_run is a key of submit: `agentworld submit recipe=NAME dry_run=true` writes the scripts of the jobs "
            "and submits nothing; `agentworld train recipe=NAME stage=data` prepares the data and trains nothing"
        )
    if key in LEFT_OUT:
        raise RequestError(f"{key} is no key here: {LEFT_OUT[key]}")
    parent = key.rpartition(".")[0]
    is_open = get_origin(known.get(parent)) is dict and not any(name.startswith(f"{parent}.") for name in known)
    if key not in known and is_open:
        return get_args(known[parent])[1]  # a name in a mapping: which ones it may have is checked with the values
    if key not in known:
        leaf = key.rpartition(".")[2]
        by_leaf = [full for full in known if full.rpartition(".")[2] == leaf]  # learning_rate: which stage's?
        hint = f"; did you mean {' or '.join(by_leaf)}?" if by_leaf and "." not in key else _nearest(key, known)
        raise RequestError(f"unknown key {key}{hint or '; the keys stand in train/config.py'}")
    return known[key]


def _known_keys(node: Any, prefix: str) -> dict[str, Any]:
    """Dotted key -> declared type, sections included; the keys of a mapping are those of its default."""
    keys: dict[str, Any] = {}
    for name, field in type(node).__dataclass_fields__.items():
        full, value = f"{prefix}{name}", getattr(node, name)
        keys[full] = field.type
        if hasattr(value, "__dataclass_fields__"):
            keys.update(_known_keys(value, f"{full}."))
        elif isinstance(value, dict):
            keys.update({f"{full}.{name}": get_args(field.type)[1] for name in value})
    return keys


def _check_value(schema: DictConfig, key: str, raw: str, annotation: Any, value: Any) -> None:
    if hasattr(annotation, "__dataclass_fields__") and not isinstance(value, dict):
        names = ", ".join(f"{key}.{name}" for name in annotation.__dataclass_fields__)
        raise RequestError(f"{key} is a section; set one of its keys: {names}")
    if OmegaConf.is_interpolation(OmegaConf.create({"value": value}), "value"):
        return  # resolved by Hydra, which checks the type then
    _check_mappings(key, annotation, value)
    try:
        OmegaConf.update(schema.copy(), key, value, merge=True)
    except OmegaConfBaseException as error:
        if isinstance(value, dict):
            raise RequestError(f"{key}={raw}: {_one_line(error)}") from error
        raise RequestError(f"{key}: expected {_described(annotation, key, raw)}, found {raw!r}") from error


def _check_mappings(key: str, annotation: Any, value: Any) -> None:
    """In a list of mappings: refuse the first key that the declared mapping does not have."""
    if get_origin(annotation) is not list or not isinstance(value, list):
        return
    known = getattr(get_args(annotation)[0], "__dataclass_fields__", None)
    for number, entry in enumerate(value if known else []):
        for name in entry if isinstance(entry, dict) else ():
            if name not in known:
                raise RequestError(
                    f"{key}[{number}] has no key {name}{_nearest(str(name), known)}; its keys: {', '.join(known)}"
                )


def _described(annotation: Any, key: str, raw: str) -> str:
    if get_origin(annotation) is list and hasattr(get_args(annotation)[0], "__dataclass_fields__"):
        return f"a list of mappings of {', '.join(get_args(annotation)[0].__dataclass_fields__)}"
    if get_origin(annotation) is list:
        return f"a list, such as {key}=[{raw}]" if raw and raw.isprintable() and "[" not in raw else "a list of texts"
    if get_origin(annotation) is dict:
        return f"a mapping, such as {key}={{name:0.5}}"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a text"}[annotation]


def _parsed(text: str, key: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise RequestError(f"cannot read {text!r} ({_one_line(error)}); {_quoting_hint(text, key)}") from error
    assert override.type is OverrideType.CHANGE
    return override


def _quoting_hint(text: str, key: str) -> str:
    """How to write a value that Hydra cannot read; for a list of texts the user's own, to be copied into a shell."""
    if _annotation(key) != list[str]:
        return f"quote special characters: {key}='\"...\"'"
    inner = text.partition("=")[2].strip()
    if inner.startswith("["):
        inner = inner[1:].removesuffix("]").strip()
    # A comma may stand inside an option (--mail-type=END,FAIL): there only one before a dash separates.
    parts = re.split(r"\s*,\s*(?=-)" if inner.startswith("-") else r"\s*,\s*", inner)
    plain = [part[1:-1] if re.fullmatch(r"(['\"]).*\1", part, re.DOTALL) else part for part in parts]
    return f"write each element in quotes, and all of it in those of the shell: {override_of(key, plain)}"


def override_of(key: str, value: Any) -> str:
    """`key=value` as a word of the shell from which `compose` makes this very value."""
    text = str(value) if isinstance(value, str) and not value.startswith(("'", '"')) else _written(value)
    return shlex.quote(f"{key}={text}")


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if hasattr(value, "__dataclass_fields__"):
        value = vars(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_written(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, str):
        return _quoted(value) if re.search(r'["\\]', value) else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(raw: str) -> str:
    """`raw` as a single-quoted Hydra string: a backslash escapes only when it stands before a quote."""
    body = raw.replace("\\'", "\\\\\\'") if "\\'" in raw else raw.replace("'", "\\'")
    return f"'{body}\\'" if raw.endswith("\\") else f"'{body}'"


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _one_line(error: Exception) -> str:
    """The first lines of a library's message, without its object dump."""
    kept = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("object_")]
    return "; ".join(kept[:3])
