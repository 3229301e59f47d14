"""Trajectory and Turn: the one vocabulary between every raw format and every stage.

A trajectory is what an agent and its environment said to each other: `system` describes the world, then turns of
(action, observation). On disk it is JSON Lines, UTF-8, one trajectory a line. Reading validates each field and reports
`path:line: field: reason`, so a damaged file can be mended by hand.

    SchemaError (ContentError)    a line, a field or a value that is not a trajectory
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentworld.data.errors import ContentError

Raw = TypeVar("Raw")

DOMAINS = ("mcp", "search", "terminal", "swe", "android", "web", "os")


class SchemaError(ContentError):
    """A value that is not a trajectory; the text names the file, the line and the field where they are known."""


@dataclass(frozen=True)
class System:
    """The five components of the system prompt (arXiv:2606.24597 section 2.2); two are optional."""

    task_description: str
    action_space: str
    demonstrations: str = ""
    initial_state: str | None = None
    simulation_instruction: str | None = None


@dataclass(frozen=True)
class Turn:
    """One action of the agent and what the environment answered, both verbatim.

    `meta` is JSON-able. Known keys: `deterministic` (bool: the observation follows from the session alone), `family`
    (str: the kind of command, for reports), `context_only` (str: why this observation is history for later turns and
    never a target, for example "time-out of the harness").
    """

    action: str
    observation: str
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def is_target(self) -> bool:
        """Whether a model may be asked to predict this observation."""
        return "context_only" not in self.meta


@dataclass(frozen=True)
class Trajectory:
    """A whole interaction. `split_group` is what splits keep together: two trajectories that share it never stand on
    both sides of a split (a task, a site, a repository, a seed)."""

    id: str
    domain: str
    source: str
    split_group: str
    system: System
    turns: list[Turn]


@dataclass(frozen=True)
class Trace:
    """A reasoning trace for one turn: what a teacher thought and what it predicts the environment answers."""

    family: str
    thinking: str
    prediction: str


def to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """The JSON-able form; optional system components that are absent are left out. `meta` is shared, not copied:
    `dataclasses.asdict`, which copies it, took 30 % of an import's time."""
    return {
        "id": trajectory.id,
        "domain": trajectory.domain,
        "source": trajectory.source,
        "split_group": trajectory.split_group,
        "system": {name: value for name, value in vars(trajectory.system).items() if value is not None},
        "turns": [{"action": t.action, "observation": t.observation, "meta": t.meta} for t in trajectory.turns],
    }


def from_dict(row: Any) -> Trajectory:
    """Build and validate one trajectory from parsed JSON.

    Raises:
        SchemaError: naming the field, what was expected and what was found.
    """
    _require(isinstance(row, dict), "the line", "a JSON object", row)
    for name in ("id", "domain", "source", "split_group"):
        _require(isinstance(row.get(name), str) and row[name] != "", name, "a non-empty string", row.get(name))
    _require(row["domain"] in DOMAINS, "domain", "one of " + ", ".join(DOMAINS), row["domain"])
    _refuse_unknown("", row, ("id", "domain", "source", "split_group", "system", "turns"))
    turns = row.get("turns")
    _require(isinstance(turns, list) and len(turns) > 0, "turns", "a non-empty list", turns)
    return Trajectory(
        id=row["id"],
        domain=row["domain"],
        source=row["source"],
        split_group=row["split_group"],
        system=_system(row.get("system")),
        turns=[_turn(i, turn) for i, turn in enumerate(turns)],
    )


def read_jsonl(path: str | Path, on_bad: Callable[[SchemaError], None] | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in order, memory flat in the file's size.

    Args:
        on_bad: called with the error of each bad line, which is then skipped; None raises at the first bad line.

    Raises:
        SchemaError: `path:line: field: reason`; also for a blank line and for a file without a single line.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        yield from parsed(path, file, parse_line, on_bad, "line")


def parsed(
    path: str | Path,
    raw: Iterable[Raw],
    parse: Callable[[Raw], Trajectory],
    on_bad: Callable[[SchemaError], None] | None,
    unit: str,
) -> Iterator[Trajectory]:
    """The trajectories that `parse` makes of the lines or rows (`unit`) of a file; see `read_jsonl`."""
    seen = 0
    for seen, part in enumerate(raw, start=1):
        try:
            trajectory = parse(part)
        except SchemaError as error:
            located = SchemaError(f"{path}:{seen}: {error}")
            if on_bad is None:
                raise located from None
            on_bad(located)
            continue
        yield trajectory
    if seen == 0:
        raise SchemaError(f"{path}: the file is empty; expected one trajectory a {unit}")


def write_jsonl(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write one trajectory a line and return how many; the caller chooses a temporary path and renames."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(to_dict(trajectory), ensure_ascii=False) + "\n")
            count += 1
    return count


def parse_line(raw: bytes) -> Trajectory:
    """The trajectory of one line of JSON.

    Raises:
        SchemaError: naming the field, what was expected and what was found.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(f"not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise SchemaError("blank line")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaError(f"not JSON: {error.msg} at column {error.colno} (a truncated line?)") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or an integer of thousands of digits
        raise SchemaError(f"not JSON that can be read: {error}") from None
    refuse_lone_surrogates(text, row)
    return from_dict(row)


def refuse_lone_surrogates(text: str, row: Any) -> None:
    """Half of a surrogate pair is JSON, but no text: it can be neither encoded nor written.

    Args:
        text: the JSON that `row` was read from.

    Raises:
        SchemaError: one stands in it, as an escape.
    """
    if "\\ud" not in text.lower():
        return
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        lone = f"\\u{ord(error.object[error.start]):04x}"
        raise SchemaError(f"not Unicode text: the lone surrogate {lone} (a string cut inside an emoji?)") from None


def _system(row: Any) -> System:
    _require(isinstance(row, dict), "system", "an object", row)
    known = ("task_description", "action_space", "demonstrations", "initial_state", "simulation_instruction")
    _refuse_unknown("system.", row, known)
    for name in ("task_description", "action_space"):
        _require(isinstance(row.get(name), str), f"system.{name}", "a string", row.get(name))
    _require(isinstance(row.get("demonstrations", ""), str), "system.demonstrations", "a string", row.get(known[2]))
    for name in ("initial_state", "simulation_instruction"):
        value = row.get(name)
        _require(value is None or isinstance(value, str), f"system.{name}", "a string or absent", value)
    return System(**row)


def _turn(index: int, row: Any) -> Turn:
    name = f"turns[{index}]"
    _require(isinstance(row, dict), name, "an object", row)
    _refuse_unknown(f"{name}.", row, ("action", "observation", "meta"))
    for key in ("action", "observation"):
        _require(isinstance(row.get(key), str), f"{name}.{key}", "a string", row.get(key))
    meta = row.get("meta", {})
    _require(isinstance(meta, dict), f"{name}.meta", "an object", meta)
    return Turn(action=row["action"], observation=row["observation"], meta=meta)


def _require(holds: bool, name: str, expected: str, found: Any) -> None:
    if not holds:
        shown = repr(found)
        raise SchemaError(f"{name}: expected {expected}, found {shown if len(shown) <= 80 else shown[:77] + '...'}")


def _refuse_unknown(prefix: str, row: dict, known: tuple[str, ...]) -> None:
    for name in row:
        if name not in known:
            raise SchemaError(f"{prefix}{name}: unknown field; known: {', '.join(known)}")
