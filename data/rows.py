"""Rows of the stages from the pools: CPT and SFT rows, RL prompts, and their columns on disk."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentworld.data import masking
from agentworld.data.errors import ContentError
from agentworld.data.examples import Example, example, one_turn
from agentworld.data.packing import PackedRow, PackingCount
from agentworld.data.render import Rendered, Renderer
from agentworld.data.schema import Trajectory
from agentworld.data.settings import DataSettings
from agentworld.data.sft_samples import SftSample, holds_tag
from agentworld.data.simulation import instructed
from agentworld.data.system_prompts import EVALUATION_VERSION, sft_version, system_prompt

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


def cpt_documents(
    trajectories: Sequence[Trajectory], renderer: Renderer, settings: DataSettings, seed: int, share: float = 0.0
) -> tuple[list[Rendered], dict[str, Any]]:
    """Each trajectory as one conversation whose kept turns carry loss, and the shares of the mask's categories.

    The shares are those of the turns that may be targets, and say what the mask keeps whether or not it is enabled;
    without it every such turn carries loss.

    Args:
        share: of the trajectories with a simulation instruction, here on their last turn; 0 for held-out rows.
    """
    names = ("turns", "characters", "kept_turns", "kept_characters")
    shares = {category: dict.fromkeys(names, 0) for category in masking.CATEGORIES}
    documents, context_only = [], 0
    for trajectory in trajectories:
        trained = []
        for index, turn in enumerate(trajectory.turns):
            if not turn.is_target:
                context_only += 1
                trained.append(False)
                continue
            category = masking.category(turn.action, turn.observation)
            keep = masking.keeps_loss(category, settings.mask.keep, seed, trajectory.id, index)
            for name, value in zip(names, (1, len(turn.observation), keep, keep * len(turn.observation)), strict=True):
                shares[category][name] += value
            trained.append(keep or not settings.mask.enabled)
        told = instructed(trajectory, len(trajectory.turns) - 1, seed, share)
        system = system_prompt(told, CPT_VERSION, settings.prompt_set)
        documents.append(renderer.conversation(system, trajectory.turns, trained))
    return documents, {"enabled": settings.mask.enabled, "categories": shares, "context_only_turns": context_only}


def sft_documents(
    samples: Iterable[SftSample], renderer: Renderer, settings: DataSettings, seed: int, share: float = 0.0
) -> list[Rendered]:
    """Each sample in its trajectory's version of the system prompt, with its thought and the true observation; `share`
    as in `cpt_documents`."""
    documents = []
    for sample in samples:
        trajectory, index = sample.example.trajectory, sample.example.index
        told = instructed(trajectory, index, seed, share)
        system = system_prompt(told, sft_version(trajectory.id, seed), settings.prompt_set)
        thinking, observation = sample.trace.thinking, sample.example.observation
        documents.append(renderer.final_turn(system, trajectory.turns, index, thinking, observation))
    return documents


def rl_prompts(
    trajectories: Sequence[Trajectory], renderer: Renderer, settings: DataSettings, seed: int
) -> tuple[list[tuple[Example, list[int]]], dict[str, int]]:
    """One turn a trajectory (arXiv:2606.24597 section 3.4.2: several turns share prefixes and collapse RL).

    Prompts above `data.rl_prompt_tokens` are dropped, not cut (section 3.4), as are turns whose observation holds the
    answer's tag. The count says what was dropped, and how long the shortest prompt is.
    """
    prompts: list[tuple[Example, list[int]]] = []
    names = ("kept", "too_long", "unsayable", "deterministic", "tokens", "shortest_tokens")
    count = {"given": len(trajectories), **dict.fromkeys(names, 0)}
    for trajectory in trajectories:
        item = example(trajectory, one_turn(trajectory, seed))
        told = instructed(trajectory, item.index, seed, settings.simulation_share)
        ids = renderer.prompt(system_prompt(told, RL_VERSION, settings.prompt_set), trajectory.turns, item.index)
        count["shortest_tokens"] = min(len(ids), count["shortest_tokens"] or len(ids))
        if len(ids) > settings.rl_prompt_tokens:
            count["too_long"] += 1
        elif holds_tag(item.observation):
            count["unsayable"] += 1
        else:
            prompts.append((item, ids))
            count["kept"] += 1
            count["deterministic"] += item.deterministic is True
            count["tokens"] += len(ids)
    return prompts, count


def require_rows(stage: str, rows: list[PackedRow], count: PackingCount, limit: int, documents: list[Rendered]) -> None:
    """Raise ContentError naming the limit when packing left nothing to train on (a loss over no label is NaN)."""
    if rows:
        return
    shortest = min((len(document.input_ids) for document in documents), default=0)
    causes = (
        f"{count.dropped_too_long} longer than the row, {count.dropped_untrained} without a token that carries loss"
    )
    way_out = f"raise data.{stage}_row_tokens" + (" or data.mask.keep" if stage == "cpt" else "")
    raise ContentError(
        f"{stage}: nothing is left to train on with data.{stage}_row_tokens={limit}: of {len(documents)} documents "
        f"{causes}; the shortest has {shortest} tokens; {way_out}"
    )


def write_rows(path: Path, rows: Sequence[PackedRow]) -> None:
    """Parquet with the three columns that the trainer reads: input_ids, labels, seq_lengths (lists of int32)."""
    columns = {name: [getattr(row, name) for row in rows] for name in ROW_SCHEMA.names}
    pq.write_table(pa.table(columns, schema=ROW_SCHEMA), path)


def write_prompts(path: Path, prompts: Sequence[tuple[Example, list[int]]]) -> None:
    """Parquet with the columns of PROMPT_SCHEMA; `prompt` is the example's key."""
    columns = {
        "prompt": [item.key for item, _ in prompts],
        "prompt_ids": [ids for _, ids in prompts],
        "domain": [item.domain for item, _ in prompts],
        "action": [item.action for item, _ in prompts],
        "observation": [item.observation for item, _ in prompts],
        "deterministic": [item.deterministic is True for item, _ in prompts],
    }
    pq.write_table(pa.table(columns, schema=PROMPT_SCHEMA), path)


def packing_report(count: PackingCount) -> dict[str, Any]:
    """The count as it stands in report.json, with the fill of the rows."""
    return {**asdict(count), "fill": count.fill}
