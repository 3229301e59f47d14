"""Recorded terminal sessions: real shells, isolated, repeatable, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from preparation import trajectory

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.record import commands, terminal
from agentworld.data.record.pool import ModeRefused, Pool
from agentworld.data.record.session import other_timezone
from agentworld.data.record.world import FILES, WORDS
from agentworld.data.schema import read_jsonl, write_jsonl
from agentworld.data.settings import RecordSettings

PROGRAMS = ("bash", "git", "python3")
PROMPT = re.compile(r"user@box:[~/][^\n]*\$ \Z")

CLOCK_FIELDS = ("tm_mday", "tm_wday", "tm_yday", "tm_hour", "tm_min", "tm_sec")

# Sessions run in a process of their own: it enters namespaces and adopts orphans, which the test process must not do.
DRIVER = """
import json, os, sys
from pathlib import Path
from agentworld.data.record import isolation, session
from agentworld.data.record.commands import Command, Plan
isolation.become_worker()
mode, base, timeout, max_output, plans = json.loads(sys.argv[1])
try:
    place = isolation.make_place(mode, Path(base))
except OSError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit(0)
plans = [(i, Plan([Command("", c) for c in cs], files)) for i, (cs, files) in enumerate(plans)]
results = [vars(result) for result in session.run_twice(place, plans, session.Limits(timeout, max_output))]
with open(f"/proc/self/task/{os.getpid()}/children") as file:
    children = file.read().split()
print(json.dumps({"results": results, "children": children, "home": os.listdir(place.outer_home)}))
"""


def run_sessions(
    folder: Path, *sessions, mode: str = "namespace", timeout: float = 10.0, max_output: int = 8000
) -> dict:
    """Run each session (a list of commands, or such a list and its initial files) twice and return the results."""
    plans = [one if isinstance(one, tuple) else (one, {}) for one in sessions]
    # Without a root of its own a session needs a folder that every user can reach; a test's folder is private.
    base = folder / "base" if mode == "namespace" else Path(tempfile.mkdtemp(dir="/tmp"))
    base.mkdir(exist_ok=True)
    argument = json.dumps([mode, str(base), timeout, max_output, plans])
    done = subprocess.run([sys.executable, "-c", DRIVER, argument], capture_output=True, text=True, timeout=60)
    shutil.rmtree(base)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "refused" in answer:
        pytest.skip(f"this machine does not permit namespaces: {answer['refused']}")
    return answer


def outputs(result: dict) -> list[str]:
    """What came between the echo and the prompt of each turn (commands of one line)."""
    return [text.split("\n", 1)[1].rpartition("user@box:")[0] for text in result["observations"]]


def quiet(text: str) -> None:
    """Where progress goes when a test does not look at it."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("recorded") / "full.jsonl"
    counts = terminal.record(RecordSettings(count=40, mix="full", workers=2), 5, out, quiet)
    return out, counts


def test_same_seed_same_commands_whatever_the_workers(recorded, tmp_path):
    out, _ = recorded
    other = tmp_path / "other.jsonl"
    terminal.record(RecordSettings(count=40, mix="full", workers=3), 5, other, quiet)

    def typed(path: Path) -> list:
        return [(t.id, t.split_group, t.system, [turn.action for turn in t.turns]) for t in read_jsonl(path)]

    assert typed(out) == typed(other)
    assert len({group for _, group, _, _ in typed(out)}) == 40
    plans = [commands.plan(seed, 0, "full", (8, 8), PROGRAMS) for seed in range(20)]
    assert len({plan.digest for plan in plans}) == 20


def test_recorded_turns_and_counts(recorded, tmp_path):
    out, counts = recorded
    rows = list(read_jsonl(out))
    turns = [turn for row in rows for turn in row.turns]
    assert counts["kept"] == len(rows) == 40 and counts["dropped"] == {}
    assert counts["turns"] == len(turns) and sum(counts["families"].values()) == len(turns)
    assert counts["deterministic"] == sum(turn.meta["deterministic"] for turn in turns)
    assert counts["unisolated"] == (40 if counts["isolation"] == "plain" else 0)
    for turn in turns:
        ((keys, duration),) = [list(step.values()) for step in json.loads(turn.action)]
        assert keys.endswith("\n") and duration == 0.1 and turn.meta["family"] in commands.FULL
        assert turn.observation.startswith(keys.split("\n")[0] + "\n") and PROMPT.search(turn.observation)
        assert "\r" not in turn.observation and "\x1b" not in turn.observation
    again = tmp_path / "again.jsonl"
    write_jsonl(again, rows)
    assert again.read_bytes() == out.read_bytes()


def test_what_differs_between_the_runs_is_not_deterministic(tmp_path):
    files = {name: ["fox"] for name in FILES[:4]}
    varying = ["date", "date +%H", "date +%M", "date +%S", "date +%d", "echo $$", "echo $RANDOM", "x=$$ && echo set"]
    later = [
        "echo $x",
        "sleep 7 &",
        "echo $!",
        "ls -l a.txt",
        "ls -U",
        "python3 -c 'import datetime as d; print(d.datetime.now())'",
    ]
    git = [
        "git init -q r",
        "cd r",
        "echo fox > a.txt",
        "git add .",
        "git commit -q -m fox",
        "git rev-parse HEAD",
        "git log",
    ]
    fixed = ["echo fox", "cat a.txt", "ls", "pwd", "date > /dev/null", "false", "echo $?", "python3 -c 'print(2 + 3)'"]
    answer = run_sessions(tmp_path, (varying + later, files), git, (fixed, files))
    first, second, third = answer["results"]
    expected = [text == "x=$$ && echo set" for text in varying] + [False] * len(later)
    assert dict(zip(varying + later, first["deterministic"], strict=True)) == dict(
        zip(varying + later, expected, strict=True)
    )
    assert second["deterministic"] == [True, True, True, True, True, False, False], second["observations"]
    assert third["deterministic"] == [True] * len(fixed)
    assert outputs(third)[-2:] == ["1\n", "5\n"]


@pytest.mark.parametrize("mode", ["namespace", "plain"])
def test_a_session_leaves_nothing(tmp_path, mode):
    mark = f"7{os.getpid()}"  # a duration that only this test sleeps
    messy = [
        f"sleep {mark}1 &",
        f"(sleep {mark}2 &)",
        f"setsid sleep {mark}3 &",
        "echo red > a.txt",
        "mkdir -p d/e",
        "chmod 000 d",
        "x=7",
    ]
    answer = run_sessions(tmp_path, messy, ["ls -A", "echo [$x]", "jobs"], mode=mode)
    assert outputs(answer["results"][1]) == ["", "[]\n", ""]
    assert answer["children"] == [] and answer["home"] == []
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if f"sleep\0{mark}".encode() in line]


def test_output_that_looks_like_a_prompt_does_not_end_the_turn(tmp_path):
    fake = "printf 'user@box:~$ '; sleep 0.2; echo late"
    nested = 'python3 -c \'import time; print("user@box:~$ ", end="", flush=True); time.sleep(0.2)\''
    (result,) = run_sessions(tmp_path, [fake, "echo 'user@box:~$ '", nested, "echo 1"])["results"]
    assert outputs(result)[0] == "user@box:~$ late\n"
    assert [text.count("user@box:~$ ") for text in result["observations"]] == [3, 3, 3, 1]


def test_the_shell_shows_no_trace_of_the_recorder(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    typed = [
        "env",
        "set",
        "cat /proc/$PPID/environ",
        "false",
        "echo $?",
        "yes fox | head -n 1",
        "echo ${PIPESTATUS[0]}",
    ]
    (result,) = run_sessions(tmp_path, typed)["results"]
    shown = outputs(result)
    names = {line.split("=")[0] for line in shown[0].splitlines()}
    assert names == {"HOME", "LANG", "PATH", "PWD", "SHLVL", "TABSIZE", "TERM", "TZ", "USER", "_"}
    assert "hunter2" not in "".join(result["observations"]) and "PROMPT_COMMAND" not in shown[1]
    assert "PS1='user@box:\\w$ '\n" in shown[1]
    assert shown[4:] == ["1\n", "fox\n", "141\n"]


def test_lines_of_one_command_show_the_continuation_prompt(tmp_path):
    (result,) = run_sessions(tmp_path, ["cat << EOF\nred\nEOF", "for i in 1 2\ndo\necho $i\ndone"])["results"]
    assert result["observations"] == [
        "cat << EOF\n> red\n> EOF\nred\nuser@box:~$ ",
        "for i in 1 2\n> do\n> echo $i\n> done\n1\n2\nuser@box:~$ ",
    ]


@pytest.mark.parametrize("mode", ["namespace", "plain"])
def test_limits_drop_a_session_with_the_reason(tmp_path, mode):
    sessions = [["sleep 60"], ["yes fox"], ["exit 3"], ["echo 'open"], ["cat"], ["printf '\\377\\n'"], ["echo fine"]]
    results = run_sessions(tmp_path, *sessions, mode=mode, timeout=1.0, max_output=500)["results"]
    reasons = [result.get("reason") for result in results]
    expected = ["time limit", "output limit", "shell ended", "unfinished command", "time limit", "not UTF-8", None]
    assert reasons == expected


def test_no_network_and_a_root_of_its_own(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"echo hi > /dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        typed = [
            "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '",
            connect,
            "pwd",
            "whoami",
            "uname -n",
            "cd ..",
            "ls",
        ]
        inside = [f"ls {Path(__file__)}", "touch /usr/x /etc/x"]
        (result,) = run_sessions(tmp_path, typed + inside)["results"]
    shown = outputs(result)
    assert shown[0] == "lo\n" and "unreachable" in shown[1]
    assert shown[2:7] == ["/home/user\n", "user\n", "box\n", "", "user\n"]
    assert "No such file" in shown[7] and shown[8].count("cannot touch") == 2


def test_dropped_sessions_are_counted(tmp_path):
    out = tmp_path / "out.jsonl"
    settings = RecordSettings(count=30, mix="light", max_output_chars=60, workers=2)
    counts = terminal.record(settings, 1, out, quiet)
    kept = list(read_jsonl(out))
    assert 0 < counts["dropped"]["output limit"] < 30 and counts["kept"] + counts["dropped"]["output limit"] == 30
    assert len(kept) == counts["kept"] and max(len(turn.observation) for t in kept for turn in t.turns) <= 60
    out.unlink()
    with pytest.raises(ContentError, match="every session was dropped"):
        terminal.record(RecordSettings(count=2, mix="light", max_output_chars=5), 1, out, quiet)
    assert list(tmp_path.iterdir()) == []


def test_every_family_comes_up_and_light_starts_no_slow_program():
    for mix, known in commands.MIXES.items():
        plans = [commands.plan(3, index, mix, (4, 8), PROGRAMS) for index in range(1500)]
        assert {command.family for plan in plans for command in plan.commands} == set(known)
        assert {len(plan.commands) for plan in plans} == {4, 5, 6, 7, 8}
    assert set(commands.MIXES["full"]) == set(commands.FAMILIES)
    light = [commands.plan(3, index, "light", (4, 8), PROGRAMS) for index in range(1500)]
    assert not [c for plan in light for c in plan.commands if re.search(r"python|\bgit\b", c.keystrokes)]
    bare = [commands.plan(3, index, "full", (4, 8), ("bash",)) for index in range(500)]
    assert not [c for plan in bare for c in plan.commands if re.search(r"python3|\bgit (add|init)", c.keystrokes)]


def test_commands_stay_in_home_and_repeat_few_words():
    known = set(WORDS)
    assert len(known) == len(WORDS) == 40
    for index in range(2000):
        for command in commands.plan(9, index, "full", (4, 8), PROGRAMS).commands:
            assert command.keystrokes.isascii() and len(command.keystrokes) < 200
            paths = re.findall(r"(?<![\w~./$'\"\])}*%])/[a-z]\w*", command.keystrokes)
            assert set(paths) <= {"/dev", "/tmp", "/usr"}, command
            if "/tmp" in paths or "/usr" in paths:
                assert command.keystrokes.startswith("cd /")


def test_the_second_clock_shares_no_field_with_the_first():
    """Over two days of starts: neither day, hour, minute nor second agree, however long the second run waited."""
    same = []
    for now in range(1_790_000_000, 1_790_000_000 + 86400 * 2, 1699):
        clock = re.fullmatch(r"<.*>(-?)(\d+):(\d+):(\d+)", other_timezone(float(now)))
        hours, minutes, seconds = map(int, clock.groups()[1:])
        west = (hours * 3600 + minutes * 60 + seconds) * (-1 if clock[1] else 1)
        for gap in (1.1, 4.0, 20.0):
            first, second = (time.gmtime(moment) for moment in (now, int(now + gap - west)))
            same += [(now, gap, name) for name in CLOCK_FIELDS if getattr(first, name) == getattr(second, name)]
    assert same == []


@pytest.mark.parametrize("bad", ["missing/out.jsonl", ".", "/proc/out.jsonl"])
def test_an_unwritable_path_is_refused_before_any_work(tmp_path, monkeypatch, bad):
    monkeypatch.setattr(terminal, "Pool", lambda *_: pytest.fail("work was started"))
    with pytest.raises(RequestError, match=r"out\.jsonl|directory"):
        terminal.record(RecordSettings(count=1), 0, tmp_path / bad, quiet)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "key, value",
    [
        ("count", 0),
        ("mix", "heavy"),
        ("min_turns", 9),
        ("workers", -1),
        ("command_timeout", 0.0),
        ("max_output_chars", 0),
    ],
)
def test_a_bad_setting_is_named(tmp_path, key, value):
    with pytest.raises(RequestError, match="max_turns" if key == "min_turns" else key):
        terminal.record(RecordSettings(**{key: value}), 0, tmp_path / "out.jsonl", quiet)


def test_an_interrupt_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    out, scratch = tmp_path / "out.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(terminal, "_PROGRESS_SECONDS", 0.0)
    write_jsonl(out, [trajectory(0)])
    old = out.read_bytes()
    seen: list[set[int]] = []

    def interrupt(text: str) -> None:
        if "exists" in text:
            return
        seen.append(_children())
        assert list(scratch.iterdir())
        raise KeyboardInterrupt

    before = _children()
    with pytest.raises(KeyboardInterrupt):
        terminal.record(RecordSettings(count=200, mix="light", workers=2), 0, out, interrupt)
    assert out.read_bytes() == old and sorted(tmp_path.iterdir()) == [out, scratch]
    assert list(scratch.iterdir()) == [] and len(seen[0] - before) == 2 and _children() == before


def test_only_trajectories_are_replaced_and_that_is_said(tmp_path):
    out, settings = tmp_path / "out.jsonl", RecordSettings(count=2, mix="light", workers=1)
    for text in ("thesis\n", '{"id": "x"}\n', "\x00"):
        out.write_text(text)
        with pytest.raises(RequestError, match=r"out\.jsonl: holds something else than trajectories"):
            terminal.record(settings, 0, out, quiet)
        assert out.read_text() == text
    with pytest.raises(RequestError, match="/dev/null: holds something else"):
        terminal.record(settings, 0, Path("/dev/null"), quiet)
    said: list[str] = []
    out.write_text("")
    terminal.record(settings, 0, out, said.append)
    terminal.record(settings, 1, out, said.append)
    assert [text for text in said if "exists" in text] == [
        f"record: {out} exists; it is replaced when the new trajectories are complete"
    ] * 2
    assert [item.id for item in read_jsonl(out)] == ["terminal-1-0", "terminal-1-1"]


def test_the_summary_is_sentences():
    counts = {
        "sessions": 5, "kept": 3, "dropped": {"output limit": 1, "time limit": 1}, "turns": 16, "deterministic": 12,
        "families": {"cat": 9, "ls": 7}, "families_left_out": ["git"], "isolation": "plain", "unisolated": 3,
        "workers": 2, "programs": {"bash": "5.2", "git": "git version 2.39"}, "seconds": 2.04, "turns_per_s": 7.8,
    }  # fmt: skip
    assert terminal.summary(counts, Path("a.jsonl")).split("\n") == [
        "a.jsonl: 3 trajectories of 5 sessions, 16 turns; 2.0 s, 8 turns/s",
        "  12 turns (75.0 %) were the same in both runs of their session: deterministic",
        "  sessions dropped: 1 x output limit, 1 x time limit",
        "  turns by family of commands: cat 9, ls 7",
        "  families left out, their programs are missing: git",
        "  recorded by 2 processes without namespaces, in a temporary directory; bash 5.2, git version 2.39",
    ]
    whole = terminal.summary({**counts, "dropped": {}, "families_left_out": [], "isolation": "namespace"}, Path("a"))
    assert "  sessions dropped: none\n" in whole and "left out" not in whole and "private namespaces" in whole
    one = terminal.summary(counts | dict.fromkeys(("sessions", "kept", "turns", "workers"), 1), Path("a.jsonl"))
    assert "1 trajectory of 1 session, 1 turn;" in one and "by 1 process without" in one


def test_a_dead_worker_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "_PROGRESS_SECONDS", 0.0)
    before = _children()

    def kill_one(text: str) -> None:
        for pid in sorted(_children() - before)[:1]:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(ContentError, match="worker 0 ended with -9"):
        terminal.record(RecordSettings(count=2000, mix="light", workers=2), 0, tmp_path / "out.jsonl", kill_one)
    assert list(tmp_path.iterdir()) == [] and _children() == before


def test_without_namespaces_it_says_so_and_counts(tmp_path, monkeypatch):
    class Refusing(Pool):
        def __enter__(self) -> Pool:
            if self.mode == "namespace":
                raise ModeRefused("unshare: Operation not permitted")
            return super().__enter__()

    monkeypatch.setattr(terminal, "Pool", Refusing)
    said: list[str] = []
    counts = terminal.record(RecordSettings(count=3, mix="light", workers=1), 0, tmp_path / "out.jsonl", said.append)
    assert counts["isolation"] == "plain" and counts["unisolated"] == counts["kept"] == 3
    assert [text for text in said if "WARNING" in text and "Operation not permitted" in text] == said
    with pytest.raises(ContentError, match="namespace is not possible"):
        terminal.record(RecordSettings(count=3), 0, tmp_path / "two.jsonl", quiet, mode="namespace")


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
