"""The pilot of RL: some completions of its start for every prompt, scored, before anything is trained.

A worker of its own on all ranks. Prompts are taken in parts, each sampled from a seed of its own and written when it is
whole: a pilot that was stopped goes on with the parts that are missing, on any number of ranks, and finds what it would
have found. `pilot_groups.py` says what becomes of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from agentworld.data.errors import ContentError
from agentworld.data.render import parse_text
from agentworld.data.tokenizer import IM_END
from agentworld.rewards import completions, hybrid
from agentworld.rewards.judge import Completion, Outcome
from agentworld.train import engine, kernels, pilot_groups, run_directory
from agentworld.train.config import Config
from agentworld.train.generation import Generator, Rewarder, judgements, reward_outside_rl, stored_row

Prompt = Mapping[str, Any]  # a row of data/prompts/rl.parquet


def run(config: Config, run_dir: Path) -> None:
    """Sample and score what is missing, and write report.json.

    Raises:
        StoppedError: a stop was asked for; what is whole is kept.
        ContentError: a judge failed on too many completions, or too few prompts are left.
    """
    kernels.install()
    parent = run_directory.parent_of("rl", config, run_dir)
    prompts = pq.read_table(run_dir / "data" / "prompts" / "rl.parquet").to_pylist()
    size = config.eval.batch_size  # prompts a part: as many batches as completions a prompt
    parts = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    folder = pilot_groups.directory(run_dir)
    missing = _missing(folder, len(parts), pilot_groups.settings_of(config, run_dir, parent))
    if engine.rank() == 0:
        have = len(parts) - len(missing)
        print(f"pilot  {len(prompts)} prompts in {len(parts)} parts, {have} of them done before", flush=True)
    if missing:
        _sample(Generator(config, run_dir, parent), [(number, parts[number]) for number in missing], folder)
    engine.largest(0)  # all ranks have written
    if engine.rank() == 0:
        _report(config, run_dir, parent, len(parts))
    engine.largest(0)
    pilot_groups.dropped_prompts(config, run_dir)


def _missing(folder: Path, parts: int, settings: dict[str, Any]) -> list[int]:
    """Numbers of the parts to be sampled, the same on all ranks; parts of another start or recipe are deleted."""
    found: list[Any] = [None]
    if engine.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.is_file() or json.loads(path.read_text()) != settings:
            for stale in (folder / "report.json", *folder.glob("part_*.parquet")):
                stale.unlink(missing_ok=True)
            run_directory.write_json(path, settings)
        found = [[number for number in range(parts) if not _path(folder, number).is_file()]]
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return found[0]


def _path(folder: Path, number: int) -> Path:
    return folder / f"part_{number:05d}.parquet"


def _sample(generator: Generator, missing: Sequence[tuple[int, list[Prompt]]], folder: Path) -> None:
    """Each rank takes its share of the parts; all go through as many rounds."""
    rewarder = Rewarder(generator, on_failure="leave_out")  # a prompt is not dropped because its judge failed
    tally = _Judgements(generator.config)
    world = engine.world_size()
    for first in range(0, len(missing), world):
        mine = missing[first : first + world][engine.rank() :][:1]
        number, prompts = mine[0] if mine else (0, [])
        torch.manual_seed((generator.config.seed << 20) + number)
        rows, outcomes = _completed(generator, prompts, rewarder)
        if mine:
            completions.write(_path(folder, number), rows)
        tally.require(outcomes, _path(folder, number), last=first + world >= len(missing))


def _completed(
    generator: Generator, prompts: Sequence[Prompt], rewarder: Rewarder
) -> tuple[list[dict[str, Any]], list[Outcome]]:
    """The completions of some prompts as they are stored, those of one prompt together, and their rewards;
    collective."""
    rl, renderer = generator.config.rl, generator.renderer
    turns = [prompt for prompt in prompts for _ in range(rl.pilot_completions)]
    answers = generator.answer([turn["prompt_ids"] for turn in turns], rl.max_completion_tokens, rl.temperature)
    read = {prompt["prompt"]: tuple(renderer.messages(prompt["prompt_ids"])) for prompt in prompts}
    items = [
        Completion(
            renderer.parse(ids, tagged=True),
            turn["observation"],
            turn["action"],
            turn["deterministic"],
            turn["domain"],
            read[turn["prompt"]],
        )
        for turn, ids in zip(turns, answers, strict=True)
    ]
    outcomes = rewarder.outcomes([turn["prompt"] for turn in turns], items)
    rows = [
        stored_row(turn["prompt"], item, outcome.row(), renderer.tokenizer.decode(ids), len(ids), step=0)
        for turn, item, outcome, ids in zip(turns, items, outcomes, answers, strict=True)
    ]
    return rows, outcomes


class _Judgements:
    """Stops a pilot whose judge mostly fails. As in RL the share is that of a rollout's worth of completions, over all
    ranks: a part may hold one prompt, of which a single failure would be too much."""

    def __init__(self, config: Config) -> None:
        self._limit = config.reward.judge.failed_limit
        self._least = config.rl.prompts_per_rollout * config.rl.num_generations
        self._failed = self._judged = 0
        self._incomplete: list[Path] = []  # parts of this rank that lack verdicts
        self._reached = False  # a rollout's worth was judged before

    def require(self, outcomes: Sequence[Outcome], part: Path, last: bool) -> None:
        """Count the outcomes of a part, () for none; collective. `last`: none comes after it.

        Raises:
            ContentError: too many failed. The parts that lack verdicts are deleted: a resume samples the same
                completions and asks for the missing verdicts only.
        """
        failed, judged = judgements(outcomes)
        if failed:
            self._incomplete.append(part)
        self._failed += engine.total(failed)
        self._judged += engine.total(judged)
        of = self._judged if last and not self._reached else max(self._judged, self._least)
        if self._failed > self._limit * of:
            for path in self._incomplete:
                path.unlink()
            raise ContentError(
                f"pilot: the judge failed on {self._failed} of {self._judged} completions, more than "
                f"reward.judge.failed_limit={self._limit:g} of {of}; the first reason stands above; resume=true asks "
                "again"
            )
        if self._judged >= self._least:
            self._failed = self._judged = 0
            self._incomplete, self._reached = [], True


def _report(config: Config, run_dir: Path, parent: Path, parts: int) -> None:
    folder = pilot_groups.directory(run_dir)
    settings = pilot_groups.settings_of(config, run_dir, parent)
    reward = reward_outside_rl(config.reward)
    groups = [
        pilot_groups.group_of(rows, hybrid.ends_of_scale(reward, rows[0]["domain"]))
        for rows in _by_prompt(_stored(folder, parts))
    ]
    report = pilot_groups.summary(groups, settings)
    run_directory.write_json(folder / "report.json", report)
    print("\n".join(pilot_groups.table(report)), flush=True)


def _stored(folder: Path, parts: int) -> Iterable[dict[str, Any]]:
    for number in range(parts):
        yield from completions.read(_path(folder, number))


def _by_prompt(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Rows that follow each other and answer the same prompt."""
    for _, group in groupby(rows, key=lambda row: row["prompt"]):
        yield list(group)


def reference_answers(run_dir: Path) -> dict[str, str]:
    """For each prompt what the first pilot completion of right form answered; where none has it, the first one."""
    folder = pilot_groups.directory(run_dir)
    answers = {}
    for rows in _by_prompt(_stored(folder, len(list(folder.glob("part_*.parquet"))))):
        read = [parse_text(row["completion"].partition(IM_END)[0], row["ended"]) for row in rows]
        whole = [prediction for prediction in read if prediction.ended and prediction.tag_valid]
        answers[rows[0]["prompt"]] = (whole or read)[0].text
    return answers
