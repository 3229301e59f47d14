"""Preparation: from trajectories, recorded or given, to everything that the stages read.

    recorded.jsonl            what was recorded (absent when `data.trajectories` names files)
    cpt|sft|rl|eval.jsonl     the pools, disjoint by split_group
    traces.jsonl              the correct traces in use: key, family, thinking, prediction
    tokenizer/                Hugging Face tokenizer, with the chat template of the renderer
    rows/*.parquet            cpt, sft and their held-out rows from the eval pool: input_ids, labels, seq_lengths
    prompts/rl.parquet        prompt (key), prompt_ids, domain, action, observation, deterministic
    report.json               what was kept, what was dropped and why
    manifest.json             hash of every file above but the report, which holds timings

The same input and seed give the same bytes.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentworld.data import filters
from agentworld.data.corpus import read_corpus
from agentworld.data.duplicates import drop_duplicates
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.held_out import read_held_out
from agentworld.data.manifest import REPORT, is_prepared, write_manifest
from agentworld.data.mixing import mix
from agentworld.data.packing import pack_splitting, pack_whole
from agentworld.data.record.terminal import record
from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.rows import (
    CPT_VERSION,
    cpt_documents,
    packing_report,
    require_rows,
    rl_prompts,
    sft_documents,
    write_prompts,
    write_rows,
)
from agentworld.data.schema import Trajectory, write_jsonl
from agentworld.data.settings import DataSettings
from agentworld.data.sft_samples import SftSample, Teacher, choose_samples
from agentworld.data.simulation import count_instructions
from agentworld.data.splits import split_pools
from agentworld.data.system_prompts import VERSIONS, sft_version, system_prompt
from agentworld.data.tokenizer import adapt, check_vocab_size, train_tokenizer
from agentworld.data.validation import validate

__all__ = ["is_prepared", "prepare"]

Pools = dict[str, list[Trajectory]]
Samples = dict[str, list[SftSample]]


def prepare(
    settings: DataSettings,
    seed: int,
    out: Path,
    teacher: Teacher,
    tokenizer: PreTrainedTokenizerFast | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Prepare everything into `out` and return the report; what stood there is replaced at the end.

    Args:
        teacher: gives a Trace for (history, action) or None; see `sft_samples.choose_samples`.
        tokenizer: the one that the model brings; None trains one on the CPT and SFT pools.
        say: called with a line of progress now and then.

    Raises:
        RequestError: settings that contradict, a missing input file, a path that cannot be written.
        ContentError: damaged or empty input, or a pool or stage with nothing left; the text names the way out.
    """
    validate(settings)
    if tokenizer is None:
        check_vocab_size(settings.tokenizer_vocab_size)
    with _staged(Path(out)) as directory:
        clock = _Clock()
        trajectories, report = _gather(settings, seed, directory, say)
        clock.lap("gather")
        pools, samples, selection = _select(settings, seed, trajectories, teacher, directory)
        report |= selection
        clock.lap("select")
        if tokenizer is None:
            texts = _texts(settings, seed, pools, samples)
            tokenizer = train_tokenizer(texts, settings.tokenizer_vocab_size, settings.tokenizer_units)
            report["tokenizer"] = {"size": len(tokenizer), "trained": True}
        else:
            report["tokenizer"] = {"size": len(tokenizer), "trained": False}
        tokenizer = adapt(tokenizer)
        tokenizer.save_pretrained(directory / "tokenizer")
        clock.lap("tokenizer")
        say(f"tokenizer: {len(tokenizer)} tokens; rendering and packing")
        report |= _render(settings, seed, pools, samples, Renderer(tokenizer), directory, say)
        clock.lap("rows")
        report["seconds"] = clock.laps | {"total": sum(clock.laps.values())}
        report["sha256"] = write_manifest(directory)["sha256"]
        (directory / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


class _Clock:
    """Seconds of each step since the one before."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = round(now - self._last, 3), now


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A temporary sibling of `out`, which takes its place when the block ends well and vanishes when it does not."""
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out}: exists and is no directory")
    temporary = out.parent / f".{out.name}.tmp-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(out)
        temporary.mkdir()
    except OSError as error:
        raise RequestError(f"{out}: cannot be written: {error.strerror}") from error
    try:
        yield temporary
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    """Remove temporary siblings whose process is gone (or is this one: it left the block long ago)."""
    prefix = f".{out.name}.tmp-"
    for path in out.parent.iterdir():
        pid = path.name.removeprefix(prefix)
        if path.name.startswith(prefix) and pid.isdigit() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _gather(
    settings: DataSettings, seed: int, directory: Path, say: Callable[[str], None]
) -> tuple[list[Trajectory], dict[str, Any]]:
    """Record or read, then filter."""
    recorded = None
    paths: Sequence[str | Path] = settings.trajectories
    if not paths:
        paths = [directory / "recorded.jsonl"]
        recorded = record(settings.record, seed, paths[0], say)
    read, read_count = read_corpus(paths, settings.on_bad)
    for reason in read_count.reasons[:5]:
        say(f"skipped: {reason}")
    kept, filter_count = filters.apply(read, settings.min_turns)
    filtered = bool(kept)
    kept, duplicate_count = drop_duplicates(kept, settings.duplicates, read_held_out(settings.held_out))
    say(f"trajectories: {len(kept)} of {read_count.read} kept")
    if filtered and not kept:
        raise ContentError(f"no trajectory is left: the split groups of all {filter_count.kept} are in data.held_out")
    if not kept:
        raise ContentError(
            f"no trajectory is left after the filters: of {filter_count.read} read, {filter_count.too_short} have "
            f"fewer than data.min_turns={settings.min_turns} turns; lower it or give longer ones"
        )
    report = {
        "seed": seed,
        "files": [str(path) for path in settings.trajectories],
        "recorded": recorded,
        "read": asdict(read_count),
        "filters": asdict(filter_count),
        "duplicates": duplicate_count.to_dict(),
    }
    return kept, report


def _select(
    settings: DataSettings, seed: int, trajectories: list[Trajectory], teacher: Teacher, directory: Path
) -> tuple[Pools, Samples, dict[str, Any]]:
    """Split into pools and find the SFT samples of the sft and eval pools; writes pools and traces."""
    pools = split_pools(trajectories, settings.split, seed)
    samples, teacher_report = {}, {}
    for pool in ("sft", "eval"):
        samples[pool], count = choose_samples(pools[pool], teacher, seed)
        teacher_report[pool] = count.to_dict()
        if pool == "sft" and pools["sft"] and not samples["sft"]:
            raise ContentError(
                f"sft: no trace is left: of {count.turns} turns the teacher answered {count.answered}, none of them "
                "as the environment did; "
                "run stage=cpt with data.split.sft=0 and its share added to data.split.cpt, which needs no traces"
            )
    for name, pool in pools.items():
        write_jsonl(directory / f"{name}.jsonl", pool)
    with open(directory / "traces.jsonl", "w", encoding="utf-8") as file:
        for sample in samples["sft"] + samples["eval"]:
            row = {"key": sample.example.key, **asdict(sample.trace)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    pool_report = {
        name: {
            "trajectories": len(pool),
            "groups": len({t.split_group for t in pool}),
            "turns": sum(len(t.turns) for t in pool),
        }
        for name, pool in pools.items()
    }
    return pools, samples, {"pools": pool_report, "teacher": teacher_report}


def _texts(settings: DataSettings, seed: int, pools: Pools, samples: Samples) -> Iterable[str]:
    """What the tokenizer is trained on: the segments of the CPT and SFT documents, as often as they are rendered, and
    each version of the system prompt once a domain."""
    seen_domains = set()
    for trajectory in pools["cpt"] + pools["sft"]:
        if trajectory.domain not in seen_domains:
            seen_domains.add(trajectory.domain)
            yield from (system_prompt(trajectory, version, settings.prompt_set) for version in VERSIONS)
    for trajectory in pools["cpt"]:
        yield from ("system\n", system_prompt(trajectory, CPT_VERSION, settings.prompt_set))
        for turn in trajectory.turns:
            yield from ("user\n", turn.action, "assistant\n", turn.observation)
    for sample in samples["sft"]:
        item = sample.example
        yield system_prompt(item.trajectory, sft_version(item.trajectory.id, seed), settings.prompt_set)
        for turn in item.history:
            yield from (turn.action, turn.observation)
        yield from (item.action, f"\n{sample.trace.thinking}\n", f"\n\n{OPEN_TAG}", item.observation, CLOSE_TAG)


def _render(
    settings: DataSettings,
    seed: int,
    pools: Pools,
    samples: Samples,
    renderer: Renderer,
    directory: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Render, pack and write rows and prompts; returns their part of the report."""
    (directory / "rows").mkdir()
    (directory / "prompts").mkdir()
    packed = {}
    share = settings.simulation_share
    cpt, mask = cpt_documents(pools["cpt"], renderer, settings, seed, share)
    tokens, trained = sum(len(d.input_ids) for d in cpt), sum(sum(d.trained) for d in cpt)
    mixture = mix(settings.documents, tokens, trained, renderer, seed, settings.on_bad, directory, say)
    cpt += mixture.documents()
    cpt_heldout, _ = cpt_documents(pools["eval"], renderer, settings, seed)
    stages = {
        "cpt": (cpt, pack_splitting, settings.cpt_row_tokens),
        "cpt_heldout": (cpt_heldout, pack_splitting, settings.cpt_row_tokens),
        "sft": (sft_documents(samples["sft"], renderer, settings, seed, share), pack_whole, settings.sft_row_tokens),
        "sft_heldout": (sft_documents(samples["eval"], renderer, settings, seed), pack_whole, settings.sft_row_tokens),
    }
    for name, (documents, pack, row_tokens) in stages.items():
        rows, count = pack(documents, row_tokens)
        if documents and not name.endswith("_heldout"):
            require_rows(name, rows, count, row_tokens, documents)
        write_rows(directory / "rows" / f"{name}.parquet", rows)
        packed[name] = packing_report(count)
    prompts, prompt_count = rl_prompts(pools["rl"], renderer, settings, seed)
    write_prompts(directory / "prompts" / "rl.parquet", prompts)
    told = {
        "share": share,
        "cpt": count_instructions(((t, len(t.turns) - 1) for t in pools["cpt"]), seed, share).to_dict(),
        "rl": count_instructions(((item.trajectory, item.index) for item, _ in prompts), seed, share).to_dict(),
    }
    return {"mask": mask, "rows": packed, "rl": prompt_count, "instructions": told, "documents": mixture.report}
