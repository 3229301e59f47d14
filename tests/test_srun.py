"""Ranks as tasks of srun: what each task becomes, which signals are passed on, and how their exits read.

A program stands in for srun: it starts the tasks with SLURM's variables. tests/test_slurm.py has the real one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.train import launch, srun

ENV_SH = Path(__file__).resolve().parent.parent / "slurm" / "env.sh"
# Starts the tasks over the nodes, notes options and signals, and ends with their highest code, or with FAKE_CODE.
SRUN = """
import json, os, signal, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
count = next(i for i, word in enumerate(sys.argv) if word == "bash")
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:count])
tasks = []
got = []
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    def handle(signum, frame):
        got.append(signal.Signals(signum).name)
        for task in tasks:
            task.send_signal(signum)
    signal.signal(signum, handle)
json.dump(options | {"parent": os.environ.get("AGENTWORLD_PARENT")}, open(here + "/options.json", "w"))
nodes, total = int(options["nodes"]), int(options["ntasks"])
for task in range(total):
    place = {"PROCID": task, "LOCALID": task % (total // nodes), "NTASKS": total, "STEP_NUM_NODES": nodes}
    place |= {"STEP_NODELIST": "node[1-2]", "STEP_ID": os.environ.get("FAKE_STEP", "0")}
    variables = {f"SLURM_{name}": str(value) for name, value in place.items()}
    tasks.append(subprocess.Popen(sys.argv[count:], env=os.environ | variables))
codes = [task.wait() for task in tasks]
json.dump(got, open(here + "/signals.json", "w"))
sys.exit(int(os.environ.get("FAKE_CODE", max(codes))))
"""
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
TELL = (
    "import json, os, sys; "
    f"json.dump({{n: os.environ[n] for n in {PLACE}}}, open(sys.argv[1] + '/' + os.environ['RANK'], 'w'))"
)


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    """A job of two nodes whose srun and scontrol are stand-ins."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, source in (("srun", SRUN), ("scontrol", "print('node1', 'node2', sep=chr(10))")):
        (folder / name).write_text(f"#!{sys.executable}\n{source}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    variables = {"AGENTWORLD_LAUNCHER": "srun", "SLURM_JOB_ID": "41", "SLURM_JOB_NUM_NODES": "2"}
    for name, value in {**variables, "AGENTWORLD_PARENT": "1"}.items():
        monkeypatch.setenv(name, value)
    return folder


def run(code: str, nproc: int, tmp_path: Path) -> launch.Outcome:
    return launch.launch(["-c", code, str(tmp_path)], nproc, tmp_path / "logs", {})


def places(tmp_path: Path, count: int) -> list[dict[str, str]]:
    return [json.loads((tmp_path / str(rank)).read_text()) for rank in range(count)]


def test_each_task_becomes_a_rank_and_all_meet_at_one_place(job, tmp_path):
    assert run(TELL, 4, tmp_path) == launch.Outcome(0)
    found = places(tmp_path, 4)
    assert [place["RANK"] for place in found] == ["0", "1", "2", "3"]
    assert [place["LOCAL_RANK"] for place in found] == ["0", "1", "0", "1"]
    assert {(place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]) for place in found} == {("4", "2")}
    assert {(place["MASTER_ADDR"], place["OMP_NUM_THREADS"]) for place in found} == {("node1", "1")}
    assert len({place["MASTER_PORT"] for place in found}) == 1
    options = json.loads((job / "options.json").read_text())
    assert (options["nodes"], options["ntasks"], options["ntasks-per-node"]) == ("2", "4", "2")
    assert options["kill-on-bad-exit"] == "0" and options["parent"] is None


def test_one_rank_is_one_task_of_one_node(job, tmp_path):
    assert run(TELL, 1, tmp_path) == launch.Outcome(0)
    options = json.loads((job / "options.json").read_text())
    assert (options["nodes"], options["ntasks"], options["ntasks-per-node"]) == ("1", "1", "1")
    assert places(tmp_path, 1)[0]["WORLD_SIZE"] == "1"


def test_jobs_and_steps_that_follow_each_other_have_ports_of_their_own(job, tmp_path, monkeypatch):
    ports = []
    for number, step in ((41, 0), (41, 1), (41, 15), (42, 0), (1290, 15)):
        monkeypatch.setenv("SLURM_JOB_ID", str(number))
        monkeypatch.setenv("FAKE_STEP", str(step))
        assert run(TELL, 1, tmp_path).code == 0
        ports.append(int(places(tmp_path, 1)[0]["MASTER_PORT"]))
    assert len(set(ports)) == len(ports)
    assert all(1024 < port < 32768 for port in ports)


def test_threads_are_the_cores_of_a_task_unless_they_are_set(job, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    run(TELL, 1, tmp_path)
    assert places(tmp_path, 1)[0]["OMP_NUM_THREADS"] == "6"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    run(TELL, 1, tmp_path)
    assert places(tmp_path, 1)[0]["OMP_NUM_THREADS"] == "3"


def test_rank_0_writes_to_the_log_of_the_job_and_the_others_append_to_theirs(job, tmp_path, capfd):
    code = "import os, sys; print('out of', os.environ['RANK']); print('error of', os.environ['RANK'], file=sys.stderr)"
    run(code, 2, tmp_path)
    run(code, 2, tmp_path)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("out of 0\n" * 2, "error of 0\n" * 2)
    assert sorted((tmp_path / "logs" / "rank1.log").read_text().split("\n")[:-1]) == sorted(
        ["out of 1", "error of 1"] * 2
    )
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank1.log"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, launch.Outcome(0)),
        (1, launch.Outcome(1)),
        (2, launch.Outcome(2)),
        (3, launch.Outcome(3)),
        (137, launch.Outcome(1, killed_by=9)),
        (139, launch.Outcome(1, killed_by=11)),
        (143, launch.Outcome(3)),  # a preemption met a task that did not listen yet
        (138, launch.Outcome(3)),
    ],
)
def test_the_highest_exit_of_the_tasks_becomes_the_outcome(job, tmp_path, monkeypatch, code, outcome):
    monkeypatch.setenv("FAKE_CODE", str(code))
    assert run("", 2, tmp_path) == outcome


STOPPABLE = """
import os, signal, sys, time
from pathlib import Path
from agentworld.train import stop
stop.install()
here = Path(sys.argv[1])
(here / ("ready" + os.environ["RANK"])).touch()
end = time.monotonic() + 30
while not stop.requested() and time.monotonic() < end:
    time.sleep(0.02)
os.kill(os.getpid(), signal.SIGTERM)  # SLURM's own, beside the one that was passed on
time.sleep(0.3)
(here / ("saved" + os.environ["RANK"])).touch()
sys.exit(3 if stop.requested() else 1)
"""
PARENT = """
import sys
from pathlib import Path
from agentworld.train.launch import launch
outcome = launch(["-c", sys.argv[2], sys.argv[1]], 2, Path(sys.argv[1]), {})
print(outcome.code, outcome.rank)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_every_request_to_stop_reaches_srun_as_usr1_and_no_second_one_cuts_the_save(job, tmp_path, signum):
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), STOPPABLE], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signum)
    assert process.communicate(timeout=60)[0].split() == ["3", "None"]
    assert json.loads((job / "signals.json").read_text()) == ["SIGUSR1"]
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(2))


def test_the_wrapper_stands_where_the_launcher_looks_for_it():
    assert srun.wrapper() == ENV_SH
