"""System prompts: templates under `prompts/<set>/`, filled with the five components of a trajectory.

A template is a text file of paragraphs. A slot `{{component}}` stands for a component of `schema.System`; a paragraph
whose component is absent or blank is left out, heading and all. Text of a component is put in verbatim and never
interpreted. A set has `<version>.txt`, or `<domain>/<version>.txt` where a domain wants its own.

A set may also compose: where it has `<domain>/specification.txt`, its `<version>.txt` are styles, in which a reference
`[[section]]`, `[[section form]]` or `[[section form count]]` stands for a section of that file in a form of FORMS,
cut to its first `count` items. A specification is a text file of sections, each under a line `=== name ===`. A section
holds one item a line; a section of demonstrations holds blocks between lines `---`, in which a line `>>> ` begins an
action and a line `<<< ` an observation. Components that are static in a domain (arXiv:2606.24597 section 3.1.2) stand
in its specification; a trajectory's own come behind them through the slot.

Versions follow arXiv:2606.24597 section 3.1.2: RL uses v0, CPT v1, SFT one of v2 to v11 drawn for each sample.
"""

import re
from collections.abc import Callable
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

# The forms of a section in a style: its items to text. Demonstrations have forms of their own.
FORMS: dict[str, Callable[[list[str]], str]] = {
    "lines": "\n".join,
    "prose": " ".join,
    "bullets": lambda items: "\n".join(f"- {item}" for item in items),
    "numbered": lambda items: "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1)),
    "checklist": lambda items: "\n".join(f"[ ] {item}" for item in items),
    "labelled": lambda blocks: _demonstrations(blocks, "Action:", "Observation:"),
    "dialogue": lambda blocks: _demonstrations(blocks, "The agent sends", "The environment answers"),
}
_BLOCK_FORMS = ("labelled", "dialogue")

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_REFERENCE = re.compile(r"\[\[(\w+)(?: (\w+))?(?: (\d+))?\]\]")
_SECTION = re.compile(r"^=== (\w+) ===\n", re.MULTILINE)
_FOLDER = Path(__file__).parent / "prompts"
_SPECIFICATION = "specification.txt"


def system_prompt(trajectory: Trajectory, version: str, prompt_set: str) -> str:
    """The system prompt of a trajectory in one version of a template set, without a newline at its end.

    Raises:
        RequestError: there is no such set or version.
        ContentError: the template lacks a slot or has an unknown one, or refers to what its specification lacks.
    """
    return fill(_template(prompt_set, trajectory.domain, version), trajectory.system)


def fill(paragraphs: tuple[str, ...], system: System) -> str:
    """Put the components into the paragraphs of a template; paragraphs with an absent component are left out."""
    values = {name: getattr(system, name) or "" for name in COMPONENTS}
    kept = []
    for paragraph in paragraphs:
        slots = _slots(paragraph)
        if all(values[slot].strip() for slot in slots):
            # One pass: what a component holds is never looked at again, slots, braces and backslashes included.
            kept.append(_SLOT.sub(lambda match: values[match[1]], paragraph) if slots else paragraph)
    return "\n\n".join(kept)


def sft_version(trajectory_id: str, seed: int) -> str:
    """One of v2 to v11, uniform over trajectories, the same on every call."""
    return SFT_VERSIONS[draws.choice(len(SFT_VERSIONS), "sft-version", seed, trajectory_id)]


def prompt_sets() -> list[str]:
    """The names of the template sets that exist."""
    return sorted(p.name for p in _FOLDER.iterdir() if p.is_dir() and p.name != "__pycache__")


def compose(style: str, specification: str, where: str) -> str:
    """A style with the sections of a specification in the place of its references.

    Args:
        where: names the style and the specification in errors.

    Raises:
        ContentError: no such section or form, or a count above the number of items.
    """
    parts = _SECTION.split("\n" + specification.replace("\r\n", "\n"))[1:]
    sections = dict(zip(parts[::2], (part.strip("\n") for part in parts[1::2]), strict=True))

    def section(match: re.Match[str]) -> str:
        name, form, count = match[1], match[2] or "lines", match[3]
        if name not in sections:
            raise ContentError(f"{where}: {match[0]}: no section {name}; there are {', '.join(sections)}")
        if form not in FORMS:
            raise ContentError(f"{where}: {match[0]}: no form {form}; there are {', '.join(FORMS)}")
        separator = r"\n---\n" if form in _BLOCK_FORMS else r"\n+"
        items = re.split(separator, sections[name])
        if count is not None and not 0 < int(count) <= len(items):
            raise ContentError(f"{where}: {match[0]}: the section has {len(items)} items")
        return FORMS[form](items[: int(count)] if count else items)

    # One pass: a section is never looked at again, so that brackets in it are text.
    return _REFERENCE.sub(section, style)


@lru_cache(maxsize=4096)
def _slots(paragraph: str) -> tuple[str, ...]:
    return tuple(_SLOT.findall(paragraph))


@lru_cache(maxsize=256)
def _template(prompt_set: str, domain: str, version: str) -> tuple[str, ...]:
    """The paragraphs of a template; those without a slot that follow each other are one."""
    if prompt_set not in prompt_sets():
        raise RequestError(f"data.prompt_set={prompt_set}: no such template set; known: {', '.join(prompt_sets())}")
    folder = _FOLDER / prompt_set
    candidates = [folder / domain / f"{version}.txt", folder / f"{version}.txt"]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise RequestError(f"data.prompt_set={prompt_set}: no template {version} for domain {domain} ({candidates[1]})")
    text = path.read_text(encoding="utf-8")
    specification = folder / domain / _SPECIFICATION
    if path == candidates[1] and specification.is_file():
        text = compose(text, specification.read_text(encoding="utf-8"), f"{path} with {specification}")
    if sorted(_SLOT.findall(text)) != sorted(COMPONENTS):
        raise ContentError(f"{path}: a template has each slot once: {', '.join('{{' + c + '}}' for c in COMPONENTS)}")
    paragraphs: list[str] = []
    for paragraph in (paragraph.strip("\n") for paragraph in re.split(r"\n{2,}", text.strip("\n"))):
        if paragraphs and not _SLOT.search(paragraphs[-1]) and not _SLOT.search(paragraph):
            paragraphs[-1] += "\n\n" + paragraph
        else:
            paragraphs.append(paragraph)
    return tuple(paragraphs)


def _demonstrations(blocks: list[str], action: str, observation: str) -> str:
    """Numbered demonstrations; each `>>> ` and `<<< ` becomes a label on a line of its own."""
    shown = []
    for number, block in enumerate(blocks, start=1):
        text = re.sub(r"^>>> ", lambda _: f"{action}\n", block, flags=re.MULTILINE)
        text = re.sub(r"^<<< ?", lambda _: f"{observation}\n", text, flags=re.MULTILINE)
        shown.append(f"Demonstration {number}. {text}")
    return "\n\n".join(shown)
