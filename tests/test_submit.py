"""`agentworld submit`: its scripts run in a shell, beside programs that stand in for SLURM's and note what they get."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.slurm import settings
from agentworld.train import cli
from agentworld.train.compose import compose, load_recipe

SMOKE = "recipe=smoke"
CHAIN = ("data", "cpt", "sft", "rl")
ROOT = Path(__file__).resolve().parent.parent
# Notes its arguments, one JSON list a line; answers a number, or fails at the call that the file `fail` names.
SBATCH = """
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/sbatch.calls", "a+") as file:
    file.seek(0)
    number = len(file.readlines())
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if os.path.exists(here + "/fail") and number == int(open(here + "/fail").read()):
    sys.exit("sbatch: error: invalid  partition specified: nowhere\\nsbatch: error: submission failed \\x1b[1m")
print(f"{101 + number};site")
"""
# Notes its arguments and how often it was signalled; ends with CODE, after a signal where WAIT is set.
AGENTWORLD = """
import json, os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
got = []
for signum in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(signum, lambda signum, frame: got.append(signal.Signals(signum).name))
json.dump(sys.argv[1:], open(here + "/arguments.json", "w"))
while "WAIT" in os.environ and not got:
    time.sleep(0.02)
time.sleep(0.5 if got else 0)
os.system(os.environ.get("MAKE", "true"))
json.dump(got, open(here + "/signals.json", "w"))
sys.exit(int(os.environ["CODE"]))
"""


def program(folder: Path, name: str, source: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder of stand-ins in front of PATH, and a working directory of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "sbatch", SBATCH)
    program(folder, "agentworld", AGENTWORLD)
    noting = "import os, sys; open(__file__ + '.calls', 'a').write(' '.join(sys.argv[1:]) + '\\n'); "
    program(folder, "scontrol", noting)
    program(folder, "squeue", noting + "print(os.environ['STATE'])")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


def calls(site: Path) -> list[list[str]]:
    path = site / "sbatch.calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def submit(*overrides: str) -> int:
    return cli.main(["submit", SMOKE, *overrides])


def directives(script: Path) -> dict[str, str]:
    """Option -> value, read as sbatch reads them: words of the #SBATCH lines."""
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    words = [word for line in lines for word in shlex.split(line.removeprefix("#SBATCH "))]
    return dict(word.partition("=")[::2] for word in words)


def test_the_jobs_form_a_chain_in_which_each_needs_the_success_of_the_one_before(site, tmp_path, capsys):
    assert submit("run.name=first") == 0
    folder = tmp_path / "runs" / "first" / "slurm"
    scripts = [str(folder / f"{stage}.sbatch") for stage in CHAIN]
    after = [[], *([f"--dependency=afterok:{n}", "--kill-on-invalid-dep=yes"] for n in (101, 102, 103))]
    assert calls(site) == [["--parsable", *words, script] for words, script in zip(after, scripts, strict=True)]
    shown = capsys.readouterr().out
    for stage, number, script in zip(CHAIN, range(101, 105), scripts, strict=True):
        assert re.search(rf"{stage} +job {number} +{re.escape(script)}", shown)
        assert f"{folder}/{stage}-{number}.log" in shown
    assert "squeue --jobs=101,102,103,104" in shown
    assert load_recipe(folder.parent) == compose([SMOKE, "run.name=first", "nproc=2"])


def test_the_examples_of_the_help_submit_a_run(site):
    lines = [line.split() for line in cli.SUBMIT_HELP.partition("example:\n")[2].splitlines()]
    assert len(lines) == 2 and all(words[:2] == ["agentworld", "submit"] for words in lines)
    assert [cli.main(words[1:]) for words in lines] == [0, 0]
    assert len(calls(site)) == 4, "the first is a dry run"


def test_a_single_stage_is_one_job(site):
    assert submit("run.name=first", "stage=cpt") == 0
    assert [Path(words[-1]).stem for words in calls(site)] == ["cpt"]


def test_the_printed_commands_of_a_dry_run_submit_the_same_chain(site, tmp_path, capsys):
    root = tmp_path / "my runs; $HOME"
    assert submit(f"run.root={root}", "run.name=first", "dry_run=true") == 0
    assert calls(site) == []
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "$(sbatch" in line]
    done = subprocess.run(["bash", "-euc", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    by_hand = [[word.replace(";site", "") for word in words] for words in calls(site)]
    (site / "sbatch.calls").unlink()
    assert submit(f"run.root={root}", "run.name=first", "resume=true") == 0
    assert calls(site) == by_hand and len(by_hand) == 4


def test_a_refusal_midway_names_what_was_submitted(site, capsys):
    (site / "fail").write_text("2")
    assert submit("run.name=first", "cluster.partition=nowhere") == 1
    first, *said = capsys.readouterr().err.splitlines()
    for part in ("sft.sbatch", "data 101, cpt 102", "scancel 101 102"):
        assert part in first
    assert said == [  # as sbatch printed it, but for what a screen would obey
        "sbatch: error: invalid  partition specified: nowhere",
        "sbatch: error: submission failed ⟨ESC⟩[1m",
    ]
    assert len(calls(site)) == 3, "nothing is submitted after the refusal"


def test_without_sbatch_nothing_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    assert submit("run.name=first") == 2
    assert "dry_run=true" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert submit("run.name=first", "dry_run=true") == 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["nproc=4"], ["nproc", "cluster.tasks_per_node"]),
        (["dry_run=perhaps"], ["dry_run", "'perhaps'"]),
        (["cpt.max_stps=3"], ["cpt.max_steps"]),
        (["data.trajectories=[absent.jsonl]"], ["absent.jsonl is not a file"]),
        (["stage=sft", "run.name=first"], ["needs the hand-off"]),
        (["engine.expert_parallel=4"], ["engine.expert_parallel=4", "has 2"]),
        (["cluster.tasks_per_node=3"], ["rl.completions_per_device"]),
        (["cluster.nodes=0"], ["cluster.nodes", "greater than 0"]),
        (["cluster.time=5"], ["cluster.signal_seconds=300", "cluster.time=5 (300 s)"]),
        (["cluster.time=soon"], ["cluster.time='soon'", "D-HH:MM:SS"]),
        (["cluster.partition=a b"], ["cluster.partition"]),
        (["cluster.extra=[exclusive]"], ["cluster.extra", "--exclusive"]),
        (["cluster=default", "cluster.gpus_per_node=4", "engine.device=auto"], ["cluster.gpus_per_node=4"]),
    ],
)
def test_a_wrong_request_makes_nothing(site, tmp_path, capsys, overrides, said):
    assert submit(*overrides) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    for part in said:
        assert part in text, text
    assert not (tmp_path / "runs").exists() and calls(site) == []


def test_an_existing_run_is_refused_continued_or_begun_again(site, tmp_path, capsys):
    run = tmp_path / "runs" / "first"
    assert submit("run.name=first") == 0
    (run / "cpt").mkdir()
    assert submit("run.name=first") == 2
    assert "resume=true" in capsys.readouterr().err and len(calls(site)) == 4
    assert submit("run.name=first", "resume=true", "cluster.time=8:00:00") == 0, "settings of the site may change"
    assert (run / "cpt").is_dir() and directives(run / "slurm" / "cpt.sbatch")["--time"] == "8:00:00"
    assert submit("run.name=first", "overwrite=true") == 0
    assert not (run / "cpt").exists() and "overwrite" not in (run / "slurm" / "cpt.sbatch").read_text()


def test_two_submissions_without_a_name_are_two_runs(site, tmp_path):
    assert submit() == submit() == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_settings_become_directives_and_empty_ones_no_line(site, tmp_path):
    given = {"partition": "batch", "account": "lab", "qos": "long", "memory": "500G", "time": "1-00:00:00"}
    given |= {"nodes": "2", "gpus_per_node": "8", "tasks_per_node": "8", "cpus_per_task": "6", "signal_seconds": "600"}
    sizes = ["rl.completions_per_device=1", "engine.expert_parallel=8", "cluster.extra=['--constraint=h200']"]
    assert submit("run.name=first", *(f"cluster.{key}={value}" for key, value in given.items()), *sizes) == 0
    folder = tmp_path / "runs" / "first" / "slurm"
    found = directives(folder / "rl.sbatch")
    names = {"memory": "mem", "tasks_per_node": "ntasks-per-node", "signal_seconds": "signal"}
    expected = {f"--{names.get(key, key.replace('_', '-'))}": value for key, value in given.items()}
    assert {key: found[key] for key in expected} == expected | {"--signal": "B:USR1@600"}
    assert found["--constraint"] == "h200" and "--requeue" in found and found["--open-mode"] == "append"
    assert found["--output"] == f"{folder}/rl-%j.log" and found["--chdir"] == str(tmp_path)
    data = directives(folder / "data.sbatch")
    assert (data["--nodes"], data["--ntasks-per-node"], data["--cpus-per-task"]) == ("1", "1", "48")
    assert "--gpus-per-node" not in data
    assert "nproc=16" in (folder / "data.sbatch").read_text().replace("\\\n", "").split()
    assert submit("run.name=second", "cluster.signal_seconds=0", "cluster.requeue=false") == 0
    plain = directives(tmp_path / "runs" / "second" / "slurm" / "rl.sbatch")
    ours = {"--job-name", "--output", "--open-mode", "--chdir", "--nodes", "--ntasks-per-node", "--no-requeue"}
    assert set(plain) == ours


HARD = [
    'wandb.project=it\'s "$HOME" `x` [a] #1',
    "data.tokenizer_units=['a b', \"it's\"]",
    "data.mask.keep={echo: 0.5}",
]


def run_script(site: Path, tmp_path: Path, code: int, state: str = "RUNNING", **environment: str) -> subprocess.Popen:
    """Write the script of one stage, with stand-ins first on its PATH, and start it as SLURM would."""
    root = tmp_path / "my runs @RUN_DIR@ 100%"
    where = [f"run.root={root}", "run.name=first", "resume=true"]
    assert submit(*where, *HARD, f"cluster.setup=['export PATH={site}:$PATH']", "stage=cpt") == 0
    script = root / "first" / "slurm" / "cpt.sbatch"
    environment = {"SLURM_JOB_ID": "7", "CODE": str(code), "STATE": state, **environment}
    return subprocess.Popen(["bash", str(script)], env={**os.environ, **environment}, text=True)


def requeued(site: Path) -> bool:
    path = site / "scontrol.calls"
    return path.exists() and path.read_text() == "requeue 7\n"


def test_overrides_reach_the_command_as_they_were_typed(site, tmp_path):
    assert run_script(site, tmp_path, code=0).wait(timeout=30) == 0
    words = json.loads((site / "arguments.json").read_text())
    assert words[0] == "train" and [word for word in words if word in HARD] == HARD
    config = compose(words[1:])
    assert (config.stage, config.resume, config.nproc) == ("cpt", True, 2)
    assert Path(config.run.root) / config.run.name == tmp_path / "my runs @RUN_DIR@ 100%" / "first"
    submitted = load_recipe(tmp_path / "my runs @RUN_DIR@ 100%" / "first")
    assert config.wandb == submitted.wandb and config.data == submitted.data
    output = directives(tmp_path / "my runs @RUN_DIR@ 100%" / "first" / "slurm" / "cpt.sbatch")["--output"]
    assert output.replace("%%", "%") == f"{tmp_path}/my runs @RUN_DIR@ 100%/first/slurm/cpt-%j.log"


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (2, False), (3, True)])
def test_only_a_stop_queues_the_job_again(site, tmp_path, code, again):
    assert run_script(site, tmp_path, code).wait(timeout=30) == code
    assert requeued(site) == again


def test_starts_that_get_nothing_done_are_not_repeated_for_ever(site, tmp_path):
    run = tmp_path / "my runs @RUN_DIR@ 100%" / "first"
    seen = []
    for made in ("", "", "cpt/checkpoints/checkpoint-3", "", "", "rl/pilot/part_00000.parquet", "", "", "", ""):
        make = f"mkdir -p {shlex.quote(str(run / made))}" if made else "true"
        assert run_script(site, tmp_path, 3, MAKE=make).wait(timeout=30) == 3
        seen.append(requeued(site))
        (site / "scontrol.calls").unlink(missing_ok=True)
    assert seen == [True] * 8 + [False, True], "the third in a row ends the job, a new one begins anew"


def test_a_job_that_is_being_cancelled_is_not_brought_back(site, tmp_path):
    assert run_script(site, tmp_path, 3, state="COMPLETING").wait(timeout=30) == 3
    assert not requeued(site)


def test_a_stop_file_ends_the_job_for_good(site, tmp_path):
    run = tmp_path / "my runs @RUN_DIR@ 100%" / "first"
    process = run_script(site, tmp_path, 3, WAIT="1")
    (run / "stop").touch()
    wait_for(site / "arguments.json")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 3
    assert not requeued(site)


def test_requeue_false_ends_the_job(site, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "HARD", [*HARD, "cluster.requeue=false"])
    assert run_script(site, tmp_path, 3).wait(timeout=30) == 3
    assert not requeued(site)


@pytest.mark.parametrize("signals", [["USR1"], ["TERM"], ["USR1", "TERM"]])
def test_a_signal_to_the_script_reaches_the_command_and_is_waited_for(site, tmp_path, signals):
    process = run_script(site, tmp_path, 3, WAIT="1")
    wait_for(site / "arguments.json")
    for name in signals:
        process.send_signal(signal.Signals[f"SIG{name}"])
        time.sleep(0.15)
    assert process.wait(timeout=30) == 3
    assert set(json.loads((site / "signals.json").read_text())) == {"SIGUSR1"}, "the command had the time to save"
    assert requeued(site)


def test_a_signal_while_the_setup_lines_run_is_not_lost(site, tmp_path):
    setup = f"cluster.setup=['export PATH={site}:$PATH', 'touch {tmp_path}/ready; sleep 1']"
    assert submit("run.name=first", "stage=cpt", setup) == 0
    environment = {"SLURM_JOB_ID": "7", "CODE": "3", "STATE": "RUNNING", "WAIT": "1"}
    script = tmp_path / "runs" / "first" / "slurm" / "cpt.sbatch"
    process = subprocess.Popen(["bash", str(script)], env={**os.environ, **environment})
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 3
    assert requeued(site)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_the_scripts_pass_bash_and_shellcheck(site, tmp_path):
    quoted = "cluster.setup=['module load cuda', 'export PATH=/opt/x:$PATH']"
    assert submit(f"run.root={tmp_path}/it's $HOME", "run.name=first", *HARD, quoted) == 0
    scripts = [*(tmp_path / "it's $HOME" / "first" / "slurm").glob("*.sbatch"), *(ROOT / "slurm").glob("*.s*h")]
    assert len(scripts) == 6
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("bash reads them all; shellcheck is not installed")
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("time_limit", "expected"),
    [("90", 5400), ("90:30", 5430), ("2:00:05", 7205), ("1-0", 86400), ("1-2:30", 95400), ("1-02:30:10", 95410)],
)
def test_time_limits_are_read_as_sbatch_reads_them(time_limit, expected):
    assert settings.seconds(time_limit) == expected


@pytest.mark.parametrize("text", ["", "1:2:3:4", "-5", "2h", "1-", "1:"])
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(ValueError, match="no time limit"):
        settings.seconds(text)
