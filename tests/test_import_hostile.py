"""What an import meets outside of a test: outputs over inputs, odd folders, files that vanish, signals."""

import json
import os
from pathlib import Path

import pytest

from agentworld.data import importing
from agentworld.data.errors import RequestError
from agentworld.train.cli import main


def row(name: str, **changed) -> dict:
    turns = [{"action": f"echo {n}", "observation": f"out {n}"} for n in range(2)]
    system = {"task_description": "t", "action_space": "a"}
    return {"id": name, "domain": "terminal", "source": "s", "split_group": name, "system": system,
            "turns": turns} | changed  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    write("logs/a.jsonl", row("a1"), row("a2"))
    return tmp_path


def write(path: str, *rows: dict) -> None:
    Path(path).write_text("".join(json.dumps(r) + "\n" for r in rows))


def imported(*paths: str, **options) -> tuple[list[str], dict]:
    """The ids that were written, and the report."""
    options = {"workers": 1, "say": lambda _: None} | options
    report = importing.import_files([Path(path) for path in paths], Path("out.jsonl"), **options)
    return [json.loads(line)["id"] for line in Path("out.jsonl").read_text().splitlines()], report


@pytest.mark.parametrize(
    "out,report,said",
    [
        ("logs/a.jsonl", "r.json", "--out logs/a.jsonl: the input logs/a.jsonl itself"),
        ("hard.jsonl", "r.json", "--out hard.jsonl: the input"),
        ("x.jsonl", "soft.jsonl", "--report soft.jsonl: the input"),
        ("x.jsonl", "x.jsonl", "one file"),
        ("x.jsonl", "logs/../x.jsonl", "one file"),
        ("logs", "r.json", "--out logs: a folder"),
        ("", "r.json", "a folder"),
        ("x.jsonl", "", "--report .: a folder"),
        ("pipe", "r.json", "not a regular file"),
        ("x.jsonl", "pipe", "not a regular file"),
        ("x.jsonl", "no/r.json", "does not exist"),
    ],
)
def test_an_output_that_would_replace_something_is_refused_before_any_work(here, capsys, out, report, said) -> None:
    os.link("logs/a.jsonl", "hard.jsonl")
    os.symlink("logs/a.jsonl", "soft.jsonl")
    os.mkfifo("pipe")
    before = Path("logs/a.jsonl").read_bytes()
    assert main(["import", "logs/a.jsonl", "--out", out, "--report", report]) == 2
    assert said in capsys.readouterr().err
    assert Path("logs/a.jsonl").read_bytes() == before
    assert {path.name for path in here.iterdir()} == {"logs", "hard.jsonl", "soft.jsonl", "pipe"}


def test_outputs_below_a_searched_folder_are_not_read_again(here) -> None:
    arguments = ["import", "logs", "--out", "logs/out.jsonl", "--report", "logs/report.json", "--workers", "1"]
    assert main(arguments) == 0
    first = Path("logs/out.jsonl").read_bytes()
    assert main(arguments) == 0
    assert Path("logs/out.jsonl").read_bytes() == first
    report = json.loads(Path("logs/report.json").read_text())
    assert [file["path"] for file in report["files"]] == ["logs/a.jsonl"]
    assert {entry["reason"] for entry in report["skipped"]} == {"an output of this import"}


def test_the_report_is_written_when_nothing_is_kept(here) -> None:
    write("short.jsonl", row("s", turns=row("s")["turns"][:1]))
    assert main(["import", "short.jsonl", "--out", "x.jsonl", "--report", "r.json"]) == 1
    assert json.loads(Path("r.json").read_text())["totals"]["filtered"]["too_short"] == 1
    assert not Path("x.jsonl").exists()


def test_a_report_replaces_lone_surrogates_and_leaves_nothing_beside_it(here) -> None:
    importing.write_report({"reason": "half \ud83d"}, Path("r.json"))
    assert json.loads(Path("r.json").read_text()) == {"reason": "half \ufffd"}
    assert {path.name for path in here.iterdir()} == {"logs", "r.json"}


def test_what_a_folder_holds_beside_files_is_counted(here, capsys, monkeypatch) -> None:
    Path("elsewhere").mkdir()
    write("elsewhere/b.jsonl", row("b"))
    os.symlink("../elsewhere", "logs/linked")
    os.symlink("../elsewhere/b.jsonl", "logs/linked.jsonl")
    os.symlink("nothing", "logs/dangling.jsonl")
    os.mkfifo("logs/pipe")
    Path("logs/locked").mkdir()
    scandir = os.scandir

    def locked(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    assert main(["import", "logs", "--out", "x.jsonl", "--report", "r.json", "--workers", "1"]) == 0
    report = json.loads(Path("r.json").read_text())
    assert report["totals"]["kept"] == 3 and report["totals"]["skipped"] == 4
    assert report["skipped"] == [
        {"path": "logs/dangling.jsonl", "reason": "a link to nothing"},
        {"path": "logs/linked", "reason": "a link to a folder"},
        {"path": "logs/locked", "reason": "a folder that cannot be read: Permission denied"},
        {"path": "logs/pipe", "reason": "no regular file"},
    ]
    assert "4 entries of folders skipped, the first logs/dangling.jsonl: a link to nothing" in capsys.readouterr().out
    with pytest.raises(RequestError, match="logs/locked: the folder cannot be read: Permission denied"):
        imported("logs/locked")
    with pytest.raises(RequestError, match="neither a regular file nor a folder"):
        imported("logs/pipe")


def test_file_names_that_are_not_utf8_stay_apart(here) -> None:
    for name in (b"logs/\xff.jsonl", b"logs/\xfe.jsonl"):
        Path(os.fsdecode(name)).write_text(json.dumps(row(name.hex())))
    _, report = imported("logs", report_to=Path("r.json"))
    assert [file["path"] for file in report["files"]] == ["logs/a.jsonl", r"logs/\xfe.jsonl", r"logs/\xff.jsonl"]
