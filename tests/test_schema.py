"""Trajectories survive the disk unchanged, and every damage is named with its line and field."""

import copy
import json
from dataclasses import asdict

import pytest

from agentworld.data.errors import ContentError
from agentworld.data.schema import SchemaError, System, Trajectory, Turn, from_dict, read_jsonl, to_dict, write_jsonl

WILD = "\0\x1b[31m\x1b]0;t\x07\r\n\u2028\u0085 中文 \U0001f600 \u0301 {x} \\n \x7f\ufeff"


def trajectory(name: str = "t1", **changes) -> Trajectory:
    fields = {
        "id": name,
        "domain": "terminal",
        "source": "test",
        "split_group": "g",
        "system": System("task", "actions", "demos", None, "instruction"),
        "turns": [Turn("ls\n", WILD, {"deterministic": True, "n": [1, None]}), Turn("", "")],
    }
    return Trajectory(**(fields | changes))


def test_disk_round_trip_is_exact(tmp_path):
    given = [trajectory("a"), trajectory("b\n", system=System(WILD, "", "", WILD, None)), trajectory("c")]
    path = tmp_path / "x.jsonl"
    assert write_jsonl(path, given) == 3
    assert path.read_bytes().count(b"\n") == 3
    assert list(read_jsonl(path)) == given


def test_the_dictionary_has_every_field_in_the_order_of_the_schema():
    expected = asdict(trajectory())
    del expected["system"]["initial_state"]
    assert json.dumps(to_dict(trajectory())) == json.dumps(expected)


def test_absent_optional_components_are_left_out_and_default():
    row = to_dict(trajectory())
    assert "initial_state" not in row["system"]
    del row["system"]["demonstrations"]
    del row["turns"][1]["meta"]
    assert from_dict(row).system.demonstrations == ""
    assert from_dict(row).turns[1].meta == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.pop("id"), "id:"),
        (lambda r: r.update(id=""), "id:"),
        (lambda r: r.update(domain="shell"), "domain: expected one of mcp"),
        (lambda r: r.update(split_group=3), "split_group:"),
        (lambda r: r.update(turns=[]), "turns:"),
        (lambda r: r.update(turns="x"), "turns:"),
        (lambda r: r.update(extra=1), "extra: unknown field"),
        (lambda r: r.pop("system"), "system:"),
        (lambda r: r["system"].pop("action_space"), "system.action_space:"),
        (lambda r: r["system"].update(initial_state=[]), "system.initial_state:"),
        (lambda r: r["system"].update(initial_stat=""), "system.initial_stat: unknown field"),
        (lambda r: r["turns"][1].pop("observation"), "turns[1].observation:"),
        (lambda r: r["turns"][0].update(action=None), "turns[0].action:"),
        (lambda r: r["turns"][0].update(meta=[]), "turns[0].meta:"),
        (lambda r: r["turns"][0].update(thought=""), "turns[0].thought: unknown field"),
    ],
)
def test_errors_name_the_field(change, field):
    row = copy.deepcopy(to_dict(trajectory()))
    change(row)
    with pytest.raises(SchemaError) as caught:
        from_dict(row)
    assert str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)


GOOD = json.dumps(to_dict(trajectory())).encode()
BAD_LINES = {
    b"": "blank line",
    b"   ": "blank line",
    GOOD[:-20]: "truncated",
    b"[1]": "expected a JSON object",
    b'{"id": "\xff"}': "not UTF-8 at byte 8",
    b"[" * 200_000: "not JSON that can be read",
    GOOD.replace(b': "instruction"', b': "\\ud83d"'): r"lone surrogate \ud83d",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_bad_line_is_named_and_stops_or_is_skipped(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([GOOD, line, GOOD]) + b"\n")
    reader = read_jsonl(path)
    assert next(reader) == trajectory()
    with pytest.raises(ContentError) as caught:
        next(reader)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert BAD_LINES[line] in str(caught.value)
    reasons = []
    assert len(list(read_jsonl(path, reasons.append))) == 2
    assert [str(reason) for reason in reasons] == [str(caught.value)]


def test_a_surrogate_pair_is_text(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD.replace(b': "instruction"', b': "\\ud83d\\ude00"'))
    assert next(read_jsonl(path)).system.simulation_instruction == "\U0001f600"


def test_a_truncated_last_line_is_an_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD[:30])
    with pytest.raises(SchemaError, match=":2: not JSON"):
        list(read_jsonl(path))


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.touch()
    with pytest.raises(ContentError, match="empty"):
        list(read_jsonl(path, lambda error: None))
