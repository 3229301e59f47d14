"""`agentworld verifiers` from its arguments to the file of verifiers and the report; `rewards` does the work."""

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.outputs import replacing, require_outputs
from agentworld.data.schema import Trajectory
from agentworld.data.trajectory_files import read_trajectories
from agentworld.data.visible_text import visible
from agentworld.rewards import sandbox
from agentworld.rewards.judge_cache import JudgeCache
from agentworld.rewards.judge_checks import address_parts
from agentworld.rewards.judge_client import JudgeClient
from agentworld.rewards.settings import JudgeSettings
from agentworld.rewards.synthesis import Author, SynthesisCount, SynthesisSettings, report, synthesise
from agentworld.rewards.synthesis_checks import Rollouts, read_rollouts

DONE = 0
PROGRESS_SECONDS = 10.0


def run(arguments: argparse.Namespace) -> int:
    """Write the verifiers that are kept, and say what became of the others.

    Raises:
        RequestError: arguments, paths, or a system without the sandbox.
        ContentError: damaged input, or requests that failed for good; what was answered is written all the same.
    """
    _check(arguments)
    sandbox.require()
    rollouts = Rollouts()
    if arguments.rollouts is not None:
        rollouts = read_rollouts(arguments.rollouts, arguments.form, arguments.rubric_yes)
    endpoint = _endpoint(arguments)
    author, count = Author(JudgeClient(endpoint, endpoint, ranks=1), JudgeCache(_cache(arguments))), SynthesisCount()
    settings = SynthesisSettings(arguments.prompt_tokens, arguments.agreement, arguments.seed)
    with replacing(arguments.out) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for row in synthesise(_trajectories(arguments), author, rollouts, settings, count, _progress()):
            file.write(json.dumps(row) + "\n")
    if arguments.report is not None:
        arguments.report.write_text(json.dumps(report(count, author, rollouts), indent=2) + "\n", encoding="utf-8")
    for line in summary(count, author, rollouts, arguments.out):
        print(visible(line))
    if count.failures:
        raise ContentError(
            f"{count.dropped['request failed']} requests failed, the first: {count.failures[0]}; {arguments.out} holds "
            "what was answered; the same command asks for the rest"
        )
    return DONE


def summary(count: SynthesisCount, author: Author, rollouts: Rollouts, out: Path) -> list[str]:
    """What was kept and dropped, a line each."""
    kept = ", ".join(f"{axis} {number}" for axis, number in count.kept.most_common()) or "none"
    asked = author.client.counts
    lines = [
        f"{out}: {count.kept.total()} verifiers ({kept}) of {count.chosen.total()} turns chosen in "
        f"{count.trajectories} trajectories; {count.kept_with_rollouts} of them agree with rollouts",
        *(f"  dropped {number:6}  {reason}" for reason, number in count.dropped.most_common()),
        f"  asked {asked.requests} requests ({asked.retries} retries, {asked.cached} answers from the cache), "
        f"{asked.prompt_tokens:,} + {asked.completion_tokens:,} tokens",
    ]
    if rollouts.rows:
        lines.append(f"  rollouts {rollouts.rows}, {rollouts.unusable} of broken form or without a rubric")
    return lines


def _progress() -> Callable[[str], None]:
    """Prints a line, but not more than one in PROGRESS_SECONDS."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            print(line, flush=True)

    return say


def _trajectories(arguments: argparse.Namespace) -> Iterator[Trajectory]:
    return islice(chain.from_iterable(map(read_trajectories, arguments.trajectories)), arguments.limit)


def _cache(arguments: argparse.Namespace) -> Path:
    return arguments.cache or arguments.out.with_name(f"{arguments.out.name}.cache.sqlite")


def _endpoint(arguments: argparse.Namespace) -> JudgeSettings:
    return JudgeSettings(
        base_url=arguments.base_url,
        model=arguments.model,
        key_variable=arguments.key_variable,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
        max_tokens_field=arguments.max_tokens_field,
        concurrency=arguments.concurrency,
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_minute=arguments.tokens_per_minute,
        timeout=arguments.timeout,
        attempts=arguments.attempts,
    )


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what could not end well, before anything is asked. No text repeats what might be a key."""
    read = [*arguments.trajectories, *([arguments.rollouts] if arguments.rollouts else [])]
    for path in read:
        if not path.exists():
            raise RequestError(f"{path}: no such file")
    written = {"--out": arguments.out, "--report": arguments.report, "--cache": _cache(arguments)}
    require_outputs({flag: path for flag, path in written.items() if path is not None}, read)
    if not 1 <= arguments.rubric_yes <= 5:
        raise RequestError(f"--rubric-yes {arguments.rubric_yes} is no mean from 1 to 5")
    if not math.isfinite(arguments.temperature):
        raise RequestError(f"--temperature {arguments.temperature} must be a finite number; below 0 it is not sent")
    parts = address_parts(arguments.base_url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise RequestError("--base-url must be the address of an endpoint, such as https://HOST/v1, without a key")
    if arguments.key_variable and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", arguments.key_variable):
        raise RequestError(
            "--key-variable must be the name of an environment variable in capitals, never the key itself"
        )
    if arguments.key_variable and not os.environ.get(arguments.key_variable, "").strip():
        raise RequestError(f"--key-variable: the environment variable {arguments.key_variable} is not set or empty")
