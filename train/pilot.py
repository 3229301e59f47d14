"""The pilot of RL: some completions of its start for every prompt, scored, before anything is trained.

A worker of its own on all ranks. Prompts are taken in parts, each sampled from a seed of its own and written when it is
whole: a pilot that was stopped goes on with the parts that are missing, on any number of ranks, and finds what it would
have found. `pilot_groups.py` says what becomes of them.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from agentworld.data.errors import ContentError
from agentworld.rewards import completions, hybrid
from agentworld.rewards.settings import reward_outside_rl
from agentworld.train import engine, kernels, pilot_groups, run_directory
from agentworld.train.config import Config
from agentworld.train.generation import Generator, Rewarder, stored_row
from agentworld.train.rl_reward import completions_of, turn_of
from agentworld.train.stage import accepted_parent, on_first_rank

Prompt = Mapping[str, Any]  # a row of data/prompts/rl.parquet


def run(config: Config, run_dir: Path) -> None:
    """Sample and score what is missing, and write report.json.

    Raises:
        StoppedError: a stop was asked for; what is whole is kept.
        ContentError: RL could not start here, a judge failed on too many completions, or too few prompts are left.
    """
    parent = accepted_parent("rl", config, run_dir)
    kernels.install()
    prompts = pq.read_table(run_dir / "data" / "prompts" / "rl.parquet").to_pylist()
    folder, settings = pilot_groups.directory(run_dir), pilot_groups.settings_of(config, run_dir, parent)
    size, missing = _missing(folder, len(prompts), settings, config.eval.batch_size)
    parts = [prompts[first : first + size] for first in range(0, len(prompts), size)]
    if engine.rank() == 0:
        have = len(parts) - len(missing)
        print(f"pilot  {len(prompts)} prompts in {len(parts)} parts, {have} of them done before", flush=True)
    if missing:
        generator = Generator(_without_zeros(config), run_dir, parent)
        _sample(generator, [(number, parts[number]) for number in missing], folder)
    engine.largest(0)  # all ranks have written
    on_first_rank(_report, config, folder, settings, len(parts))
    pilot_groups.dropped_prompts(config, run_dir)


def _without_zeros(config: Config) -> Config:
    """With reward.judge.on_failure=zero an outage of the judge would look like groups on which nothing is right."""
    judge = replace(config.reward.judge, on_failure="leave_out")
    return replace(config, reward=replace(config.reward, judge=judge))


def _missing(folder: Path, prompts: int, settings: dict[str, Any], size: int) -> tuple[int, list[int]]:
    """Prompts of a part and the numbers of the parts to be sampled, the same on all ranks. Parts of another start or
    recipe are deleted; where some are kept, a part has as many prompts as they.

    Args:
        prompts: how many there are; size: of a part of a new pilot, in prompts.
    """
    found: list[Any] = [None]
    if engine.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        kept = known.pop("prompts_of_a_part", None)
        if known == settings:
            size = kept
        else:
            for stale in (folder / "report.json", *folder.glob("part_*.parquet")):
                stale.unlink(missing_ok=True)
            run_directory.write_json(path, {**settings, "prompts_of_a_part": size})
        # Listed and not looked up one by one: a network file system remembers that a name was not there.
        names = {entry.name for entry in os.scandir(folder)}
        found = [(size, [n for n in range(-(-prompts // size)) if _path(folder, n).name not in names])]
    if dist.is_initialized():
        dist.broadcast_object_list(found)
    return found[0]


def _path(folder: Path, number: int) -> Path:
    return folder / f"part_{number:05d}.parquet"


def _sample(generator: Generator, missing: Sequence[tuple[int, list[Prompt]]], folder: Path) -> None:
    """Each rank takes its share of the parts; all go through as many rounds. A judge that fails is noticed within about
    as many completions as a rollout has."""
    rl, limit = generator.config.rl, generator.config.reward.judge.failed_limit
    rewarder = Rewarder(generator)
    world = engine.world_size()
    judged, failed, doubtful = 0, 0, []  # since the last look, on all ranks; this rank's parts with failures
    for first in range(0, len(missing), world):
        mine = missing[first : first + world][engine.rank() :][:1]
        number, prompts = mine[0] if mine else (0, [])
        torch.manual_seed((generator.config.seed << 20) + number)
        rows = _completed(generator, prompts, rewarder)
        if mine:
            completions.write(_path(folder, number), rows)
        here = _judgements(rows)
        doubtful += [_path(folder, number)] * (here[1] > 0)
        judged, failed = judged + engine.total(here[0]), failed + engine.total(here[1])
        if engine.rank() == 0:
            done = min(first + world, len(missing))
            print(f"pilot  {done} of {len(missing)} parts sampled and scored", flush=True)
        if judged >= rl.prompts_per_rollout * rl.num_generations:
            _require_judgements(judged, failed, limit, doubtful)
            judged, failed, doubtful = 0, 0, []


def _judgements(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Completions that a judge was to judge, and those of them on which it failed."""
    return sum("judges" in row for row in rows), sum(row["reward"] is None for row in rows)


def _require_judgements(judged: int, failed: int, limit: float, doubtful: Sequence[Path]) -> None:
    """Refuse completions of which the judge has mostly failed on, and delete their parts that hold failures: a resume
    samples the same completions again, whose verdicts the cache holds, and asks for the missing ones only."""
    if failed <= limit * judged:
        return
    for path in doubtful:
        path.unlink()
    raise ContentError(
        f"pilot: the judge failed on {failed} of {judged} completions, more than reward.judge.failed_limit={limit:g}; "
        "the first reason stands above, and what was judged is kept; when the judge answers again, resume=true asks "
        "for the rest, and with a higher limit it goes on without them"
    )


def _completed(generator: Generator, prompts: Sequence[Prompt], rewarder: Rewarder) -> list[dict[str, Any]]:
    """The completions of some prompts as they are stored, those of one prompt together; collective."""
    rl, renderer = generator.config.rl, generator.renderer
    turns = [prompt for prompt in prompts for _ in range(rl.pilot_completions)]
    answers = generator.answer([turn["prompt_ids"] for turn in turns], rl.max_completion_tokens, rl.temperature)
    prompt_ids = {prompt["prompt"]: prompt["prompt_ids"] for prompt in prompts}
    keys = [turn["prompt"] for turn in turns]
    items = completions_of(renderer, prompt_ids, keys, answers, [turn_of(turn) for turn in turns])
    outcomes = rewarder.outcomes(keys, items)
    # What was predicted is kept as the reward has read it, from ids: in the text a control token that the model spelled
    # looks like one that it sampled.
    return [
        stored_row(turn["prompt"], item, outcome.row(), renderer.tokenizer.decode(ids), len(ids), step=0)
        | {"predicted": item.prediction.text, "tag_valid": item.prediction.tag_valid}
        for turn, item, outcome, ids in zip(turns, items, outcomes, answers, strict=True)
    ]


def _report(config: Config, folder: Path, settings: dict[str, Any], parts: int) -> None:
    reward = reward_outside_rl(config.reward)
    groups, judged, failed, doubtful = [], 0, 0, []
    for number, rows in enumerate(_parts(folder, parts)):
        judged_here, failed_here = _judgements(rows)
        judged, failed = judged + judged_here, failed + failed_here
        doubtful += [_path(folder, number)] * (failed_here > 0)
        groups += [
            pilot_groups.group_of(group, hybrid.ends_of_scale(reward, group[0]["domain"])) for group in _by_prompt(rows)
        ]
    _require_judgements(judged, failed, config.reward.judge.failed_limit, doubtful)
    report = pilot_groups.summary(groups, settings, pilot_groups.kinds_to_drop(config), parts)
    run_directory.write_json(folder / "report.json", report)
    print("\n".join(pilot_groups.table(report)), flush=True)


def _parts(folder: Path, parts: int) -> Iterable[list[dict[str, Any]]]:
    """The rows of each part; ContentError where one is not there."""
    os.listdir(folder)  # a network file system then sees what other nodes have written
    for number in range(parts):
        try:
            yield completions.read(_path(folder, number))
        except FileNotFoundError:
            raise ContentError(
                f"{_path(folder, number)} is not there, one of the {parts} parts of the pilot; delete "
                f"{folder / 'report.json'}, and resume=true samples what is missing"
            ) from None


def _by_prompt(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Rows that follow each other and answer the same prompt."""
    for _, group in groupby(rows, key=lambda row: row["prompt"]):
        yield list(group)


def reference_answers(run_dir: Path) -> dict[str, str]:
    """For each prompt what the first pilot completion of right form answered; where none has it, the first one.

    Raises:
        ContentError: a part of the pilot is missing.
    """
    folder = pilot_groups.directory(run_dir)
    parts = json.loads((folder / "report.json").read_text())["parts"]
    answers = {}
    for rows in chain.from_iterable(map(_by_prompt, _parts(folder, parts))):
        whole = [row for row in rows if row["ended"] and row["tag_valid"]]
        answers[rows[0]["prompt"]] = (whole or rows)[0]["predicted"]
    return answers
