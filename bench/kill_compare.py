"""Whether a run that was killed and continued equals one that was not, and how many steps were computed twice."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentworld.data.manifest import is_prepared
from agentworld.rewards import completions

TOLERANCE = 1e-6  # of loss, grad_norm, reward and lr, absolute
COMPARED = ("loss", "grad_norm", "reward", "lr")


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a last line that a kill has cut is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def differences(expected: Path, found: Path, stages: Sequence[str], data: bool = True) -> Iterator[str]:
    """What differs between two run directories, first things first; nothing when they are equal.

    Args:
        stages: those that `found` has finished.
        data: compare the prepared data too.
    """
    if data:
        hashes = [_json(run / "data" / "manifest.json")["sha256"] for run in (expected, found)]
        if hashes[0] != hashes[1]:
            yield f"data: sha256 {hashes[1][:12]} instead of {hashes[0][:12]}"
    for stage in stages:
        if stage != "base":
            yield from _metrics_differences(stage, *(rows(run / stage / "metrics.jsonl") for run in (expected, found)))
            yield from _fact_differences(stage, expected, found)
        yield from _export_differences(stage, expected, found)
        evaluations = [_json(run / stage / "evaluation.json") for run in (expected, found)]
        for key in ("fidelity", "reward", "examples", "steps", "tokens", "heldout_loss"):
            if evaluations[0][key] != evaluations[1][key]:
                yield f"{stage}: {key} of evaluation.json: {evaluations[1][key]} instead of {evaluations[0][key]}"
    yield from _report_differences(expected, found, stages)


def _metrics_differences(stage: str, expected: list[dict], found: list[dict]) -> Iterator[str]:
    steps = [row["step"] for row in found]
    wanted = [row["step"] for row in expected]
    if steps != wanted:
        yield f"{stage}: metrics.jsonl holds steps {steps} instead of {wanted}"
        return
    for before, after in zip(expected, found, strict=True):
        for key in COMPARED:
            first, second = before.get(key), after.get(key)
            if first != second and (first is None or second is None or abs(first - second) > TOLERANCE):
                yield f"{stage}: {key} of step {after['step']}: {second} instead of {first}"


def _fact_differences(stage: str, expected: Path, found: Path) -> Iterator[str]:
    """training.json but its seconds, and in RL every sample."""
    before, after = (_json(run / stage / "training.json") for run in (expected, found))
    for key in ("steps", "tokens", "heldout_loss"):
        if before[key] != after[key]:
            yield f"{stage}: {key} of training.json: {after[key]} instead of {before[key]}"
    samples = [
        {path.name: completions.read(path) for path in sorted((run / stage / "completions").glob("*.parquet"))}
        for run in (expected, found)
    ]
    for name in sorted(samples[0].keys() | samples[1].keys()):
        if samples[0].get(name) != samples[1].get(name):
            yield f"{stage}: completions/{name} differs"


def _export_differences(stage: str, expected: Path, found: Path) -> Iterator[str]:
    before, after = (_json(run / stage / "export" / "handoff.json") for run in (expected, found))
    for key in ("step", "data_sha256", "tokenizer_sha256"):
        if before[key] != after[key]:
            yield f"{stage}: {key} of handoff.json: {after[key]} instead of {before[key]}"
    for name in sorted(before["files"].keys() | after["files"].keys()):
        if before["files"].get(name) != after["files"].get(name):
            yield f"{stage}: export/{name}: {after['files'].get(name)} instead of {before['files'].get(name)}"


def _report_differences(expected: Path, found: Path, stages: Sequence[str]) -> Iterator[str]:
    before, after = (_json(run / "report.json") for run in (expected, found))
    if [entry["stage"] for entry in after["stages"]] != list(stages):
        yield f"report.json: stages {[entry['stage'] for entry in after['stages']]} instead of {list(stages)}"
        return
    for first, second in zip(before["stages"], after["stages"], strict=False):
        if {**first, "seconds": None} != {**second, "seconds": None}:
            yield f"report.json: {second['stage']} differs"
    if before["baselines"] != after["baselines"]:
        yield "report.json: baselines differ"
    if len(stages) == len(before["stages"]) and before["paired"] != after["paired"]:
        yield f"report.json: paired {after['paired']} instead of {before['paired']}"


def recording_differences(expected: Path, found: Path, sessions: int) -> Iterator[str]:
    """What is wrong with data that were recorded anew. Clocks, process ids and the order of directories get into
    sessions, so only what must repeat is compared: the commands, and what turns show that both recordings call
    deterministic."""
    if not is_prepared(found / "data"):
        yield "data: the manifest does not hold"
        return
    recorded = _json(found / "data" / "report.json")["recorded"]
    dropped = sum(recorded["dropped"].values())
    if recorded["kept"] + dropped != sessions:
        yield f"data: {recorded['kept']} sessions kept and {dropped} dropped, {sessions} asked"
    before, after = ({row["id"]: row for row in rows(run / "data" / "recorded.jsonl")} for run in (expected, found))
    if len(after) != recorded["kept"]:
        yield f"data: recorded.jsonl holds {len(after)} sessions, the report says {recorded['kept']}"
    for name in sorted(before.keys() & after.keys()):
        for number, (one, other) in enumerate(zip(before[name]["turns"], after[name]["turns"], strict=False)):
            if one["action"] != other["action"]:
                yield f"data: {name} turn {number}: another command"
            repeats = one["meta"]["deterministic"] and other["meta"]["deterministic"]
            if repeats and one["observation"] != other["observation"]:
                yield f"data: {name} turn {number}: {other['observation']!r} instead of {one['observation']!r}"


def chain_differences(found: Path, steps: dict[str, int]) -> Iterator[str]:
    """What is missing from a whole run that has no reference: each step once, and a report of every stage."""
    for stage, count in steps.items():
        logged = [row["step"] for row in rows(found / stage / "metrics.jsonl")]
        if logged != list(range(1, count + 1)):
            yield f"{stage}: metrics.jsonl holds steps {logged} instead of 1 to {count}"
    reported = [(entry["stage"], entry["steps"]) for entry in _json(found / "report.json")["stages"]]
    if reported != [("base", 0), *steps.items()]:
        yield f"report.json: {reported}"


def resumed_after(metrics: Sequence[dict[str, Any]], since: float) -> int:
    """The step that a start went on from: the last one in metrics.jsonl that is older than it.

    Args:
        since: unix time of that start.
    """
    return max((row["step"] for row in metrics if row["time"] < since), default=0)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
