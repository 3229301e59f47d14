"""An import that was killed anywhere goes on to the bytes of one that was not, or says why it cannot."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.data import import_units, import_work, importing
from agentworld.data.errors import ContentError, RequestError
from agentworld.train.cli import main

PARTS = 13  # lines.jsonl in 10, and three files


def row(name: str, text: str = "out") -> dict:
    turns = [{"action": f"echo {n}", "observation": f"{text} {n}"} for n in range(2)]
    system = {"task_description": "t", "action_space": "a"}
    return {"id": name, "domain": "terminal", "source": "s", "split_group": name, "system": system, "turns": turns}


def write_logs() -> None:
    """Logs in 13 parts, with damage, repeated ids, and a file of no known format."""
    Path("logs").mkdir()
    lines = [json.dumps(row(f"l{number % 55}", f"bob@corp.org {number}")) for number in range(60)]
    lines[17] = lines[17][:-5]
    Path("logs/lines.jsonl").write_text("\n".join(lines) + "\n")
    Path("logs/array.json").write_text(json.dumps([row("a"), {"id": "b"}, row("half \ud83d")]))
    Path("logs/one.json").write_text(json.dumps(row("one")))
    Path("logs/SOURCE.md").write_text("# notes\n")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_units, "UNIT_BYTES", 1500)
    write_logs()
    return tmp_path


def run(out: str, *flags: str) -> tuple[bytes, bytes]:
    """The bytes of the output and of the report."""
    assert main(["import", "logs", "--out", out, "--report", "r.json", "--workers", "2", *flags]) == 0
    return Path(out).read_bytes(), Path("r.json").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, tuple[bytes, bytes]]:
    """What `run` gives without any interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        patch.setattr(import_units, "UNIT_BYTES", 1500)
        write_logs()
        return {out: run(out) for out in ("x.jsonl", "x.parquet")}


def left() -> list[Path]:
    """Working folders beside the output."""
    return list(Path().glob(".agentworld-import-*"))


def finished() -> set[str]:
    return {path.stem for folder in left() for path in folder.glob("*[0-9].json")}


PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
from agentworld.data import conversion, import_units, import_work, importing
from agentworld.train.cli import main
import_units.UNIT_BYTES = 1500
place, nth, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
importer = os.getpid()
def deadly(function):
    def called(*arguments, **named):
        with open("calls", "a") as file:
            file.write("x")
        if os.path.getsize("calls") >= nth:  # two workers may add at once
            os.kill(importer, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return called
modules = {"conversion": conversion, "importing": importing, "import_work": import_work, "shutil": shutil, "Path": Path}
if place:
    module, _, name = place.partition(".")
    setattr(modules[module], name, deadly(getattr(modules[module], name)))
sys.exit(main(["import", "logs", "--out", out, "--report", "r.json", "--workers", "2", *sys.argv[4:]]))
"""


def started(place: str, nth: int, out: str, *flags: str) -> subprocess.Popen:
    Path("calls").unlink(missing_ok=True)
    program = [sys.executable, "-c", PROGRAM, place, str(nth), out, *flags]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def killed(place: str, nth: int, out: str) -> None:
    process = started(place, nth, out)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, said


@pytest.mark.parametrize(
    "place,nth,out",
    [
        ("importing.working_folder", 1, "x.jsonl"),
        ("import_work._write_whole", 1, "x.jsonl"),  # the plan
        ("conversion._convert", 1, "x.jsonl"),
        ("conversion.finish_part", 1, "x.jsonl"),
        ("conversion._convert", 7, "x.parquet"),
        ("conversion.finish_part", PARTS, "x.jsonl"),
        ("importing.repeated_ids", 1, "x.jsonl"),
        ("importing.count_repeated", 1, "x.jsonl"),
        ("importing.join", 1, "x.parquet"),
        ("importing.write_report", 1, "x.jsonl"),
        ("shutil.rmtree", 1, "x.jsonl"),  # the output is there already
    ],
)
def test_a_killed_import_goes_on_to_the_same_bytes(here, whole, capsys, place, nth, out) -> None:
    killed(place, nth, out)
    parts = finished()
    said = "" if not parts else f"goes on with {len(parts)} of {PARTS} parts finished"
    assert Path(out).exists() == (place == "shutil.rmtree")
    capsys.readouterr()
    assert run(out, "--resume") == whole[out]
    assert said in capsys.readouterr().out and not left()


def test_killed_again_and_again_at_any_moment_it_comes_to_the_same_bytes(here, whole) -> None:
    rng = random.Random(0)
    for attempt in range(8):
        process = started("", 0, "x.jsonl", "--resume")
        try:
            process.communicate(timeout=rng.uniform(0.2, 1.5) if attempt < 7 else 120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert (Path("x.jsonl").read_bytes(), Path("r.json").read_bytes()) == whole["x.jsonl"]
    assert not left()


def test_a_part_that_is_damaged_is_made_again(here, whole, capsys) -> None:
    killed("importing.join", 1, "x.jsonl")
    (folder,) = left()
    for number, suffix in enumerate(("", ".ids", ".places", ".json"), start=3):
        damaged = folder / f"{number:06}{suffix}"
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    (folder / "000007.json").unlink()
    capsys.readouterr()
    assert run("x.jsonl", "--resume") == whole["x.jsonl"]
    assert f"goes on with {PARTS - 5} of {PARTS} parts finished" in capsys.readouterr().out


def test_what_the_parts_were_not_made_from_is_refused_with_the_reason_and_they_stay(
    here, whole, capsys, monkeypatch
) -> None:
    killed("conversion._convert", 9, "x.jsonl")
    parts, stored = finished(), Path("logs/one.json").stat()

    def refused(*flags: str, paths: tuple[str, ...] = ("logs",)) -> str:
        assert main(["import", *paths, "--out", "x.jsonl", "--resume", *flags]) == 2
        assert finished() == parts and not Path("x.jsonl").exists()
        return capsys.readouterr().err

    assert "--resume: the stopped import had --filters on, this one has --filters off" in refused("--filters", "off")
    assert "had --redact on, this one has --redact off; without --resume" in refused("--redact", "off")
    assert "had --shard 0/1, this one has --shard 0/2" in refused("--shard", "0/2")
    assert "had --format auto, this one has --format agentworld" in refused("--format", "agentworld")
    Path("logs/new.json").write_text("{}")
    assert "logs/new.json is new since the stopped import" in refused()
    Path("logs/new.json").unlink()
    os.utime("logs/one.json", ns=(stored.st_atime_ns, stored.st_mtime_ns + 1))
    assert "logs/one.json has changed since the stopped import" in refused()
    os.rename("logs/one.json", "one.json")
    assert "logs/one.json is gone since the stopped import" in refused()
    os.rename("one.json", "logs/one.json")
    os.utime("logs/one.json", ns=(stored.st_atime_ns, stored.st_mtime_ns))
    with monkeypatch.context() as patch:
        patch.setattr(import_work, "version", lambda _: "0.0.9")
        assert "made by another version" in refused()
    assert main(["import", "logs", "--out", "y.jsonl", "--workers", "3"]) == 0  # another output: these parts stay
    assert finished() == parts
    assert run("x.jsonl", "--resume", "--workers", "1") == whole["x.jsonl"]


def test_another_order_of_the_paths_is_refused(here, monkeypatch) -> None:
    names = ["logs/one.json", "logs/array.json"]
    files = [import_units.SourceFile(Path(name), name, True) for name in names]
    one, other = (import_work.make_plan(Path("x"), order, {}, 1) for order in (files, files[::-1]))
    assert import_work._difference(one, one) is None
    assert import_work._difference(one, other) == "the paths are in another order than in the stopped import"


def test_without_resume_what_a_dead_import_left_is_removed(here, whole, capsys) -> None:
    killed("conversion._convert", 9, "x.jsonl")
    assert finished()
    capsys.readouterr()
    assert run("x.jsonl") == whole["x.jsonl"]
    assert "removes what a stopped import to this output left" in capsys.readouterr().out and not left()


def test_two_imports_do_not_write_one_output_at_once(here, whole, capsys) -> None:
    Path("logs/z.json").write_text(json.dumps(row("z")))
    program = PROGRAM.replace(
        "place, nth, out =", "import time; importing.join = lambda *_: time.sleep(600)\nplace, nth, out ="
    )
    process = subprocess.Popen([sys.executable, "-c", program, "", "0", "x.jsonl"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(finished()) < PARTS + 1:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    for flags in ([], ["--resume"]):
        assert main(["import", "logs", "--out", "x.jsonl", *flags]) == 2
        assert "--out x.jsonl: another import that runs now writes this file" in capsys.readouterr().err
    assert main(["import", "logs", "--out", "y.jsonl"]) == 0
    assert len(finished()) == PARTS + 1
    process.kill()
    process.wait()
    Path("logs/z.json").unlink()
    assert run("x.jsonl") == whole["x.jsonl"]


def test_an_interruption_keeps_what_is_finished_and_says_how_to_go_on(here, whole, capsys, monkeypatch) -> None:
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importing, "join", interrupted)
        assert main(["import", "logs", "--out", "x.jsonl", "--workers", "2"]) == 130
    (folder,) = left()
    assert f"{PARTS} of {PARTS} parts are kept in {folder}; the same command with --resume" in capsys.readouterr().out
    assert run("x.jsonl", "--resume") == whole["x.jsonl"]


def test_content_that_cannot_be_used_leaves_the_report_and_nothing_else(here) -> None:
    before = {path.name for path in here.iterdir()}
    with pytest.raises(ContentError, match=r"logs/array\.json\[1\]: domain") as error:
        importing.import_files([Path("logs")], Path("x.jsonl"), on_bad="fail", say=str, report_to=Path("r.json"))
    assert {path.name for path in here.iterdir()} == {*before, "r.json"}
    report = json.loads(Path("r.json").read_text())
    assert report["stopped"] == str(error.value) and report["output"] is None
    assert [file["path"] for file in report["files"]] == ["logs/SOURCE.md", "logs/array.json"]
    assert (report["totals"]["read"], report["totals"]["kept"], report["totals"]["rejected"]) == (3, 2, 1)


def test_a_lock_that_is_not_there_is_told(here, monkeypatch, capsys) -> None:
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(import_work.fcntl, "lockf", no_locks)
    run("x.jsonl")
    assert "no file locks (Function not implemented): run no other import to x.jsonl" in capsys.readouterr().out


FULL = """
import resource, sys
from agentworld.data import import_units
from agentworld.train.cli import main
import_units.UNIT_BYTES = 1500
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(["import", "logs", "--out", sys.argv[2], "--report", "r.json", "--workers", "2"]))
"""


@pytest.mark.parametrize("limit,out", [(1200, "x.jsonl"), (5000, "x.jsonl"), (3000, "x.parquet")])
def test_a_full_disk_is_told_in_one_line_and_does_not_cost_what_is_finished(here, whole, limit, out) -> None:
    """At 1,200 bytes the parts of lines do not fit, at the others the output does not."""
    ended = subprocess.run([sys.executable, "-c", FULL, str(limit), out], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, f"agentworld: error: {out}: File too large\n")
    assert not Path(out).exists() and not Path("r.json").exists()
    assert ("parts are kept in" in ended.stdout) == bool(finished())
    assert len(finished()) == PARTS or limit == 1200
    assert run(out, "--resume") == whole[out]


def test_an_output_that_is_a_link_is_replaced_and_what_it_named_stays(here, whole) -> None:
    Path("elsewhere.txt").write_text("mine")
    os.symlink("elsewhere.txt", "x.jsonl")
    killed("importing.join", 1, "x.jsonl")
    assert run("x.jsonl", "--resume") == whole["x.jsonl"]
    assert Path("elsewhere.txt").read_text() == "mine" and not Path("x.jsonl").is_symlink()


def test_a_plan_that_is_none_is_refused_and_one_that_is_cut_starts_anew(here, whole, capsys) -> None:
    killed("importing.join", 1, "x.jsonl")
    (folder,) = left()
    plan = folder / "plan.json"
    plan.write_text('{"out": "x.jsonl"}')
    assert main(["import", "logs", "--out", "x.jsonl", "--resume"]) == 2
    assert "plan.json is of another version; without --resume" in capsys.readouterr().err
    plan.write_text('{"out"')
    assert run("x.jsonl", "--resume") == whole["x.jsonl"]


def test_resume_with_nothing_to_resume_starts(here, whole) -> None:
    assert run("x.jsonl", "--resume") == whole["x.jsonl"]
    with pytest.raises(RequestError, match=r"--out x\.jsonl/y: the folder"):
        importing.import_files([Path("logs")], Path("x.jsonl/y"), resume=True)
