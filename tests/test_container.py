"""Files as records: every layout is recognised by content, and damage costs only the record that it stands in."""

import itertools
import json
import time
from pathlib import Path

import pytest

from agentworld.data.formats import container
from agentworld.data.formats.container import DamagedError, Record
from agentworld.data.formats.format import Rejected

ROWS = [{"a": 1}, {"b": [1, 2, "x,]}"]}, {"c": "é\u2028\u0085"}]


def read(path: Path) -> tuple[str, list]:
    head = container.look(path)
    return head.layout, [r.value if isinstance(r, Record) else r for r in container.records(path, head)]


def told(found: list) -> list:
    """The places of what was rejected among the values."""
    return [item.where if isinstance(item, Rejected) else item for item in found]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content,layout,values",
    [
        ("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n", "lines", ROWS),
        ("\ufeff" + "\r\n".join(map(json.dumps, ROWS)), "lines", ROWS),
        (json.dumps(ROWS), "array", ROWS),
        (json.dumps(ROWS, indent=2), "array", ROWS),
        ("\n [\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n", "array", ROWS),
        (json.dumps(ROWS[0]), "object", ROWS[:1]),
        (json.dumps({"rows": ROWS}, indent=1), "object", [{"rows": ROWS}]),
        ("[1, 2]\n[3]\n", "lines", [[1, 2], [3]]),
        ("".join(map(json.dumps, ROWS)), "stream", ROWS),
        (" ".join(json.dumps(row, indent=1) for row in ROWS) + "\n", "stream", ROWS),
        (json.dumps({"long": "x" * 2_000_000}) + json.dumps(ROWS[1]), "stream", [{"long": "x" * 2_000_000}, ROWS[1]]),
        ("Question: a\nAction 1: b\n", "text", ["Question: a\nAction 1: b\n"]),
    ],
)
def test_layouts(tmp_path, content, layout, values) -> None:
    assert read(written(tmp_path, content)) == (layout, values)


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_an_array_reads_the_same_whatever_the_buffer(tmp_path, monkeypatch, chunk) -> None:
    monkeypatch.setattr(container, "CHUNK_CHARACTERS", chunk)
    values = [*ROWS, 12, 3.5e10, "]", [], None, {"deep": [[[{}]]]}]
    assert read(written(tmp_path, json.dumps(values))) == ("array", values)
    damaged = '[{"]": "}\\\\\\"", "x": }, ' + json.dumps(values)[1:]
    layout, found = read(written(tmp_path, damaged))
    assert (layout, told(found)) == ("array", ["[0]", *values])
    streams = [value for value in values if isinstance(value, dict)]
    assert read(written(tmp_path, "\n".join(json.dumps(v, indent=0) for v in streams))) == ("stream", streams)


@pytest.mark.parametrize(
    "content,values,reason",
    [
        ('{"a": 1}\n{"b": \n{"c": 3}\n', [{"a": 1}, ":2", {"c": 3}], "not JSON"),
        ('{"a": 1}\n\n{"c": 3}\n', [{"a": 1}, ":2", {"c": 3}], "blank line"),
        ('{"a\n{"b": 2}\n', [":1", {"b": 2}], "not JSON"),
        ('[{"a": 1}, {"b": 2}, {"c', [{"a": 1}, {"b": 2}, ""], "in element 2; what follows is lost"),
        ('[{"a": 1}, {"b": 2}', [{"a": 1}, {"b": 2}, ""], "the array does not end after 2 elements"),
        ('[{"a": }, {"b": 2}]', ["[0]", {"b": 2}], "not JSON: Expecting value"),
        ('[{"a": 1}, {"b": [1 2]}, {"c": 3}]', [{"a": 1}, "[1]", {"c": 3}], "not JSON: Expecting ',' delimiter"),
        ('[{"a": 1}, {"b": nil} x, {"c": 3}]', [{"a": 1}, ""], "in element 1; what follows is lost"),
        ('{"a": 1}{"b": }{"c": 3}', [{"a": 1}, "[1]", {"c": 3}], "not JSON: Expecting value"),
        ('{"a": } {"b": 2}', ["[0]", {"b": 2}], "not JSON: Expecting value"),
        ('{"a": 1} {"b": 2', [{"a": 1}, ""], "in value 1; what follows is lost"),
        ('{"a": 1} and more', [{"a": 1}, ""], "in value 1; what follows is lost"),
        (
            '{"a": 1}{"b": 2}\n{"c": 3}\n',
            [":1", {"c": 3}],
            "more than one JSON value on the line, the second at column 9",
        ),
        (b'{"a": 1}\n{"b": "\xe9"}\n{"c": 3}', [{"a": 1}, ":2", {"c": 3}], "not UTF-8 at byte 7"),
        ('{"a": 1}\n' + "[" * 100_000 + "\n", [{"a": 1}, ":2"], "read"),
        ('[{"a": 1}, {"b": ' + "9" * 5000 + "}]", [{"a": 1}, "[1]"], "cannot be read: Exceeds the limit"),
        ('[{"a": 1}, ' + "[" * 100_000 + "]" * 100_000 + "]", [{"a": 1}, "[1]"], "nested too deep"),
        ('[{"a": 1}] [{"b": 2}]', [{"a": 1}, ""], "text after the array"),
        ('[{"a": 1}]' + " " * 300 + "x", [{"a": 1}, ""], "text after the array"),
        ('[{"a": 1} {"b": 2}]', [{"a": 1}, ""], "after 1 elements: no comma"),
    ],
)
def test_damage_is_told_where_it_stands(tmp_path, content, values, reason) -> None:
    _, found = read(written(tmp_path, content))
    rejected = [item for item in found if isinstance(item, Rejected)]
    assert told(found) == values
    assert len(rejected) == 1 and reason in rejected[0].reason


@pytest.mark.parametrize(
    "content,reason",
    [
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "the array is empty"),
        ('{"a": [1,\n', "not JSON"),
        (b"caf\xe9 au lait", "not UTF-8 at byte 3"),
        ("[" * 100_000, "deep"),
        ("[" + "9" * 5000 + "]", "cannot be read: Exceeds the limit"),
        (b"PAR1\x15\x04", "Parquet, which is no log"),
        ('[{"a": }, {"b": }]', "not JSON: Expecting value"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        ('{"a": 1}'.encode("utf-16"), "iconv -f utf-16"),
    ],
)
def test_a_file_without_a_record_is_damaged(tmp_path, content, reason) -> None:
    with pytest.raises(DamagedError, match=reason):
        container.look(written(tmp_path, content))


@pytest.mark.parametrize("damaged", [1, 2, 5, 18])
def test_damaged_lines_at_the_start_do_not_hide_json_lines(tmp_path, damaged) -> None:
    content = '{"cut": "in a str\n' * damaged + '{"a": 1}\n{"b": 2}\n'
    layout, found = read(written(tmp_path, content))
    assert layout == "lines" and found[damaged:] == [{"a": 1}, {"b": 2}]
    assert [item.where for item in found[:damaged]] == [f":{n + 1}" for n in range(damaged)]


@pytest.mark.parametrize("size", [1, 300_000])
def test_an_object_whose_parts_stand_on_lines_is_one(tmp_path, size) -> None:
    content = '{\n"steps": [\n{"a": 1},\n{"b": 2}\n],\n"text": "' + "x" * 4 * size + '"\n}\n'
    assert read(written(tmp_path, content))[0] == "object"


def test_an_array_of_many_small_elements_is_read_in_linear_time(tmp_path) -> None:
    path = written(tmp_path, json.dumps([{}] * 200_000))
    started = time.process_time()
    assert sum(1 for _ in container.records(path, container.look(path))) == 200_000
    assert time.process_time() - started < 5  # the buffer is not copied for each element


def test_parts_of_a_file_of_lines_make_the_whole(tmp_path) -> None:
    path = written(tmp_path, "".join(json.dumps({"n": n}) + "\n" for n in range(100)))
    size = path.stat().st_size
    bounds = [0, 0, 0, size]
    raw = path.read_bytes()
    for place in (1, 2):
        bounds[place] = raw.index(b"\n", size * place // 3) + 1
    parts = []
    for start, end in itertools.pairwise(bounds):
        parts += container.lines(path, start, end, number=1 + raw[:start].count(b"\n"))
    assert parts == list(container.lines(path)) and len(parts) == 100 and parts[-1].where == ":100"
