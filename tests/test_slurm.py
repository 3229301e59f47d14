"""The chain on a real SLURM of one node that this file starts: a preemption, a signal, a failure, a cancellation.

`pytest -m slurm` runs these; they need slurm-wlm and munge, and root.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from slurm_site import Site, missing, running_slurm
from small_run import SMALL, metrics

CHAIN = ("data", "cpt", "sft", "rl")
CPT_STEPS, RL_STEPS = 30, 8  # room for an interruption
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing() or "SLURM is here")]


@dataclass
class Chain:
    site: Site
    run: Path
    jobs: dict[str, str]  # stage -> number

    def log(self, stage: str) -> str:
        path = self.run / "slurm" / f"{stage}-{self.jobs[stage]}.log"
        return path.read_text() if path.exists() else ""

    def state(self, stage: str) -> str:
        return self.site.job(self.jobs[stage])["JobState"]

    def wait(self, what: str, reached: Callable[[], bool], seconds: float = 400) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                shown = {stage: (self.state(stage), self.log(stage)[-1500:]) for stage in self.jobs}
                pytest.fail(f"{what} was not reached: {shown}")
            time.sleep(0.1)

    def wait_for_end(self) -> dict[str, str]:
        self.wait("the end", lambda: all(self.state(stage) in ENDED for stage in self.jobs))
        return {stage: self.state(stage) for stage in self.jobs}

    def has_step(self, stage: str, step: int) -> bool:
        path = self.run / stage / "metrics.jsonl"
        return path.exists() and any(row["step"] >= step for row in metrics(self.run / stage))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_slurm() as started:
        yield started


def submit(site: Site, run: Path, *overrides: str) -> Chain:
    command = [str(Path(sys.executable).with_name("agentworld")), "submit", *SMALL]
    steps = [f"cpt.max_steps={CPT_STEPS}", f"rl.max_steps={RL_STEPS}"]
    where = [f"run.root={run.parent}", f"run.name={run.name}", "cluster.partition=low", *overrides]
    done = subprocess.run([*command, *steps, *where], env=site.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    jobs = dict(re.findall(r"^(\w+) +job (\d+)", done.stdout, flags=re.MULTILINE))
    assert list(jobs) == [stage for stage in CHAIN if stage in jobs]
    return Chain(site, run, jobs)


@pytest.fixture(scope="module")
def chain(site, tmp_path_factory) -> Chain:
    """One chain: its CPT job loses the node to another job, its RL job gets the signal that precedes a time limit."""
    made = submit(site, tmp_path_factory.mktemp("runs of two") / "chain")
    made.wait("step 4 of cpt", lambda: made.has_step("cpt", 4))
    site.run("sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    made.wait("step 1 of rl", lambda: made.has_step("rl", 1))
    site.run("scancel", "--batch", "--signal=USR1", made.jobs["rl"])
    made.wait_for_end()
    return made


def test_the_chain_runs_from_data_to_report(chain) -> None:
    assert {stage: chain.state(stage) for stage in CHAIN} == dict.fromkeys(CHAIN, "COMPLETED"), chain.log("cpt")
    report = json.loads((chain.run / "report.json").read_text())
    assert [(entry["stage"], entry["steps"]) for entry in report["stages"]] == [
        *(("base", 0), ("cpt", CPT_STEPS)),
        *(("sft", 3), ("rl", RL_STEPS)),
    ]
    assert all(entry["fidelity"]["n"] == 4 for entry in report["stages"])
    ends = [chain.site.job(chain.jobs[stage]) for stage in CHAIN]
    assert all(before["EndTime"] <= after["StartTime"] for before, after in pairwise(ends))
    assert [path.name for path in chain.run.parent.iterdir()] == ["chain"], "one directory, whatever was queued again"


def test_both_ranks_of_a_stage_are_tasks_of_one_step(chain) -> None:
    handoff = json.loads((chain.run / "sft" / "export" / "handoff.json").read_text())
    assert handoff["step"] == 3
    checkpoint = next((chain.run / "sft" / "checkpoints").glob("checkpoint-*"))
    assert len(list(checkpoint.glob("rng_state*.pth"))) == 2
    assert (chain.run / "sft" / "rank1.log").exists() and not (chain.run / "sft" / "rank0.log").exists()
    assert re.search(r"^sft +3/3 ", chain.log("sft"), flags=re.MULTILINE), "rank 0 writes to the log of the job"


@pytest.mark.parametrize(("stage", "steps"), [("cpt", CPT_STEPS), ("rl", RL_STEPS)])
def test_a_job_that_was_stopped_goes_on_where_it_was(chain, stage, steps) -> None:
    """Preempted in CPT, signalled in RL: queued again as the same job, in the same directory, every step once."""
    assert chain.site.job(chain.jobs[stage])["Restarts"] == "1"
    log = chain.log(stage)
    stopped = re.search(rf"{stage} stopped at step (\d+)", log)
    assert stopped and 1 <= int(stopped[1]) < steps, log
    assert "is queued again" in log
    assert [row["step"] for row in metrics(chain.run / stage)] == list(range(1, steps + 1))


def test_a_failing_stage_stops_the_chain(chain, tmp_path) -> None:
    run = tmp_path / "chain"
    shutil.copytree(chain.run, run)
    for stage in ("sft", "rl"):
        shutil.rmtree(run / stage)
    shard = next((run / "cpt" / "export").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 10)
    failing = submit(chain.site, run, "resume=true")
    assert failing.wait_for_end() == {"data": "COMPLETED", "cpt": "FAILED", "sft": "CANCELLED", "rl": "CANCELLED"}
    assert "cut or altered" in failing.log("cpt") and failing.site.job(failing.jobs["cpt"])["ExitCode"] == "1:0"
    assert not (run / "sft").exists() and not failing.log("sft")


def test_a_cancelled_job_stays_cancelled(chain, tmp_path) -> None:
    run = tmp_path / "chain"
    shutil.copytree(chain.run, run)
    for stage in ("cpt", "sft", "rl"):
        shutil.rmtree(run / stage)
    cancelled = submit(chain.site, run, "resume=true")
    cancelled.wait("step 1 of cpt", lambda: cancelled.has_step("cpt", 1))
    chain.site.run("scancel", cancelled.jobs["cpt"])
    states = cancelled.wait_for_end()
    assert states == {"data": "COMPLETED", "cpt": "CANCELLED", "sft": "CANCELLED", "rl": "CANCELLED"}
    assert chain.site.job(cancelled.jobs["cpt"])["Restarts"] == "0"
    assert not (run / "sft").exists()
