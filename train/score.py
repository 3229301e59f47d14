"""`agentworld score` from its arguments to the table, the scored file and the page; `rewards` does the scoring."""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.examples import Example, select_examples
from agentworld.data.outputs import is_same_file, replacing, require_outputs
from agentworld.data.schema import DOMAINS, Trajectory
from agentworld.data.trajectory_files import read_trajectories
from agentworld.data.visible_text import counted, visible
from agentworld.rewards.corruptions import CORRUPTIONS, Proof, prove, versions
from agentworld.rewards.outcomes import Completion, Outcome
from agentworld.rewards.predictions import (
    FILES,
    Scored,
    completion,
    groups_of,
    has_tag,
    is_stored,
    read_rows,
    scored,
    stored,
)
from agentworld.rewards.score_html import page, shown_first
from agentworld.rewards.settings import JUDGED, RewardSettings
from agentworld.rewards.turn_verifiers import load
from agentworld.train.compose import compose_reward, options
from agentworld.train.score_judge import cache_path, require_judgements, rewards
from agentworld.train.screen import screen

DONE = 0
DEFAULT_REWARD = "offline"
_HEADINGS = ("domain", "rows", "prompts", "reward", "± se", "rubric", "rule yes", "failed", "guards")
NAMED = 3  # keys that are named where a proof fails


def run(arguments: argparse.Namespace) -> int:
    """Score a file of predictions, or prove a reward on trajectories.

    Raises:
        RequestError: arguments that contradict each other, an unknown reward, a path that cannot be read or written.
        ContentError: a damaged row; a reward that does not hold on gold.
    """
    _check(arguments)
    settings = reward_settings(arguments.reward or DEFAULT_REWARD, arguments.overrides)
    _check_files(arguments, settings)
    if arguments.validate is not None:
        return _validate(arguments, settings)
    rows, outcomes = _scored(arguments, settings)
    _write(arguments.out, lambda: "".join(json.dumps(row.fields, ensure_ascii=False) + "\n" for row in rows))
    lines = summary(rows)
    if arguments.html is not None:
        shown = shown_first(rows, arguments.html_rows)
        title = f"{arguments.predictions}: {counted(len(rows), 'prediction')}"
        _write(arguments.html, lambda: page(title, [_HEADINGS, *lines], shown, len(rows) - len(shown)))
    _print_table("", _HEADINGS, lines)
    print(visible(f"{arguments.out}: {counted(len(rows), 'row')}" + (f"; {arguments.html}" if arguments.html else "")))
    require_judgements(settings, outcomes, f"{arguments.out} is written all the same")
    return DONE


def reward_settings(name: str, overrides: Sequence[str]) -> RewardSettings:
    """The reward that `recipes/reward/<name>.yaml` or the run directory `name` describes, with `reward.key=value`
    changed.

    Raises:
        RequestError: there is no such reward or key.
    """
    if name not in options("reward") and not (Path(name) / "recipe.yaml").is_file():
        available = ", ".join(options("reward"))
        raise RequestError(f"--reward {name}: no such reward and no run directory; available: {available}")
    return compose_reward(name, overrides)


def summary(rows: Sequence[Scored]) -> list[tuple[str, ...]]:
    """The table by domain and over all: means, the standard error over prompts, and which guards fired how often."""
    lines = [_line(domain, part) for domain, part in groups_of(rows).items()]
    return [*lines, _line("all", rows)] if len(lines) > 1 else lines


def _line(name: str, rows: Sequence[Scored]) -> tuple[str, ...]:
    scored = [row for row in rows if row.fields["reward"] is not None]
    by_prompt: dict[str, list[float]] = {}
    for row in scored:
        by_prompt.setdefault(row.group, []).append(row.fields["reward"])
    means = [fmean(rewards) for rewards in by_prompt.values()]
    error = f"{stdev(means) / math.sqrt(len(means)):.2f}" if len(means) > 1 else "-"
    rubrics = [row.fields["rubric"] for row in scored if row.fields["rubric"] is not None]
    rules = [row.fields["rule"] for row in scored if row.fields["rule"] is not None]
    guards = Counter(hit["name"] for row in rows for hit in row.fields["guards"] or [])
    return (
        name,
        f"{len(rows):,}",
        f"{len(by_prompt):,}",
        f"{fmean(means):.2f}" if means else "-",
        error,
        f"{fmean(rubrics):.2f}" if rubrics else "-",
        f"{sum(rule > 0 for rule in rules)}/{len(rules)}",
        f"{len(rows) - len(scored)}",
        ", ".join(f"{guard} {count}" for guard, count in guards.most_common()) or "-",
    )


def _scored(arguments: argparse.Namespace, settings: RewardSettings) -> tuple[list[Scored], list[Outcome]]:
    """Every row, in order, and what became of those that were scored now."""
    given: list[tuple[dict[str, Any], Completion] | Scored] = []
    for where, row in read_rows(arguments.predictions):
        if is_stored(row):
            chosen = [f"--reward {arguments.reward}"] if arguments.reward else arguments.overrides
            if chosen:
                raise RequestError(
                    f"{chosen[0]}: {where} is a completion of an RL stage, shown with the reward that it was trained "
                    "on; leave --reward out, and its keys"
                )
            given.append(stored(where, row))
            continue
        given.append((row, completion(where, row, arguments.form)))
        if settings.rubric == "reference" and row.get("reference_answer") is None:
            raise ContentError(f"{where}: reference_answer: Reference-Reward compares with this text, and it is absent")
    if not given:
        raise ContentError(f"{arguments.predictions}: no rows")
    fresh = [entry for entry in given if not isinstance(entry, Scored)]
    if arguments.form == "tagged" and len(fresh) == len(given) and not any(has_tag(row) for row, _ in fresh):
        raise ContentError(
            f"{arguments.predictions}: no prediction holds <predicted_observation>; add --form plain if each is the "
            "observation itself"
        )
    keys = [f"{row['id']}#{row['turn']}" for row, _ in fresh]
    items, verifiers = [item for _, item in fresh], load(settings.verifiers)
    if settings.verifiers and fresh:
        covered = verifiers.coverage(zip(keys, (item.truth for item in items), strict=True))
        print(visible(f"reward.verifiers: {covered}"), file=sys.stderr)
        items = verifiers.ruled(keys, items)
    outcomes = rewards(items, settings, arguments.out)
    became = iter(zip(items, outcomes, strict=True))
    rows = [entry if isinstance(entry, Scored) else scored(entry[0], *next(became)) for entry in given]
    return rows, outcomes


def _validate(arguments: argparse.Namespace, settings: RewardSettings) -> int:
    """Print the margins of every corruption in every domain; the reward holds or ContentError says where not."""
    if settings.rubric == "reference":
        raise RequestError(
            "--validate: reward.rubric=reference compares with answers of the policy before RL, which trajectories do "
            "not hold; prove another reward"
        )
    if settings.verifiers:
        raise RequestError(
            "--validate proves the reward that every turn has; `agentworld verifiers` has proved those of "
            "reward.verifiers: leave that key out"
        )
    examples = list(_examples(arguments.validate, arguments.turns))
    if settings.rubric in JUDGED:
        made = list(versions(examples))
        outcomes = rewards([version.completion for version in made], settings, arguments.out)
        proofs = prove(zip(made, outcomes, strict=True))
    else:  # one at a time: the corruptions of a whole corpus need not be held
        outcomes = []
        proofs = prove((one, Outcome(one.completion.reward(settings, None))) for one in versions(examples))
    names = ["truth", *CORRUPTIONS]
    domains = [domain for domain in DOMAINS if (domain, "truth") in proofs]
    lines = [(name, *(_margin(proofs.get((domain, name))) for domain in domains)) for name in names]
    turns = Counter(example.domain for example in examples)
    headings = ("25 - reward", *(f"{domain}\n{counted(turns[domain], 'turn')}" for domain in domains))
    _print_table("smallest / mean margin to the maximum (turns whose text it changes)", headings, lines)
    if arguments.out is not None:
        found = [{"domain": domain, "corruption": name, **asdict(proof)} for (domain, name), proof in proofs.items()]
        _write(arguments.out, lambda: "".join(json.dumps(row) + "\n" for row in found))
    require_judgements(settings, outcomes, "the margins above are those of the others")
    _require_proof(arguments.validate, proofs)
    print(visible(f"{arguments.validate}: the reward holds on {counted(len(examples), 'turn')}"))
    return DONE


def _require_proof(path: Path, proofs: Mapping[tuple[str, str], Proof]) -> None:
    failed = {key: proof for key, proof in proofs.items() if proof.failed}
    if failed:
        (domain, name), proof = next(iter(failed.items()))
        at = ", ".join(proof.failed[:NAMED])
        what = "does not score the maximum" if name == "truth" else "scores no less than the truth"
        on, all_of_them = counted(len(proof.failed), "turn"), sum(len(one.failed) for one in failed.values())
        raise ContentError(
            f"{path}: the reward does not hold: {domain}, {name} {what} on {on} ({at}); "
            f"{counted(all_of_them, 'failure')} in all"
        )


def _examples(path: Path, count: int) -> Iterator[Example]:
    """`count` turns of each domain, one a trajectory; 0: of every trajectory."""
    pools: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(path):
        if any(turn.is_target for turn in trajectory.turns):
            pools.setdefault(trajectory.domain, []).append(trajectory)
    if not pools:
        raise ContentError(f"{path}: no trajectory with a turn that may be predicted")
    for pool in pools.values():
        yield from select_examples(pool, count or len(pool), seed=0, fits=lambda item: True).examples


def _margin(proof: Proof | None) -> str:
    if proof is None:
        return "-"
    bad = f"  FAILS {len(proof.failed)}" if proof.failed else ""
    bad += f"  UNJUDGED {len(proof.unjudged)}" if proof.unjudged else ""
    margins = f"{min(proof.margins):.2f} / {fmean(proof.margins):.2f}" if proof.margins else "-"
    return f"{margins} ({len(proof.margins)}){bad}"


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.predictions is None) == (arguments.validate is None):
        raise RequestError("name PREDICTIONS.jsonl to score, or --validate TRAJECTORIES.jsonl to prove a reward")
    if arguments.validate is not None and arguments.html is not None:
        raise RequestError("--html shows predictions: it goes without --validate")
    if arguments.validate is None and arguments.out is None:
        raise RequestError("name the file to write: --out SCORED.jsonl")


def _check_files(arguments: argparse.Namespace, settings: RewardSettings) -> None:
    """Refuse outputs that cannot be written, before a judge is paid, and those that would replace what is read."""
    read = arguments.predictions if arguments.predictions is not None else arguments.validate
    outputs = {"--out": arguments.out, "--html": arguments.html}
    given = {flag: path for flag, path in outputs.items() if path is not None}
    require_outputs(given, [read, *map(Path, settings.verifiers)])
    for flag, path in given.items():
        if is_same_file(path, cache_path(settings, arguments.out)):
            raise RequestError(f"{flag} {path} is also the file of the judge's verdicts; name another")
        if path.suffix in FILES and path.absolute().parent.resolve() == read.resolve():
            raise RequestError(
                f"{flag} {path}: it lies in the folder that is read, and would be among its rows; name a file elsewhere"
            )


def _print_table(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    table = Table(title=title or None, box=None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 or heading == "guards" else "right")
    for line in lines:
        table.add_row(*(visible(cell) for cell in line))
    screen().print(table, markup=False, highlight=False)


def _write(path: Path, text: Callable[[], str]) -> None:
    """Half of a surrogate pair, which is no character, stands as the escape of JSON."""
    with replacing(path) as temporary:
        temporary.write_text(text(), encoding="utf-8", errors="backslashreplace")
