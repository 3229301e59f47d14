"""The command as a user meets it: help, exit codes, one line for every error."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentworld.data.errors import ContentError
from agentworld.train import cli, pipeline


def refused(capsys, *arguments: str, code: int = 2) -> str:
    """Run the command in this process; it must end with `code` and one line on standard error."""
    assert cli.main(list(arguments)) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1, shown.err
    assert lines[0].startswith("agentworld: error: ")
    return lines[0]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "agentworld.train.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("verb", ["train", "submit", "record", "verifiers", "report"])
def test_every_verb_has_an_example_that_starts_with_itself(verb, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    assert end.value.code == 0
    example = capsys.readouterr().out.partition("example:\n")[2]
    assert example.startswith(f"  agentworld {verb} ")


def test_the_examples_of_train_are_valid_requests():
    lines = [
        line.split("  ")[0]
        for line in cli.TRAIN_HELP.partition("example:\n")[2].replace("  agent", "agent").splitlines()
    ]
    from agentworld.train.compose import compose

    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["agentworld", "train"]
        compose(words[2:])


def test_help_names_the_verbs_there_are(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    for verb in ("train", "submit", "record", "report"):
        assert f"    {verb} " in shown


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == "agentworld 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "agentworld --help"),
        (["trian"], "'trian'"),
        (["train"], "recipe=smoke"),
        (["train", "recipe=smok"], "did you mean smoke?"),
        (["train", "recipe=smoke", "cpt.learning_rte=1"], "did you mean cpt.learning_rate?"),
        (["train", "recipe=smoke", "--fast"], "--fast"),
        (["record", "terminal", "--count", "0", "--out", "x.jsonl"], "--count"),
        (["record", "terminal", "--count", "x", "--out", "x.jsonl"], "--count"),
        (["record", "terminal", "--count", "2"], "--out"),
        (["record", "browser", "--count", "2", "--out", "x.jsonl"], "terminal"),
        (["record", "terminal", "--count", "2", "--out", "no/such/x.jsonl"], "no/such"),
        (["record", "terminal", "--count", "2", "--out", "x", "--min-turns", "9", "--max-turns", "3"], "--min-turns 9"),
        (["report", "no/such/run"], "no/such/run"),
    ],
)
def test_wrong_requests_end_with_2(arguments, said, capsys):
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.trajectories=[no-such.jsonl]"], "no-such.jsonl is not a file"),
        (["model.path=no-such-model"], "model.path=no-such-model"),
        (["stage=sft", "run.name=a"], "cpt/export"),
        (["stage=eval", "run.name=a"], "no finished export"),
        (["nproc=4"], "rl.completions_per_device=4"),
    ],
)
def test_missing_inputs_end_with_2_and_make_nothing(overrides, said, tmp_path, capsys):
    root = tmp_path / "runs"
    assert said in refused(capsys, "train", "recipe=smoke", f"run.root={root}", *overrides)
    assert not root.exists()


def test_a_root_that_cannot_be_made_ends_with_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "run.root" in refused(capsys, "train", "recipe=smoke", f"run.root={tmp_path}/file/runs")


def raising(error: BaseException):
    def run(*_):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ContentError("eval.jsonl:3: turns:\n  expected a list"), 1, "eval.jsonl:3: turns: expected a list"),
        (PermissionError(13, "Permission denied", "/runs/x"), 2, "/runs/x: Permission denied"),
        (OSError(28, "No space left on device", "/runs/x"), 2, "/runs/x: No space left on device"),
        (KeyError("x"), 1, "KeyError: 'x' (AGENTWORLD_DEBUG=1 prints the traceback)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_one_line_and_their_code(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "run", raising(error))
    assert refused(capsys, "train", "recipe=smoke", code=code).endswith(said)


def test_the_traceback_is_there_on_request(monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "run", raising(KeyError("x")))
    monkeypatch.setenv("AGENTWORLD_DEBUG", "1")
    assert cli.main(["train", "recipe=smoke"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_record_writes_the_same_actions_for_the_same_seed(tmp_path):
    import json

    actions = []
    for name in ("a.jsonl", "b.jsonl"):
        out = tmp_path / name
        arguments = ["--count", "3", "--seed", "5", "--mix", "light", "--out", str(out)]
        done = command("record", "terminal", *arguments)
        assert done.returncode == 0, done.stderr
        assert str(out) in done.stdout
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        actions.append([turn["action"] for row in rows for turn in row["turns"]])
        assert len(rows) == 3
    assert actions[0] == actions[1] != []


def test_a_closed_pipe_is_no_error():
    """`agentworld --help | head -0`."""
    with subprocess.Popen(
        [sys.executable, "-m", "agentworld.train.cli", "train", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_the_console_script_is_this_command():
    script = Path(sys.executable).parent / "agentworld"
    if not script.exists():
        pytest.skip("not installed as a script in this environment")
    done = subprocess.run([script, "train"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "recipe=smoke" in done.stderr


def test_keys_stand_before_and_after_flags_and_a_wrong_flag_is_still_one(capsys) -> None:
    options = cli._parsed(["plan", "recipe=smoke", "--mfu", "0.2", "seed=1", "nproc=2"])
    assert (options.overrides, options.mfu) == (["recipe=smoke", "seed=1", "nproc=2"], 0.2)
    assert cli.main(["plan", "recipe=smoke", "--mfuu", "0.2", "seed=1"]) == 2
    assert "unrecognized arguments: --mfuu" in capsys.readouterr().err
    assert cli.main(["report", "runs/none", "seed=1"]) == 2
    assert "unrecognized arguments: seed=1" in capsys.readouterr().err
