"""The benchmark programs without their runs: schedules, what counts as equal, kills that hit no other, the table."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentworld.rewards import completions
from agentworld.train.config import STAGES
from bench import kill_compare, kill_phases, process_tree, smoke_seeds
from bench.kill_phases import AFTER, BEFORE, INSIDE, Phase

SAMPLES = "step_00000_rank_0.parquet"


@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_reach_every_phase(seed: int) -> None:
    drawn = kill_phases.schedule(20, seed)
    assert len(drawn) == 20
    assert {phase.kind for phase in drawn} == {phase.kind for phase in kill_phases.every_phase()}
    reached = {(phase.kind, phase.stage) for phase in drawn}
    assert reached >= {(kind, stage) for kind in ("training", "save", "export") for stage in ("cpt", "sft", "rl")}
    assert kill_phases.schedule(20, seed) == drawn != kill_phases.schedule(20, seed + 1)


def test_saves_are_those_of_the_trainer_every_save_steps_and_the_last() -> None:
    assert {stage: kill_phases.saved_steps(stage) for stage in ("cpt", "sft", "rl")} == {
        "cpt": [6, 12, 18, 20],
        "sft": [4, 8, 10],
        "rl": [3, 6, 8],
    }


def write(path: Path, content: object = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_run_is_placed_by_its_files_and_output(tmp_path: Path) -> None:
    run = tmp_path / "chain"

    def places(output: str, *phases: Phase) -> list[str]:
        return [kill_phases.position(phase, run, output) for phase in phases]

    data = Phase("recording"), Phase("preparation")
    assert places("", *data) == [BEFORE, BEFORE]
    (run / ".data.tmp-7").mkdir(parents=True)
    assert places("", *data) == [INSIDE, INSIDE]
    write(run / ".data.tmp-7" / "recorded.jsonl")
    assert places("", *data) == [AFTER, INSIDE]
    (run / ".data.tmp-7").rename(run / "data")
    assert places("", *data) == [AFTER, AFTER]

    stage = Phase("start", "cpt"), Phase("training", "cpt"), Phase("save", "cpt", 6), Phase("export", "cpt")
    assert places("[2/8] evaluate cpt\n", *stage) == [BEFORE] * 4
    assert places("[3/8] cpt: 20 steps", *stage) == [INSIDE, BEFORE, BEFORE, BEFORE]
    write(run / "cpt" / "metrics.jsonl")
    write(run / "cpt" / "checkpoints" / ".unfinished" / "checkpoint-6" / "config.json")
    assert places("[3/8] cpt: ", *stage) == [AFTER, INSIDE, INSIDE, BEFORE]
    (run / "cpt" / "checkpoints" / ".unfinished" / "checkpoint-6").rename(run / "cpt" / "checkpoints" / "checkpoint-6")
    assert places("[3/8] cpt: ", *stage) == [AFTER, INSIDE, INSIDE, BEFORE]
    write(run / "cpt" / "checkpoints" / "checkpoint-6" / "COMPLETE")
    (run / "cpt" / ".export.tmp").mkdir()
    assert places("[3/8] cpt: ", *stage) == [AFTER, AFTER, AFTER, INSIDE]
    (run / "cpt" / ".export.tmp").rename(run / "cpt" / "export")
    assert places("[3/8] cpt: ", *stage) == [AFTER, AFTER, AFTER, AFTER]

    late = Phase("evaluation", "rl"), Phase("report")
    assert places("[7/8] rl: 8 steps\n", *late) == [BEFORE, BEFORE]
    assert places("[7/8] rl: 8 steps\n[8/8] evaluate rl\nrl  4 held-out turns\n", *late) == [INSIDE, INSIDE]
    write(run / "rl" / "evaluation.json")
    assert places("[8/8] evaluate rl\n", *late) == [AFTER, INSIDE]
    assert places("[8/8] evaluate rl\nGreedy predictions of 4 held-out turns.\n", *late) == [AFTER, AFTER]


METRICS = [{"step": n, "time": 10.0 * n, "loss": 1.0 / n, "grad_norm": 2.0, "lr": 1e-3} for n in (1, 2, 3)]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run directory with the files that are compared."""
    run = tmp_path / "reference"
    write(run / "data" / "manifest.json", {"sha256": "d"})
    write(run / "recipe.yaml")
    write(run / "baselines.json", {})
    (run / "wandb").mkdir()
    facts = {"steps": 3, "tokens": 9, "heldout_loss": 0.5}
    for stage in STAGES:
        handoff = {"step": 3, "data_sha256": "d", "tokenizer_sha256": "t", "files": {"model": {"sha256": "m"}}}
        write(run / stage / "export" / "handoff.json", handoff)
        evaluation = {"fidelity": {"exact_match": 0.25}, "reward": {"mean": 3.0}, "examples": [], **facts}
        write(run / stage / "evaluation.json", evaluation)
        write(run / stage / "training.json", {**facts, "seconds": 4.0})
        write(run / stage / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in METRICS))
    (run / "rl" / "completions").mkdir()
    completions.write(run / "rl" / "completions" / SAMPLES, [{"prompt": "t#0", "scores": None, "guards": []}])
    stages = [{"stage": stage, "seconds": 4.0, "steps": 3} for stage in STAGES]
    write(run / "report.json", {"stages": stages, "baselines": {"copy": 1}, "paired": [{"mean": 1.0}]})
    return run


def compared(finished: Path, name: str, change) -> list[str]:
    """The differences after `change` has been made to the JSON content of a file of a copy."""
    other = finished.parent / "other"
    shutil.copytree(finished, other)
    path = other / name
    if path.name == SAMPLES:
        completions.write(path, change(completions.read(path)))
    elif name.endswith(".jsonl"):
        write(path, "".join(json.dumps(row) + "\n" for row in change(kill_compare.rows(path))))
    else:
        write(path, change(json.loads(path.read_text())))
    return list(kill_compare.differences(finished, other, STAGES))


def test_equal_runs_may_differ_in_seconds_only(finished: Path) -> None:
    assert compared(finished, "cpt/training.json", lambda facts: {**facts, "seconds": 99.0}) == []


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("cpt/metrics.jsonl", lambda rows: [{**rows[0], "loss": 1.00001}, *rows[1:]], "loss of step 1"),
        ("rl/metrics.jsonl", lambda rows: [{**row, "reward": 1.0} for row in rows], "reward of step 1"),
        ("sft/metrics.jsonl", lambda rows: [rows[0], rows[2]], "steps [1, 3] instead of [1, 2, 3]"),
        ("sft/metrics.jsonl", lambda rows: [rows[0], rows[0], *rows[1:]], "steps [1, 1, 2, 3]"),
        ("sft/export/handoff.json", lambda h: {**h, "files": {"model": {"sha256": "x"}}}, "sft: export/model"),
        ("rl/export/handoff.json", lambda h: {**h, "files": {}}, "rl: export/model: None"),
        ("rl/evaluation.json", lambda e: {**e, "reward": {"mean": 3.1}}, "rl: reward of evaluation.json"),
        (f"rl/completions/{SAMPLES}", lambda rows: [{**rows[0], "reward": 1.0}], f"{SAMPLES} differs"),
        ("cpt/training.json", lambda facts: {**facts, "tokens": 8}, "tokens of training.json"),
        ("data/manifest.json", lambda m: {"sha256": "e"}, "data: sha256 e"),
        ("report.json", lambda r: {**r, "stages": r["stages"][:3]}, "report.json: stages"),
    ],
)
def test_a_difference_is_found(finished: Path, name: str, change, said: str) -> None:
    found = compared(finished, name, change)
    assert found and said in found[0]


def test_a_loss_within_the_tolerance_is_equal(finished: Path) -> None:
    assert compared(finished, "cpt/metrics.jsonl", lambda rows: [{**rows[0], "loss": 1.0000001}, *rows[1:]]) == []


def test_a_cut_back_run_holds_what_came_before_the_phase(finished: Path) -> None:
    run = finished.parent / "chain"

    def evaluated(phase: Phase) -> list[str]:
        kill_phases.cut_back(finished, run, phase)
        assert not (run / "report.json").exists()
        return [stage for stage in STAGES if (run / stage / "evaluation.json").exists()]

    assert evaluated(Phase("report")) == ["base", "cpt", "sft", "rl"]
    assert evaluated(Phase("evaluation", "sft")) == ["base", "cpt"]
    assert (run / "sft" / "export").exists() and not (run / "rl").exists()
    assert evaluated(Phase("save", "sft", 4)) == ["base", "cpt"] and not (run / "sft").exists()
    assert evaluated(Phase("start", "base")) == [] and not (run / "baselines.json").exists()
    kill_phases.cut_back(finished, run, Phase("preparation"))
    assert not run.exists()


def test_lost_steps_are_those_of_which_the_second_start_wrote_the_row() -> None:
    assert kill_compare.resumed_after(METRICS, since=25.0) == 2
    assert kill_compare.resumed_after(METRICS, since=5.0) == 0


def test_the_newest_whole_checkpoint_is_told_from_cut_and_unfinished_ones(tmp_path: Path) -> None:
    for step, said in ((3, 5), (6, 5), (9, 6)):
        write(tmp_path / "checkpoints" / f"checkpoint-{step}" / "model", "12345")
        write(tmp_path / "checkpoints" / f"checkpoint-{step}" / "COMPLETE", {"model": said})
    write(tmp_path / "checkpoints" / "checkpoint-12" / "model", "12345")
    write(tmp_path / "checkpoints" / ".unfinished" / "checkpoint-15" / "COMPLETE", {})
    assert kill_phases.whole_checkpoint(tmp_path) == 6
    assert kill_phases.whole_checkpoint(tmp_path / "nothing") == 0


def test_only_a_process_of_the_tree_is_killed() -> None:
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    try:
        mine, other = (process_tree.read(sleeper.pid) for sleeper in sleepers)
        assert {mine, other} <= set(process_tree.below(os.getpid()))
        assert not process_tree.kill(mine, root=other.pid), "not below it"
        stale = replace(mine, started=mine.started - 1)
        assert not process_tree.kill(stale, root=os.getpid()), "the number has been given to another process"
        assert process_tree.kill(mine, root=os.getpid())
        assert sleepers[0].wait(timeout=10) == -9 and sleepers[1].poll() is None
        assert not process_tree.kill(mine, root=os.getpid())
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def seed_report(exact: dict[str, float], sampled: float, difference: float) -> dict:
    rewards = {"sft": 10.0, "rl": sampled}
    stages = [
        {
            "stage": stage,
            "fidelity": {"exact_match": exact[stage], "edit_similarity": 0.5, "n": 160},
            "reward": {"mean": rewards[stage], "greedy_mean": 15.0, "n": 64, "draws": 4} if stage in rewards else None,
        }
        for stage in STAGES
    ]
    baseline = {"exact_match": exact["copy"], "edit_similarity": 0.25, "n": 160}
    pair = {"after": "rl", "before": "sft", "mean": difference, "standard_error": 0.5, "n": 64}
    return {"stages": stages, "baselines": {"copy_last_observation": baseline}, "paired": [pair]}


EXACT = {"base": 0.0, "cpt": 0.5, "sft": 0.2, "rl": 0.1, "copy": 0.01}


def test_the_table_is_mean_and_range_over_seeds() -> None:
    reports = {1: seed_report(EXACT, 12.0, 2.0), 2: seed_report({**EXACT, "cpt": 0.25}, 13.5, 3.5)}
    assert smoke_seeds.table(reports) == [
        ["base", "0.000 [0.000, 0.000]", "0.500 [0.500, 0.500]", "-", "-"],
        ["cpt", "0.375 [0.250, 0.500]", "0.500 [0.500, 0.500]", "-", "-"],
        ["sft", "0.200 [0.200, 0.200]", "0.500 [0.500, 0.500]", "10.00 [10.00, 10.00]", "15.00 [15.00, 15.00]"],
        ["rl", "0.100 [0.100, 0.100]", "0.500 [0.500, 0.500]", "12.75 [12.00, 13.50]", "15.00 [15.00, 15.00]"],
        ["copy last", "0.010 [0.010, 0.010]", "0.250 [0.250, 0.250]", "-", "-"],
    ]


def test_claims_hold_or_do_not() -> None:
    assert [claim.holds for claim in smoke_seeds.claims(seed_report(EXACT, 12.0, 2.0))] == [True, True]
    assert not smoke_seeds.claims(seed_report({**EXACT, "copy": 0.5}, 12.0, 2.0))[0].holds
    failed = smoke_seeds.claims(seed_report(EXACT, 9.5, -0.5))[1]
    assert not failed.holds and "-0.50 ± 0.50" in failed.text


def test_only_the_block_between_the_markers_is_replaced() -> None:
    text = f"above\n{smoke_seeds.BEGIN}\nold\n{smoke_seeds.END}\nbelow\n"
    written = smoke_seeds.with_block(text, "new | table")
    assert written == f"above\n{smoke_seeds.BEGIN}\nnew | table\n{smoke_seeds.END}\nbelow\n"
    assert smoke_seeds.with_block(written, "new | table") == written
