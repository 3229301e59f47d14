"""Rows of the stages from the pools: CPT and SFT rows, RL prompts, and their columns on disk."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentworld.data import masking
from agentworld.data.errors import ContentError
from agentworld.data.examples import example, one_turn
from agentworld.data.packing import PackedRow, PackingCount
from agentworld.data.render import Rendered, Renderer
from agentworld.data.schema import Trajectory
from agentworld.data.settings import DataSettings, MaskSettings
from agentworld.data.sft_samples import SftSample, holds_tag
from agentworld.data.simulation import instructed
from agentworld.data.system_prompts import EVALUATION_VERSION, sft_version, system_prompt

GROUP_TOKENS = 1 << 20  # of a row group of Parquet; some 100 bytes each in memory while it is written
_SHARES = ("turns", "characters", "kept_turns", "kept_characters")
CPT_VERSION, RL_VERSION = EVALUATION_VERSION["cpt"], EVALUATION_VERSION["rl"]

ROW_SCHEMA = pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", "labels", "seq_lengths")])
PROMPT_SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("domain", pa.string()),
        ("action", pa.string()),
        ("observation", pa.string()),
        ("deterministic", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class TurnLoss:
    """What the CPT mask makes of a turn. `category` is None for words of the harness, which are never a target. `kept`
    is the mask's verdict whether or not it is enabled; `trained` is what counts."""

    category: str | None
    kept: bool
    trained: bool


def turn_losses(trajectory: Trajectory, settings: MaskSettings, seed: int) -> list[TurnLoss]:
    """The verdict on each turn; without the mask every turn that may be a target carries loss."""
    losses = []
    for index, turn in enumerate(trajectory.turns):
        if not turn.is_target:
            losses.append(TurnLoss(None, False, False))
            continue
        category = masking.category(turn.action, turn.observation)
        kept = masking.keeps_loss(category, settings.keep, seed, trajectory.id, index)
        losses.append(TurnLoss(category, kept, kept or not settings.enabled))
    return losses


@dataclass
class MaskShares:
    """The shares of the mask's categories, by category: turns, characters of their observations, and those kept."""

    categories: dict[str, dict[str, int]] = field(
        default_factory=lambda: {category: dict.fromkeys(_SHARES, 0) for category in masking.CATEGORIES}
    )
    context_only_turns: int = 0

    def add(self, trajectory: Trajectory, losses: Sequence[TurnLoss]) -> None:
        """Count one trajectory."""
        for turn, loss in zip(trajectory.turns, losses, strict=True):
            if loss.category is None:
                self.context_only_turns += 1
                continue
            values = (1, len(turn.observation), loss.kept, loss.kept * len(turn.observation))
            for name, value in zip(_SHARES, values, strict=True):
                self.categories[loss.category][name] += value

    def merge(self, other: "MaskShares") -> None:
        """Add what another one has counted."""
        self.context_only_turns += other.context_only_turns
        for category, shares in other.categories.items():
            for name, value in shares.items():
                self.categories[category][name] += value


def cpt_document(
    trajectory: Trajectory,
    losses: Sequence[TurnLoss],
    renderer: Renderer,
    settings: DataSettings,
    seed: int,
    share: float = 0.0,
) -> tuple[Rendered, str]:
    """A trajectory as one conversation whose trained turns carry loss, and the kind of its simulation instruction.

    Args:
        share: of the trajectories with an instruction, here on their last turn; 0 for held-out rows.
    """
    told, kind = instructed(trajectory, len(trajectory.turns) - 1, seed, share)
    system = system_prompt(told, CPT_VERSION, settings.prompt_set)
    return renderer.conversation(system, trajectory.turns, [loss.trained for loss in losses]), kind


def sft_document(
    sample: SftSample, renderer: Renderer, settings: DataSettings, seed: int, share: float = 0.0
) -> Rendered:
    """A sample in its trajectory's version of the system prompt, with its thought and the true observation; `share` as
    in `cpt_document`."""
    trajectory, index = sample.example.trajectory, sample.example.index
    told, _ = instructed(trajectory, index, seed, share)
    system = system_prompt(told, sft_version(trajectory.id, seed), settings.prompt_set)
    return renderer.final_turn(system, trajectory.turns, index, sample.trace.thinking, sample.example.observation)


@dataclass(frozen=True)
class Prompt:
    """An RL prompt: the ids that the model reads, and the turn that it is to predict. `key` is that of the example,
    `instruction` the kind of its simulation instruction."""

    key: str
    ids: Sequence[int]
    domain: str
    action: str
    observation: str
    deterministic: bool
    instruction: str


def rl_prompt(trajectory: Trajectory, renderer: Renderer, settings: DataSettings, seed: int) -> Prompt:
    """The one turn that a trajectory gives (arXiv:2606.24597 section 3.4.2: several share prefixes: RL collapses)."""
    item = example(trajectory, one_turn(trajectory, seed))
    told, kind = instructed(trajectory, item.index, seed, settings.simulation_share)
    ids = renderer.prompt(system_prompt(told, RL_VERSION, settings.prompt_set), trajectory.turns, item.index)
    return Prompt(item.key, ids, item.domain, item.action, item.observation, item.deterministic is True, kind)


@dataclass
class PromptCount:
    """Prompts; given = kept + too_long + unsayable. `tokens` are of those kept."""

    given: int = 0
    kept: int = 0
    too_long: int = 0
    unsayable: int = 0
    deterministic: int = 0  # of those kept
    tokens: int = 0
    shortest_tokens: int = 0  # of those given

    def admits(self, prompt: Prompt, limit: int) -> bool:
        """Count a prompt and say whether it is kept: one of more than `limit` tokens is dropped, not cut (section 3.4),
        as is one whose observation holds the answer's tag."""
        tokens = len(prompt.ids)
        self.shortest_tokens = min(tokens, self.shortest_tokens) if self.given else tokens
        self.given += 1
        if tokens > limit:
            self.too_long += 1
            return False
        if holds_tag(prompt.observation):
            self.unsayable += 1
            return False
        self.kept += 1
        self.deterministic += prompt.deterministic
        self.tokens += tokens
        return True


def require_rows(stage: str, count: PackingCount) -> None:
    """Raise ContentError naming the limit when packing left nothing to train on (a loss over no label is NaN)."""
    if count.tokens or not count.given:
        return
    causes = (
        f"{count.dropped_too_long} longer than the row, {count.dropped_untrained} without a token that carries loss"
    )
    way_out = f"raise data.{stage}_row_tokens" + (" or data.mask.keep" if stage == "cpt" else "")
    raise ContentError(
        f"{stage}: nothing is left to train on with data.{stage}_row_tokens={count.row_tokens}: of {count.given} "
        f"documents {causes}; the shortest has {count.shortest_tokens} tokens; {way_out}"
    )


def write_rows(path: Path, rows: Iterable[PackedRow]) -> None:
    """Parquet with the three columns that the trainer reads: input_ids, labels, seq_lengths (lists of int32)."""
    records = ({name: getattr(row, name) for name in ROW_SCHEMA.names} for row in rows)
    _write(path, ROW_SCHEMA, records, "input_ids")


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Parquet with the columns of PROMPT_SCHEMA; `prompt` is the example's key."""
    names = ("domain", "action", "observation", "deterministic")
    records = (
        {"prompt": each.key, "prompt_ids": each.ids, **{name: getattr(each, name) for name in names}}
        for each in prompts
    )
    _write(path, PROMPT_SCHEMA, records, "prompt_ids")


def _write(path: Path, schema: pa.Schema, records: Iterable[dict[str, Any]], sized_by: str) -> None:
    """Row groups of at least GROUP_TOKENS tokens, the last one maybe fewer."""
    with pq.ParquetWriter(path, schema) as writer:
        group, tokens = [], 0
        for record in records:
            group.append(record)
            tokens += len(record[sized_by])
            if tokens >= GROUP_TOKENS:
                writer.write_table(_table(group, schema))
                group, tokens = [], 0
        if group:
            writer.write_table(_table(group, schema))


def _table(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Column by column: lists of arrays go in as they are, `from_pylist` would look at every id."""
    columns = [pa.array([record[field.name] for record in records], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def packing_report(count: PackingCount) -> dict[str, Any]:
    """The count as it stands in report.json, with the fill of the rows."""
    return {**asdict(count), "fill": count.fill}
