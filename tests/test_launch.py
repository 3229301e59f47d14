"""Launching ranks: their environment, their exits as one, and signals that reach each of them once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.train import launch

STOPPABLE = """
import os, signal, sys, time
count = 0
def stop(signum, frame):
    global count
    count += 1
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, stop)
open(os.path.join(sys.argv[1], "ready" + os.environ["RANK"]), "w").close()
end = time.monotonic() + 30
while not count and time.monotonic() < end:
    time.sleep(0.02)
time.sleep(0.3)
with open(os.path.join(sys.argv[1], "signals" + os.environ["RANK"]), "w") as file:
    file.write(str(count))
sys.exit(3 if count else 1)
"""
# A parent that launches a program on two ranks and prints the outcome.
PARENT = """
import sys
from pathlib import Path
from agentworld.train.launch import launch
outcome = launch(["-c", sys.argv[2], sys.argv[1]], 2, Path(sys.argv[1]), {})
print(outcome.code, outcome.rank)
"""


def run(code: str, nproc: int, tmp_path: Path) -> launch.Outcome:
    return launch.launch(["-c", code, str(tmp_path)], nproc, tmp_path / "logs", {})


def parent(program: str, tmp_path: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"{paths} did not appear"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_each_rank_gets_its_place_and_one_port(tmp_path):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    code = (
        "import os, sys\n"
        "with open(sys.argv[1] + '/' + os.environ['RANK'], 'w') as file:\n"
        f"    print(*[os.environ[name] for name in {names}], file=file)\n"
    )
    assert run(code, 2, tmp_path) == launch.Outcome(0)
    zero, one = ((tmp_path / str(rank)).read_text().split() for rank in range(2))
    assert zero[:4] == ["0", "0", "2", "2"]
    assert one[:4] == ["1", "1", "2", "2"]
    assert zero[4:] == one[4:]
    assert zero[4] == "127.0.0.1"


def test_threads_are_divided_over_the_ranks_unless_they_are_set():
    cores = len(os.sched_getaffinity(0))
    assert launch.rank_environment({}, 0, 1)["OMP_NUM_THREADS"] == str(cores)
    assert launch.rank_environment({}, 0, 4 * cores)["OMP_NUM_THREADS"] == "1"
    assert launch.rank_environment({"OMP_NUM_THREADS": "7"}, 0, 1)["OMP_NUM_THREADS"] == "7"


def test_rank_0_shares_the_terminal_and_the_others_have_logs(tmp_path, capfd):
    code = "import os, sys; print('out of', os.environ['RANK']); print('error of', os.environ['RANK'], file=sys.stderr)"
    run(code, 2, tmp_path)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("out of 0\n", "error of 0\n")
    assert sorted((tmp_path / "logs" / "rank1.log").read_text().splitlines()) == ["error of 1", "out of 1"]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank1.log"]


@pytest.mark.parametrize(
    ("codes", "outcome"),
    [
        ("00", launch.Outcome(0)),
        ("30", launch.Outcome(3)),
        ("33", launch.Outcome(3)),
        ("01", launch.Outcome(1, 1)),
        ("20", launch.Outcome(2, 0)),
        ("50", launch.Outcome(1, 0)),
    ],
)
def test_the_exits_of_the_ranks_become_one(codes, outcome, tmp_path):
    assert run(f"import os, sys; sys.exit(int({codes!r}[int(os.environ['RANK'])]))", 2, tmp_path) == outcome


def test_a_rank_that_is_killed_has_failed(tmp_path):
    assert run("import os; os.kill(os.getpid(), 9)", 1, tmp_path) == launch.Outcome(1, 0, killed_by=9)


def test_a_failed_rank_ends_the_others_even_if_they_ignore_sigterm(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1] + '/ready' + os.environ['RANK'], 'w').close()\n"
        "while len(os.listdir(sys.argv[1])) < 3: time.sleep(0.02)\n"  # both ranks and logs/
        "sys.exit(1) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    started = time.monotonic()
    assert run(code, 2, tmp_path) == launch.Outcome(1, 1)
    assert 0.5 < time.monotonic() - started < 20


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_each_rank_once(signum, tmp_path):
    process = parent(STOPPABLE, tmp_path)
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    os.killpg(process.pid, signum)  # the whole foreground group, as a terminal does
    out, _ = process.communicate(timeout=30)
    assert out.split() == ["3", "None"]
    assert [(tmp_path / f"signals{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_ranks_that_have_no_handler_yet_count_as_stopped(tmp_path):
    code = "import os, sys, time\nopen(sys.argv[1] + '/ready' + os.environ['RANK'], 'w').close()\ntime.sleep(60)"
    process = parent(code, tmp_path)
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0].split() == ["3", "None"]


def test_a_second_signal_kills_ranks_that_do_not_stop(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: open(sys.argv[1] + '/got' + os.environ['RANK'], 'w').close())\n"
        "open(sys.argv[1] + '/ready' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(60)\n"
    )
    process = parent(code, tmp_path)
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "got0", tmp_path / "got1")
    process.send_signal(signal.SIGINT)  # at once: the same Ctrl-C, delivered twice
    time.sleep(launch.SAME_REQUEST_SECONDS + 0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0].split() == ["3", "None"]


def test_a_stop_that_comes_too_late_still_stops_the_run(tmp_path):
    code = STOPPABLE.replace("sys.exit(3 if count else 1)", "sys.exit(0)")
    process = parent(code, tmp_path)
    wait_for(tmp_path / "ready0", tmp_path / "ready1")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0].split() == ["3", "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_ranks_die_with_a_parent_that_is_killed(tmp_path):
    code = (
        "import os, sys, time\n"
        "from agentworld.train.launch import die_with_parent\n"
        "die_with_parent()\n"
        "path = sys.argv[1] + '/pid' + os.environ['RANK']\n"
        "open(path + '.tmp', 'w').write(str(os.getpid()))\n"
        "os.rename(path + '.tmp', path)\n"
        "time.sleep(60)\n"
    )
    process = parent(code, tmp_path)
    wait_for(tmp_path / "pid0", tmp_path / "pid1")
    pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def test_handlers_are_given_back(tmp_path):
    before = [signal.getsignal(signum) for signum in launch.FORWARDED]
    run("", 1, tmp_path)
    assert [signal.getsignal(signum) for signum in launch.FORWARDED] == before


def test_no_nvidia_smi_means_no_gpus_and_no_torch_import(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(subprocess, "run", None)  # asking torch would fail here
    assert launch.visible_gpus() == 0


def test_a_step_of_several_micro_batches_starts_without_a_warning():
    """accelerate gets the number of micro-batches twice, and warns that they differ; what else it says is kept."""
    program = """
from agentworld.train import worker
worker.quiet_libraries()
from accelerate import accelerator
logger = accelerator.logger.logger
logger.warning("Gradient accumulation steps mismatch: GradientAccumulationPlugin has 1, DeepSpeed config has 2. ...")
logger.warning("another warning")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert "another warning" in said and "mismatch" not in said
