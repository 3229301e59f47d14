"""System prompts: templates under `prompts/<set>/`, filled with the five components of a trajectory.

A template is a text file of paragraphs. A slot `{{component}}` stands for a component of `schema.System`; a paragraph
whose component is absent or blank is left out, heading and all. Text of a component is put in verbatim and never
interpreted. A set has `<version>.txt`, or `<domain>/<version>.txt` where a domain wants its own.

Versions follow arXiv:2606.24597 section 3.1.2: RL uses v0, CPT v1, SFT one of v2 to v11 drawn for each sample.
"""

import re
from functools import lru_cache
from pathlib import Path

from agentworld.data import draws
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import System, Trajectory

COMPONENTS = ("task_description", "action_space", "initial_state", "demonstrations", "simulation_instruction")
VERSIONS = tuple(f"v{i}" for i in range(12))
SFT_VERSIONS = VERSIONS[2:]
# Each stage is evaluated in the form that it was trained in.
EVALUATION_VERSION = {"base": "v1", "cpt": "v1", "sft": "v2", "rl": "v0"}

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_FOLDER = Path(__file__).parent / "prompts"


def system_prompt(trajectory: Trajectory, version: str, prompt_set: str) -> str:
    """The system prompt of a trajectory in one version of a template set, without a newline at its end.

    Raises:
        RequestError: there is no such set or version.
        ContentError: the template lacks a slot or has an unknown one.
    """
    return fill(_template(prompt_set, trajectory.domain, version), trajectory.system)


def fill(paragraphs: tuple[str, ...], system: System) -> str:
    """Put the components into the paragraphs of a template; paragraphs with an absent component are left out."""
    values = {name: getattr(system, name) or "" for name in COMPONENTS}
    kept = [p for p in paragraphs if all(values[slot].strip() for slot in _SLOT.findall(p))]
    # One pass: what a component holds is never looked at again, slots, braces and backslashes included.
    return "\n\n".join(_SLOT.sub(lambda match: values[match[1]], paragraph) for paragraph in kept)


def sft_version(trajectory_id: str, seed: int) -> str:
    """One of v2 to v11, uniform over trajectories, the same on every call."""
    return SFT_VERSIONS[draws.choice(len(SFT_VERSIONS), "sft-version", seed, trajectory_id)]


def prompt_sets() -> list[str]:
    """The names of the template sets that exist."""
    return sorted(p.name for p in _FOLDER.iterdir() if p.is_dir() and p.name != "__pycache__")


@lru_cache(maxsize=256)
def _template(prompt_set: str, domain: str, version: str) -> tuple[str, ...]:
    if prompt_set not in prompt_sets():
        raise RequestError(f"data.prompt_set={prompt_set}: no such template set; known: {', '.join(prompt_sets())}")
    candidates = [_FOLDER / prompt_set / domain / f"{version}.txt", _FOLDER / prompt_set / f"{version}.txt"]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise RequestError(f"data.prompt_set={prompt_set}: no template {version} for domain {domain} ({candidates[1]})")
    text = path.read_text(encoding="utf-8")
    if sorted(_SLOT.findall(text)) != sorted(COMPONENTS):
        raise ContentError(f"{path}: a template has each slot once: {', '.join('{{' + c + '}}' for c in COMPONENTS)}")
    return tuple(paragraph.strip("\n") for paragraph in re.split(r"\n{2,}", text.strip("\n")))
