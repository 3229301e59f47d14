"""What preparation refuses, by name and with the way out, and that it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from preparation import prepare_from, settings_for, siblings, silent, teacher, trajectory, write_source

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.masking import CATEGORIES
from agentworld.data.preparation_report import format_report
from agentworld.data.prepare import is_prepared, prepare
from agentworld.data.schema import to_dict, write_jsonl
from agentworld.data.settings import MaskSettings, SplitSettings


@pytest.fixture
def source(tmp_path) -> Path:
    return write_source(tmp_path)


NO_TURN = MaskSettings(True, dict.fromkeys(CATEGORIES, 0.0))
NOTHING_LEFT = [
    ({"sft_row_tokens": 20}, r"data\.sft_row_tokens=20: of \d+ documents \d+ longer.*shortest has \d+ tokens"),
    (
        {"mask": NO_TURN},
        r"data\.cpt_row_tokens=1024: of \d+ documents 0 longer than the row, \d+ without a token.*data\.mask\.keep",
    ),
    ({"min_turns": 100}, r"data\.min_turns=100"),
    ({"split": SplitSettings(0.97, 0.01, 0.01, 0.01), "trajectories": "first six"}, r"the rl pool would be empty"),
]


@pytest.mark.parametrize(("changes", "message"), NOTHING_LEFT, ids=range(len(NOTHING_LEFT)))
def test_nothing_left_names_the_limit_and_leaves_nothing_behind(source, tmp_path, changes, message):
    out = tmp_path / "run" / "data"
    if "trajectories" in changes:
        path = tmp_path / "six.jsonl"
        write_jsonl(path, (trajectory(i) for i in range(6)))
        changes = changes | {"trajectories": [str(path)]}
    with pytest.raises(ContentError, match=message) as caught:
        prepare_from(source, out, **changes)
    assert "\n" not in str(caught.value)
    assert list(out.parent.iterdir()) == []


def test_a_teacher_that_is_never_right_is_an_error(source, tmp_path):
    with pytest.raises(ContentError, match=r"sft: no trace is left: of \d+ turns the teacher answered 0"):
        prepare(settings_for(source), 0, tmp_path / "out", lambda history, action: None, None, silent)


def damage(source: Path) -> list[int]:
    """Cut line 3, blank line 10, repeat the id of line 1 in line 20; returns the numbers."""
    lines = source.read_bytes().splitlines()
    lines[2], lines[9] = lines[2][:-9], b""
    lines[19] = json.dumps(to_dict(replace(trajectory(19), id="t0"))).encode()
    source.write_bytes(b"\n".join(lines) + b"\n")
    return [3, 10, 20]


def test_damaged_lines_stop_or_are_counted(source, tmp_path):
    damage(source)
    out = tmp_path / "run" / "data"
    with pytest.raises(ContentError, match=rf"^{source}:3: not JSON"):
        prepare_from(source, out)
    assert list(out.parent.iterdir()) == []
    said = []
    report = prepare(settings_for(source, on_bad="skip"), 0, out, teacher, None, said.append)
    read = report["read"]
    assert (read["read"], read["kept"], read["rejected"]) == (120, 117, 3)
    assert [reason.removeprefix(str(source)).split(": ")[0] for reason in read["reasons"]] == [":3", ":10", ""]
    assert "'t0' stands in" in read["reasons"][2]
    assert report["filters"]["read"] == 117
    assert all(any(reason in line for line in said) for reason in read["reasons"])
    assert "3 rejected" in format_report(report)


def test_duplicate_ids_over_files_are_damage(source, tmp_path):
    with pytest.raises(ContentError, match=r"'t0' stands in .*in\.jsonl already"):
        prepare_from(source, tmp_path / "out", trajectories=[str(source), str(source)])


def test_unusable_input_is_told_from_a_wrong_request(source, tmp_path):
    empty, rubbish = tmp_path / "empty.jsonl", tmp_path / "rubbish.jsonl"
    empty.touch()
    rubbish.write_text("no\nno\n")
    out = tmp_path / "run" / "data"
    with pytest.raises(RequestError, match=r"absent\.jsonl: no such file"):
        prepare_from(source, out, trajectories=[str(source), str(tmp_path / "absent.jsonl")])
    with pytest.raises(ContentError, match=r"empty\.jsonl: the file is empty"):
        prepare_from(source, out, trajectories=[str(empty)], on_bad="skip")
    with pytest.raises(
        ContentError, match=r"rubbish\.jsonl: no usable trajectory in 2 lines; the first: .*:1: not JSON"
    ):
        prepare_from(source, out, trajectories=[str(rubbish)], on_bad="skip")
    assert list(out.parent.iterdir()) == []


WRONG = [
    ({"on_bad": "ignore"}, r"data\.on_bad=ignore: expected fail or skip"),
    ({"min_turns": 0}, r"data\.min_turns=0"),
    ({"prompt_set": "breif"}, r"data\.prompt_set=breif"),
    ({"cpt_row_tokens": 1}, r"data\.cpt_row_tokens=1"),
    ({"tokenizer_vocab_size": 256}, r"data\.tokenizer_vocab_size=256"),
    ({"split": SplitSettings(1, 1, 1, 1)}, r"data\.split: .*= 4"),
    ({"mask": MaskSettings(True, {"ecko": 1.0})}, r"data\.mask\.keep\.ecko"),
    ({"mask": MaskSettings(True, {"echo": 5})}, r"data\.mask\.keep\.echo=5"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_settings_are_refused_before_anything_is_touched(source, tmp_path, changes, message):
    out = tmp_path / "run" / "data"
    with pytest.raises(RequestError, match=message):
        prepare_from(source, out, **changes)
    assert not out.parent.exists()


def test_a_failure_keeps_what_was_there(source, tmp_path):
    out = tmp_path / "out"
    prepare_from(source, out)

    def interrupt(history, action):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(settings_for(source), 1, out, interrupt, None, silent)
    assert is_prepared(out)
    assert siblings(out) == []
    before = (out / "manifest.json").read_bytes()
    prepare_from(source, out, seed=1)
    assert is_prepared(out)
    assert (out / "manifest.json").read_bytes() != before


def test_leftovers_of_dead_runs_are_removed_and_those_of_living_ones_stay(source, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f".out.tmp-{pid}" for pid in (ended.pid, os.getppid(), os.getpid())] + [".out.tmp-x", ".other.tmp-1"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    prepare_from(source, tmp_path / "out")
    assert siblings(tmp_path / "out") == sorted([f".out.tmp-{os.getppid()}", ".out.tmp-x", ".other.tmp-1"])


def test_a_path_that_cannot_be_written_is_a_wrong_request(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"file/data: cannot be written"):
        prepare_from(source, tmp_path / "file" / "data")
    with pytest.raises(RequestError, match=r"file: exists and is no directory"):
        prepare_from(source, tmp_path / "file")


def killed(shared, lines) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_ends_the_preparation_and_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr("agentworld.data.rendering.BATCH_CHARACTERS", 2000)
    monkeypatch.setattr("agentworld.data.rendering._cpt_batch", killed)
    with pytest.raises(ContentError, match=r"was killed.*lower data\.workers"):
        prepare_from(source, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists() and siblings(tmp_path / "out") == []


def test_a_full_disk_is_named(source, tmp_path):
    """A limit on the size of a file acts as a full disk does."""
    code = (
        "import resource, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom preparation import prepare_from\n"
        "from agentworld.data.errors import RequestError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "try:\n    prepare_from(Path(sys.argv[2]), Path(sys.argv[3]))\n"
        "except RequestError as error:\n    print(error)\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(source), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f"{tmp_path}: File too large; a preparation needs several times the room" in done.stdout, done.stderr[-2000:]
    assert not out.exists() and siblings(out) == []
