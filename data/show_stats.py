"""`agentworld show --stats`: what a file holds and how much of it the CPT mask keeps, in turns and in tokens.

Turns that are context only (what the harness said) are counted apart from the categories, so that the share that a
category keeps can be held against its keep ratio. Memory does not grow with the file: shares are kept by domain and
category, and lengths in a histogram whose classes are three significant digits wide (exact below 1,000).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from agentworld.data.masking import CATEGORIES
from agentworld.data.render import Renderer
from agentworld.data.schema import Trajectory
from agentworld.data.show import Source, read, turn_views
from agentworld.data.visible_text import visible

CONTEXT_ONLY = "(context only)"  # in the place of the category

LENGTHS = (
    "turns of a trajectory",
    "characters of a trajectory",
    "characters of an action",
    "characters of an observation",
)


@dataclass
class Share:
    """Turns of one domain and category, and the tokens of their observations, each with its end mark; the kept ones
    carry loss in CPT."""

    turns: int = 0
    kept_turns: int = 0
    tokens: int = 0
    kept_tokens: int = 0

    def add(self, other: "Share") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Lengths:
    """A histogram of lengths. Longer values than three digits are counted at their first three, so a quantile is at
    most 1 % too low; the maximum is exact."""

    counts: Counter[int] = field(default_factory=Counter)
    maximum: int = 0

    def add(self, value: int) -> None:
        unit = 10 ** max(0, len(str(value)) - 3)
        self.counts[value // unit * unit] += 1
        self.maximum = max(self.maximum, value)

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of the values does not exceed; 0 without values."""
        wanted = share * self.counts.total()
        seen = 0
        for value in sorted(self.counts):
            seen += self.counts[value]
            if seen >= wanted:
                return value
        return 0


@dataclass
class FileStatistics:
    """Of a whole file: `shares` by domain and category (or CONTEXT_ONLY), `lengths` by the names in LENGTHS,
    trajectories by domain."""

    trajectories: Counter[str] = field(default_factory=Counter)
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    lengths: dict[str, Lengths] = field(default_factory=lambda: {name: Lengths() for name in LENGTHS})

    def add(self, trajectory: Trajectory, source: Source, renderer: Renderer) -> None:
        """Count one trajectory."""
        self.trajectories[trajectory.domain] += 1
        for item in turn_views(trajectory, source):
            tokens, kept = len(renderer.encode(item.turn.observation)) + 1, int(item.kept)
            category = item.category if item.context_only is None else CONTEXT_ONLY
            self.shares.setdefault((trajectory.domain, category), Share()).add(Share(1, kept, tokens, kept * tokens))
            self.lengths[LENGTHS[2]].add(len(item.turn.action))
            self.lengths[LENGTHS[3]].add(len(item.turn.observation))
        self.lengths[LENGTHS[0]].add(len(trajectory.turns))
        self.lengths[LENGTHS[1]].add(sum(len(turn.action) + len(turn.observation) for turn in trajectory.turns))

    def total(self, domain: str | None = None) -> Share:
        """The sum over the categories of a domain, or of all."""
        total = Share()
        for (name, _), share in self.shares.items():
            if domain in (None, name):
                total.add(share)
        return total


def file_statistics(path: Path, source: Source, renderer: Renderer) -> FileStatistics:
    """Count every trajectory of a file.

    Raises:
        ContentError: at the first damaged line, `path:line: field: reason`.
    """
    found = FileStatistics()
    for trajectory in read(path):
        found.add(trajectory, source, renderer)
    return found


def tables(found: FileStatistics, source: Source, tokenizer_name: str) -> Iterator[Table | Text]:
    """The statistics as they are printed: a line of facts, the mask by domain and category, how to read it, lengths."""
    trajectories, turns = found.trajectories.total(), found.total().turns
    yield Text(
        f"{visible(str(source.path), False)}: {_counted(trajectories, 'trajectory', 'trajectories')}, "
        f"{_counted(turns, 'turn', 'turns')}; mask of CPT, seed {source.seed}, "
        f"{'settings of the run' if source.in_run else 'default settings'}"
    )
    yield _shares(found, source)
    yield Text(
        "kept: carries loss in CPT; keep ratio: the share of a category's turns that is to be kept (data.mask.keep).\n"
        f"{CONTEXT_ONLY}: what the harness said, history and never a target.\n"
        f"tokens: of the observations with their end mark; {tokenizer_name}."
    )
    yield _lengths(found)


def _shares(found: FileStatistics, source: Source) -> Table:
    table = Table("domain", "category", box=None, pad_edge=False)
    for head in ("keep\nratio", "turns", "turns\nkept", "tokens", "tokens\nkept"):
        table.add_column(head, justify="right")
    mask = source.settings.mask
    for domain, count in sorted(found.trajectories.items()):
        for category in (*CATEGORIES, CONTEXT_ONLY):
            if (share := found.shares.get((domain, category))) is not None:
                ratio = mask.keep.get(category, 1.0) if mask.enabled else 1.0
                table.add_row(domain, category, "-" if category == CONTEXT_ONLY else f"{ratio:.2f}", *_cells(share))
        whole = f"all of {_counted(count, 'trajectory', 'trajectories')}"
        table.add_row(domain, whole, "", *_cells(found.total(domain)), style="bold")
    if len(found.trajectories) > 1:
        table.add_row("all", "", "", *_cells(found.total()), style="bold")
    return table


def _lengths(found: FileStatistics) -> Table:
    table = Table("length", box=None, pad_edge=False)
    for head in ("median", "p90", "max"):
        table.add_column(head, justify="right")
    for name, values in found.lengths.items():
        table.add_row(name, *(f"{n:,}" for n in (values.quantile(0.5), values.quantile(0.9), values.maximum)))
    return table


def _counted(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _cells(share: Share) -> Iterator[str]:
    yield from (f"{share.turns:,}", _part(share.kept_turns, share.turns))
    yield from (f"{share.tokens:,}", _part(share.kept_tokens, share.tokens))


def _part(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
