"""Held-out groups: every kind of file names them, and a damaged row is an error, never a group that is forgotten."""

import json

import pytest

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.held_out import HeldOut, read_held_out


def bench_row(name: str, task: str = "terminal") -> dict:
    return {"task": task, "id": name, "prompt": ["### Turn 1\n**Action:**\nls"], "response": ["a"],
            "current_prompt": "ls", "system_str": "A terminal.", "turn_idx": 1, "total_turns": 3}  # fmt: skip


def own_row(group: str) -> dict:
    return {"id": group, "domain": "web", "source": "s", "split_group": group,
            "system": {"task_description": "t", "action_space": "a"},
            "turns": [{"action": "x", "observation": "y"}]}  # fmt: skip


def written(path, rows: list[dict]):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_lines_of_text_name_groups_and_beginnings(tmp_path) -> None:
    path = tmp_path / "groups.txt"
    path.write_text("\ufeff# AndroidWorld\nandroid-world:*\n\n  osworld:chrome/1 \nwhat is 2*3?\nb\n", encoding="utf-8")
    found = read_held_out([path])
    assert found == HeldOut(frozenset({"osworld:chrome/1", "what is 2*3?", "b"}), ("android-world:",))
    for group, held in (("android-world:X", True), ("android-world", False), ("my-android-world:X", False),
                        ("osworld:chrome/1", True), ("osworld:chrome/11", False), ("", False)):  # fmt: skip
        assert (group in found) is held
    assert "anything" not in HeldOut()


def test_rows_of_the_benchmark_and_trajectories_name_theirs(tmp_path) -> None:
    bench = written(tmp_path / "terminal_test.jsonl", [bench_row("7"), bench_row("7"), bench_row("8", "swe")])
    own = written(tmp_path / "eval.jsonl", [own_row("site-1"), own_row("star*")])
    found = read_held_out([bench, own])
    assert found == HeldOut(frozenset({"agentworldbench:terminal:7", "agentworldbench:swe:8", "site-1", "star*"}), ())
    assert "starboard" not in found  # a star means something in a line of text only


def test_a_row_that_cannot_be_read_is_an_error(tmp_path) -> None:
    path = written(tmp_path / "rows.jsonl", [bench_row("1"), bench_row("2") | {"task": "chess"}])
    with pytest.raises(ContentError, match=r"rows\.jsonl:2: task 'chess' is none of"):
        read_held_out([path])
    path.write_text(json.dumps(own_row("a")) + "\n" + json.dumps(own_row("b"))[:-4])
    with pytest.raises(ContentError, match=r"rows\.jsonl:2: not JSON"):
        read_held_out([path])
    for text, reason in (("", "the file is empty"), ("# nothing\n", "names no split group"), ("a\n*\n", "only \\*"),
                         ('{"some": "thing"}', "neither rows"), ('{"a": ', "not JSON")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ContentError, match=rf"rows\.jsonl: .*{reason}"):
            read_held_out([path])
    with pytest.raises(RequestError, match=r"none\.txt: cannot be read: No such file"):
        read_held_out([tmp_path / "none.txt"])
