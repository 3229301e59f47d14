"""JSON Lines and Parquet hold the same trajectories, and damage is told by its row, never silent."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentworld.data import trajectory_files
from agentworld.data.importing import import_files
from agentworld.data.schema import SchemaError, System, Trajectory, Turn, to_dict, write_jsonl
from agentworld.data.tokenizer import CONTROL_TOKENS
from agentworld.data.trajectory_files import read_trajectories, write_trajectories
from agentworld.train import cli

WILD = "\0\x1b[31m\x1b]0;t\x07\r\n\u2028\u0085 中文 \U0001f600 \u0301 {x} \\n \x7f\ufeff" + "".join(CONTROL_TOKENS)
METAS = ({}, {"context_only": None}, {WILD: [WILD, 1.5e300, -0.0, 2**80, True, None]}, {"b": {}, "a": {"deep": [[[]]]}})


def trajectory(name: str = "t1", **changes) -> Trajectory:
    turns = [Turn(WILD, "", {"n": 1}), Turn("", WILD)]
    fields = {"domain": "terminal", "source": "test", "split_group": "g", "system": System("task", "actions")}
    return Trajectory(**({"id": name, "turns": turns} | fields | changes))


def hostile(seed: int, count: int = 40, longest: int = 0) -> list[Trajectory]:
    """Random trajectories of texts that formats stumble over, one turn of them of `longest` bytes."""
    rng = random.Random(seed)
    pieces = (WILD, "", "\0", "\u2028", "a" * 200, '{"x": "\\u0000"}', "PAR1")

    def text() -> str:
        return "".join(rng.choices(pieces, k=rng.randint(0, 4)))

    def system() -> System:
        return System(text(), text(), text(), *(rng.choice((None, "", text())) for _ in range(2)))

    made = [
        trajectory(
            f"{number}{text()}",
            domain=rng.choice(("mcp", "web")),
            split_group=f"g{text()}",
            system=system(),
            turns=[Turn(text(), text(), rng.choice(METAS)) for _ in range(rng.randint(1, 5))],
        )
        for number in range(count)
    ]
    made[count // 2] = replace(made[count // 2], turns=[Turn("long", WILD * (longest // len(WILD.encode())))])
    return made


def round_trip(lines: Path, folder: Path) -> None:
    """JSON Lines to Parquet to JSON Lines gives the bytes; the trajectories of both are equal."""
    columns, back = folder / "x.parquet", folder / "back.jsonl"
    count = write_trajectories(columns, read_trajectories(lines))
    assert write_trajectories(back, read_trajectories(columns)) == count > 0
    assert back.read_bytes() == lines.read_bytes()
    assert columns.read_bytes()[:4] == b"PAR1"


@pytest.mark.parametrize("characters,longest", [(1, 0), (3000, 0), (8 << 20, 10_000_000)])
def test_hostile_texts_survive_both_formats(tmp_path, monkeypatch, characters, longest) -> None:
    monkeypatch.setattr(trajectory_files, "ROW_GROUP_CHARACTERS", characters)
    given = hostile(characters, longest=longest)
    write_trajectories(tmp_path / "x.jsonl", given)
    write_jsonl(tmp_path / "same.jsonl", given)
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "same.jsonl").read_bytes()
    round_trip(tmp_path / "x.jsonl", tmp_path)
    assert list(read_trajectories(tmp_path / "x.parquet")) == given
    if characters == 1:
        assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == len(given)


@pytest.mark.skipif("AGENTWORLD_CORPORA" not in os.environ, reason="AGENTWORLD_CORPORA names no folder of corpora")
def test_every_trajectory_of_the_corpora_survives(tmp_path) -> None:
    corpora = Path(os.environ["AGENTWORLD_CORPORA"])
    import_files([corpora], tmp_path / "x.jsonl", say=lambda _: None, redact=False)
    round_trip(tmp_path / "x.jsonl", tmp_path)


def test_the_bytes_depend_on_the_trajectories_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trajectory_files, "ROW_GROUP_CHARACTERS", 2000)
    given = hostile(1, count=12)
    for name in ("a", "b"):
        write_trajectories(tmp_path / f"{name}.parquet", iter(given))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_others_read_it(tmp_path) -> None:
    """`datasets` and plain pyarrow see the columns of the docstring."""
    import datasets

    given = [trajectory("a"), trajectory("b", system=System("t", "a", "d", "i", "s"))]
    write_trajectories(tmp_path / "x.parquet", given)
    loaded = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "x.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded["id"][:] == ["a", "b"] and loaded.column_names == [*trajectory_files.NAMES, "system", "turns"]
    assert loaded[0]["turns"] == [
        {"action": WILD, "observation": "", "meta": '{"n": 1}'}, {"action": "", "observation": WILD, "meta": "{}"},
    ]  # fmt: skip
    assert loaded[0]["system"]["initial_state"] is None and loaded[1]["system"]["initial_state"] == "i"


def test_memory_is_flat_in_the_size_of_the_file(tmp_path) -> None:
    """120 MB of text that does not compress are written and read with less than 120 MB beyond the libraries."""
    code = f"""
import random, resource
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.trajectory_files import read_trajectories, write_trajectories
import pyarrow.parquet
rng = random.Random(0)
def make():
    for n in range(120):
        yield Trajectory(str(n), "web", "s", "g", System("t", "a"), [Turn("a", rng.randbytes(500_000).hex())] )
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_trajectories({str(tmp_path / "x.parquet")!r}, make())
assert sum(1 for _ in read_trajectories({str(tmp_path / "x.parquet")!r})) == 120
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 120


def parquet(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def foreign(name: str, **changes) -> dict:
    row = to_dict(trajectory(name))
    return row | {"turns": [turn | {"meta": json.dumps(turn["meta"])} for turn in row["turns"]]} | changes


def test_rows_that_are_no_trajectories_are_told_by_number_and_skipped_if_wanted(tmp_path) -> None:
    rows = [foreign(name) for name in "abcdef"]
    rows[1]["domain"] = "shell"
    rows[2]["turns"][1]["meta"] = "{"
    rows[3]["turns"][0]["meta"] = '{"x": "\\ud83d"}'
    rows[4]["turns"][0]["meta"] = None
    path = parquet(tmp_path / "x.parquet", rows)
    with pytest.raises(SchemaError, match=r"x\.parquet:2: domain: expected one of mcp"):
        list(read_trajectories(path))
    errors: list[SchemaError] = []
    read = list(read_trajectories(path, errors.append))
    assert [t.id for t in read] == ["a", "e", "f"] and read[1].turns[0].meta == {}
    assert [str(error).removeprefix(str(path)).partition(": ")[0] for error in errors] == [":2", ":3", ":4"]
    assert "turns[1].meta: not JSON" in str(errors[1]) and "lone surrogate \\ud83d" in str(errors[2])


@pytest.mark.parametrize(
    "change,said",
    [
        ({"turns": [{"action": "a", "observation": "o", "meta": {"context_only": "x"}}]}, "meta: expected JSON text"),
        ({"extra": 1}, "extra: unknown field"),
        ({"turns": "x"}, "turns: expected a non-empty list"),
        ({"id": 3}, "id: expected a non-empty string"),
    ],
)
def test_foreign_columns_are_refused_with_the_field(tmp_path, change, said) -> None:
    path = parquet(tmp_path / "x.parquet", [foreign("a", **change)])
    with pytest.raises(SchemaError, match=rf"x\.parquet:1: .*{said}"):
        list(read_trajectories(path))


def test_text_that_is_not_utf8_costs_one_row(tmp_path) -> None:
    rows = [foreign(name) for name in "abc"]
    table = pa.Table.from_pylist(rows)
    groups = pa.array([b"g", b"\xff\xfe", b"g"]).view(pa.string())
    pq.write_table(
        table.set_column(table.column_names.index("split_group"), "split_group", groups), tmp_path / "x.parquet"
    )
    errors: list[SchemaError] = []
    assert [t.id for t in read_trajectories(tmp_path / "x.parquet", errors.append)] == ["a", "c"]
    assert str(errors[0]) == f"{tmp_path / 'x.parquet'}:2: not UTF-8 at byte 0 of a text"


def test_a_file_without_rows_or_without_its_end_is_refused(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [])
    with pytest.raises(SchemaError, match="the file is empty; expected one trajectory a row"):
        list(read_trajectories(path))
    write_trajectories(path, [trajectory()])
    whole = path.read_bytes()
    for length in (4, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SchemaError, match=r"x\.parquet: not Parquet that can be read \(truncated\?\)"):
            list(read_trajectories(path, on_bad=pytest.fail))


def test_a_flipped_byte_of_the_data_is_never_silent_and_costs_its_row_group_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trajectory_files, "ROW_GROUP_CHARACTERS", 1)
    given = [trajectory(str(number)) for number in range(4)]
    path = tmp_path / "x.parquet"
    write_trajectories(path, given)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = random.Random(0)
    for place in rng.sample(range(4, footer), 150):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        errors: list[SchemaError] = []
        read = list(read_trajectories(path, errors.append))
        assert len(read) + len(errors) == 4 and len(errors) <= 1
        assert all(t in given for t in read)
        if errors:
            lost = given.index(next(t for t in given if t not in read))
            assert str(errors[0]).startswith(f"{path}:{lost + 1}: row group {lost} of 4 cannot be read from here on")


def test_a_flipped_byte_of_the_footer_raises_nothing_but_its_own_error(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectories(path, [trajectory(str(number)) for number in range(4)])
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = random.Random(1)
    for place in rng.sample(range(footer, len(whole)), 100):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            list(read_trajectories(path, lambda error: None))
        except SchemaError:
            continue


def test_a_full_disk_is_an_error_of_the_system(tmp_path) -> None:
    code = f"""
import resource, signal
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.trajectory_files import write_trajectories
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
turns = [Turn("a", bytes(range(128)).decode() * 100)] * 3
try:
    write_trajectories({str(tmp_path / "x.parquet")!r}, [Trajectory("i", "web", "s", "g", System("t", "a"), turns)])
except OSError as error:
    print(error.errno, error.strerror)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("27 File too large\n", "")


def test_show_reads_parquet_as_it_reads_json_lines(tmp_path, capsys) -> None:
    for name in ("x.parquet", "x.jsonl"):
        write_trajectories(tmp_path / name, [trajectory("a"), trajectory("b")])
        shown = []
        for arguments in ([], ["--trajectory", "b"], ["--stats"], ["--html", str(tmp_path / "page.html")]):
            assert cli.main(["show", str(tmp_path / name), *arguments]) == 0
            shown.append(capsys.readouterr().out.replace("x.parquet", "x.jsonl"))
        shown.append((tmp_path / "page.html").read_text().replace("x.parquet", "x.jsonl"))
        if name == "x.parquet":
            of_parquet = shown
    assert of_parquet == shown
