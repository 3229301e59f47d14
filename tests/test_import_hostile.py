"""What an import meets outside of a test: outputs over inputs, odd folders, files that vanish, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.data import cleaning, conversion, import_report, import_units, importing, redaction
from agentworld.data.errors import ContentError, RequestError
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


def test_a_raw_log_below_a_searched_folder_is_no_output(here, capsys) -> None:
    Path("logs/chat.json").write_text('{"messages": []}')
    for arguments in (["--out", "logs/chat.json"], ["--out", "x.jsonl", "--report", "logs/chat.json"]):
        assert main(["import", "logs", *arguments]) == 2
        assert "logs/chat.json: a log below logs, which would be replaced" in capsys.readouterr().err
    assert Path("logs/chat.json").read_text() == '{"messages": []}'


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(here, capsys, monkeypatch) -> None:
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    assert main(["import", "logs", "--out", "x.jsonl", "--report", "locked/r.json"]) == 2
    assert "locked cannot be written" in capsys.readouterr().err and not Path("x.jsonl").exists()


def test_the_report_is_written_when_nothing_is_kept(here) -> None:
    write("short.jsonl", row("s", turns=row("s")["turns"][:1]))
    assert main(["import", "short.jsonl", "--out", "x.jsonl", "--report", "r.json"]) == 1
    assert json.loads(Path("r.json").read_text())["totals"]["filtered"]["too_short"] == 1
    assert not Path("x.jsonl").exists()


def test_a_report_replaces_lone_surrogates_and_leaves_nothing_beside_it(here) -> None:
    import_report.write_report({"reason": "half \ud83d"}, Path("r.json"))
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


def test_a_trajectory_that_cannot_be_written_is_rejected_with_its_place_and_the_others_stay(here) -> None:
    deep: dict = {}
    for _ in range(600):
        deep = {"d": deep}
    bad = [row("nan"), row("inf"), row("deep")]
    for trajectory, value in zip(bad, (float("nan"), float("inf"), deep), strict=True):
        trajectory["turns"][1]["meta"] = {"value": value}
    write("logs/a.jsonl", row("a1"), *bad, row("a2"))
    ids, report = imported("logs")
    assert ids == ["a1", "deep", "a2"]
    (file,) = report["files"]
    assert [entry["where"] for entry in file["rejected"]] == [f"logs/a.jsonl:{n}" for n in (2, 3)]
    assert [entry["reason"].partition(": ")[0] for entry in file["rejected"]] == ["cannot be written"] * 2
    assert "ValueError: Out of range float" in file["rejected"][0]["reason"]
    assert (file["turns_read"], file["turns_kept"], file["turns_removed"]["of_rejected_trajectories"]) == (10, 6, 4)
    with pytest.raises(ContentError, match=r"logs/a\.jsonl:2: cannot be written"):
        imported("logs", on_bad="fail")


@pytest.mark.parametrize("what,error", [("filters", OverflowError("big")), ("redaction", RecursionError("deep"))])
def test_what_a_filter_stumbles_over_costs_one_trajectory(here, monkeypatch, what, error) -> None:
    def fails(trajectory):
        if trajectory.id == "a1":
            raise error
        return original(trajectory)

    module, name = (cleaning, "clean") if what == "filters" else (redaction, "redact")
    original = getattr(module, name)
    monkeypatch.setattr(module, name, fails)
    ids, report = imported("logs")
    assert ids == ["a2"]
    assert report["files"][0]["rejected"] == [
        {"where": "logs/a.jsonl:1", "reason": f"cannot be written: {type(error).__name__}: {error}"}
    ]


@pytest.mark.parametrize("function", ["look", "records"])
def test_a_file_that_cannot_be_read_is_counted_and_the_others_are_imported(here, monkeypatch, function) -> None:
    write("logs/b.jsonl", row("b"))
    original = getattr(conversion, function)

    def vanished(path, *rest):
        if path.name == "a.jsonl":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return original(path, *rest)

    monkeypatch.setattr(conversion, function, vanished)
    ids, report = imported("logs")
    assert ids == ["b"]
    assert report["files"][0]["rejected"] == [
        {"where": "logs/a.jsonl", "reason": "cannot be read: No such file or directory"}
    ]
    with pytest.raises(ContentError, match="cannot be read"):
        imported("logs", on_bad="fail")


def test_a_named_file_that_cannot_be_read_is_a_wrong_request(here, monkeypatch) -> None:
    def refused(*_):
        raise PermissionError(13, "Permission denied", "logs/a.jsonl")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(RequestError, match=r"logs/a\.jsonl: cannot be read: Permission denied"):
        imported("logs/a.jsonl")


def test_empty_files_at_the_end_belong_to_the_last_shard(here) -> None:
    Path("logs/z.jsonl").touch()
    units = [import_units.Unit(file) for file in import_units.find_files([Path("logs")])]
    assert [import_units.shard_of(units, (index, 3)) for index in range(3)] == [units[:1], [], units[1:]]


def test_a_shard_without_work_writes_an_empty_file_and_says_so(here, capsys) -> None:
    assert main(["import", "logs", "--out", "x.jsonl", "--shard", "1/3"]) == 0
    assert Path("x.jsonl").read_bytes() == b""
    assert "shard 1/3 has no part of the work; x.jsonl is empty" in capsys.readouterr().out


@pytest.mark.parametrize("unit_bytes", [1, 32 << 20])
def test_of_trajectories_with_one_id_the_first_is_kept(here, monkeypatch, unit_bytes) -> None:
    monkeypatch.setattr(import_units, "UNIT_BYTES", unit_bytes)
    write("logs/a.jsonl", row("a"), row("b", source="first"), row("b", source="second\u2028"), row("c"))
    write("logs/b.jsonl", row("d"), row("a"), row("half \ud83d"), row("half \ufffd"), row("b"))
    ids, report = imported("logs", workers=2)
    assert ids == ["a", "b", "c", "d", "half \ufffd"]
    assert json.loads(Path("out.jsonl").read_text().split("\n")[1])["source"] == "first"
    assert [entry for file in report["files"] for entry in file["rejected"]] == [
        {"where": "logs/a.jsonl:3", "reason": "an earlier trajectory has the id 'b'"},
        {"where": "logs/b.jsonl:2", "reason": "an earlier trajectory has the id 'a'"},
        {"where": "logs/b.jsonl:4", "reason": "an earlier trajectory has the id 'half \ufffd'"},
        {"where": "logs/b.jsonl:5", "reason": "an earlier trajectory has the id 'b'"},
    ]
    for counted in (*report["files"], report["totals"]):
        assert counted["turns_read"] == counted["turns_kept"] + sum(counted["turns_removed"].values())
    assert (report["totals"]["read"], report["totals"]["kept"], report["totals"]["rejected"]) == (9, 5, 4)
    with pytest.raises(ContentError, match=r"logs/a\.jsonl:3: an earlier trajectory has the id 'b'"):
        imported("logs", on_bad="fail")
    ids, _ = imported("logs/b.jsonl", "logs/a.jsonl")
    assert ids == ["d", "a", "half \ufffd", "b", "c"]


SLOW = """
import os, sys, time
from agentworld.data import cleaning
def clean(trajectory):
    with open(f"worker-{os.getpid()}", "w"):
        pass
    time.sleep(600)
cleaning.clean = clean
from agentworld.train.cli import main
sys.exit(main(["import", "logs", "--out", "x.jsonl", "--report", "r.json", "--workers", "2"]))
"""


def started() -> tuple[subprocess.Popen, list[int]]:
    """An import whose two workers hang, and their ids."""
    write("logs/b.jsonl", row("b"))
    parent = subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_default_signals,
    )
    deadline = time.monotonic() + 60
    while len(workers := [int(path.name[7:]) for path in Path().glob("worker-*")]) < 2:
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    return parent, workers


def _default_signals() -> None:
    """Of a shell in the foreground: what was started with nohup or & ignores some, and so do its children."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(processes: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(is_running(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_import_at_once_with_one_line_and_nothing_left(here, number) -> None:
    parent, workers = started()
    parent.send_signal(number)
    _, said = parent.communicate(timeout=30)
    assert (parent.returncode, said) == (130, "agentworld: error: interrupted\n")
    await_end(workers)
    assert {path.name for path in here.iterdir()} == {"logs", *(f"worker-{worker}" for worker in workers)}


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_workers_die_with_a_killed_import(here) -> None:
    parent, workers = started()
    parent.kill()
    parent.communicate(timeout=30)
    await_end(workers)
    assert not any(map(is_running, workers)) and not Path("x.jsonl").exists()


def test_a_killed_worker_is_told(here) -> None:
    parent, workers = started()
    os.kill(workers[0], signal.SIGKILL)
    _, said = parent.communicate(timeout=30)
    assert parent.returncode == 1 and said.startswith("agentworld: error: a worker was killed, often for a lack of mem")
    assert said.count("\n") == 1 and not Path("x.jsonl").exists()


def test_control_characters_do_not_reach_the_terminal(here, capsys) -> None:
    Path("logs/\x1b[2J.jsonl").write_text(json.dumps(row("a", domain="\x1b]0;title\x07")) + "\n")
    assert main(["import", "logs", "--out", "x.jsonl", "--workers", "1"]) == 0
    assert main(["import", "\x1b[2J", "--out", "x.jsonl"]) == 2
    assert main(["import", "logs", "--out", "x.jsonl", "--on-bad", "fail", "--workers", "1"]) == 1
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\x07" not in shown.out + shown.err
    assert "⟨ESC⟩[2J: no such file" in shown.err


def test_a_negative_number_of_workers_is_refused(here, capsys) -> None:
    assert main(["import", "logs", "--out", "x.jsonl", "--workers", "-1"]) == 2
    assert "-1 is negative" in capsys.readouterr().err


def test_a_full_disk_names_the_output(here, monkeypatch, capsys) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["import", "logs", "--out", "x.jsonl", "--workers", "1"]) == 2
    shown = capsys.readouterr()
    assert shown.err == "agentworld: error: x.jsonl: No space left on device\n"
    assert "import: 1 of 1 parts are kept in .agentworld-import-" in shown.out and not Path("x.jsonl").exists()
