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

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.gathering import gather
from agentworld.data.manifest import REPORT, is_prepared, write_manifest
from agentworld.data.pools import samples, trajectories_of, write_traces
from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.rendering import Rendering
from agentworld.data.rows import CPT_VERSION
from agentworld.data.settings import DataSettings
from agentworld.data.sft_samples import Teacher, TeacherCount
from agentworld.data.stage_rows import write_stage_rows
from agentworld.data.system_prompts import VERSIONS, sft_version, system_prompt
from agentworld.data.tokenizer import adapt, check_vocab_size, train_tokenizer
from agentworld.data.validation import validate

__all__ = ["is_prepared", "prepare"]


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
        scratch = directory / "scratch"  # on the disk of the output: its files can be as large
        scratch.mkdir()
        report = gather(settings, seed, directory, scratch, say)
        clock.lap("gather")
        counts = write_traces(seed, teacher, directory)
        report["teacher"] = {pool: count.to_dict() for pool, count in counts.items()}
        clock.lap("select")
        trained = tokenizer is None
        if tokenizer is None:
            texts = _texts(settings, seed, directory, counts)
            tokenizer = train_tokenizer(texts, settings.tokenizer_vocab_size, settings.tokenizer_units)
        tokenizer = adapt(tokenizer)
        report["tokenizer"] = {"size": len(tokenizer), "trained": trained}
        tokenizer.save_pretrained(directory / "tokenizer")
        rendering = Rendering(Renderer(tokenizer), settings, seed)
        clock.lap("tokenizer")
        say(f"tokenizer: {len(tokenizer)} tokens; rendering and packing")
        report |= write_stage_rows(rendering, counts, directory, scratch, say)
        shutil.rmtree(scratch)
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
    except BrokenProcessPool:
        raise ContentError(
            "a process of the preparation was killed, often for a lack of memory; lower data.workers, or give it more"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise RequestError(
            f"{out.parent}: {error.strerror}; a preparation needs several times the room of its trajectories there"
        ) from error
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


def _texts(settings: DataSettings, seed: int, directory: Path, counts: dict[str, TeacherCount]) -> Iterator[str]:
    """What the tokenizer is trained on: the segments of the CPT and SFT documents, as often as they are rendered, and
    each version of the system prompt once a domain."""
    seen_domains = set()
    for trajectory in chain(trajectories_of(directory, "cpt"), trajectories_of(directory, "sft")):
        if trajectory.domain not in seen_domains:
            seen_domains.add(trajectory.domain)
            yield from (system_prompt(trajectory, version, settings.prompt_set) for version in VERSIONS)
    for trajectory in trajectories_of(directory, "cpt"):
        yield from ("system\n", system_prompt(trajectory, CPT_VERSION, settings.prompt_set))
        for turn in trajectory.turns:
            yield from ("user\n", turn.action, "assistant\n", turn.observation)
    for sample in samples(directory, counts, "sft"):
        item = sample.example
        yield system_prompt(item.trajectory, sft_version(item.trajectory.id, seed), settings.prompt_set)
        for turn in item.history:
            yield from (turn.action, turn.observation)
        yield from (item.action, f"\n{sample.trace.thinking}\n", f"\n\n{OPEN_TAG}", item.observation, CLOSE_TAG)
