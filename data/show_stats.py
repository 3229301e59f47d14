"""`agentworld show --stats`: what a file holds and how much of it the CPT mask keeps, read in one pass.

Memory does not grow with the file: counts are kept by domain and category, and lengths in a histogram whose classes are
three significant digits wide (exact below 1,000).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from agentworld.data.masking import CATEGORIES
from agentworld.data.render import Renderer
from agentworld.data.schema import Trajectory
from agentworld.data.show import Source, read, turn_views
from agentworld.data.visible_text import visible

LENGTHS = (
    "turns of a trajectory",
    "characters of a trajectory",
    "characters of an action",
    "characters of an observation",
)


@dataclass
class Share:
    """Turns of one domain and category. Characters and tokens are those of the observations, tokens with the end mark;
    the kept ones carry loss in CPT."""

    turns: int = 0
    kept_turns: int = 0
    characters: int = 0
    kept_characters: int = 0
    tokens: int = 0
    kept_tokens: int = 0
    context_only: int = 0

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
    """Of a whole file: `shares` by (domain, category), `lengths` by the names in LENGTHS, trajectories by domain."""

    trajectories: Counter[str] = field(default_factory=Counter)
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    lengths: dict[str, Lengths] = field(default_factory=lambda: {name: Lengths() for name in LENGTHS})

    def add(self, trajectory: Trajectory, source: Source, renderer: Renderer | None) -> None:
        """Count one trajectory."""
        self.trajectories[trajectory.domain] += 1
        observations = [turn.observation for turn in trajectory.turns]
        tokens = [len(renderer.encode(text)) + 1 for text in observations] if renderer else [0] * len(observations)
        for item, count in zip(turn_views(trajectory, source), tokens, strict=True):
            characters, kept = len(item.turn.observation), int(item.kept)
            share = self.shares.setdefault((trajectory.domain, item.category), Share())
            context = item.context_only is not None
            share.add(Share(1, kept, characters, kept * characters, count, kept * count, context))
            self.lengths[LENGTHS[2]].add(len(item.turn.action))
            self.lengths[LENGTHS[3]].add(characters)
        self.lengths[LENGTHS[0]].add(len(trajectory.turns))
        self.lengths[LENGTHS[1]].add(sum(len(turn.action) + len(turn.observation) for turn in trajectory.turns))

    def total(self, domain: str | None = None) -> Share:
        """The sum over the categories of a domain, or of all."""
        total = Share()
        for (name, _), share in self.shares.items():
            if domain in (None, name):
                total.add(share)
        return total


def file_statistics(path: Path, source: Source, renderer: Renderer | None = None) -> FileStatistics:
    """Count every trajectory of a file.

    Args:
        renderer: also counts tokens.

    Raises:
        ContentError: at the first damaged line, `path:line: field: reason`.
    """
    found = FileStatistics()
    for trajectory in read(path):
        found.add(trajectory, source, renderer)
    return found


def tables(found: FileStatistics, source: Source, with_tokens: bool) -> Iterator[Table | Text]:
    """The statistics as they are printed: a line of facts, the mask by domain and category, the lengths."""
    total = found.total()
    mask = "" if source.settings.mask.enabled else "; data.mask.enabled=false, so every turn carries loss"
    yield Text(
        f"{visible(str(source.path), False)}: {found.trajectories.total():,} trajectories, {total.turns:,} turns, "
        f"{total.context_only:,} of them context only; seed {source.seed}{mask}"
    )
    yield _shares(found, with_tokens)
    lengths = Table("length", "median", "p90", "max", box=None, pad_edge=False)
    for column in lengths.columns[1:]:
        column.justify = "right"
    for name, values in found.lengths.items():
        lengths.add_row(name, *(f"{n:,}" for n in (values.quantile(0.5), values.quantile(0.9), values.maximum)))
    yield lengths


def _shares(found: FileStatistics, with_tokens: bool) -> Table:
    table = Table("domain", "category", box=None, pad_edge=False)
    heads = ["turns", "kept", "context\nonly", "observed\ncharacters", "kept"] + ["tokens", "kept"] * with_tokens
    for head in heads:
        table.add_column(head, justify="right")
    for domain, count in sorted(found.trajectories.items()):
        rows = [(category, found.shares.get((domain, category))) for category in CATEGORIES]
        for category, share in rows:
            if share is not None:
                table.add_row(domain, category, *_cells(share, with_tokens))
        table.add_row(domain, f"all of {count:,} trajectories", *_cells(found.total(domain), with_tokens), style="bold")
    if len(found.trajectories) > 1:
        table.add_row("all", "", *_cells(found.total(), with_tokens), style="bold")
    return table


def _cells(share: Share, with_tokens: bool) -> Iterable[str]:
    yield from (f"{share.turns:,}", _part(share.kept_turns, share.turns), f"{share.context_only:,}")
    yield from (f"{share.characters:,}", _part(share.kept_characters, share.characters))
    if with_tokens:
        yield from (f"{share.tokens:,}", _part(share.kept_tokens, share.tokens))


def _part(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
