"""Importing: every record is kept or counted with its place, and the bytes do not depend on workers and shards."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentworld.data import import_report, import_units, importing
from agentworld.data.corpus import ReadCount, read_corpus
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats import FORMATS
from agentworld.data.schema import read_jsonl
from agentworld.data.trajectory_files import read_trajectories
from agentworld.train.cli import main


def row(name: str, turns: int = 2, text: str = "out") -> dict:
    return {
        "id": name, "domain": "terminal", "source": "s", "split_group": name,
        "system": {"task_description": "t", "action_space": "a"},
        "turns": [{"action": f"echo {n}", "observation": f"{text} {n}"} for n in range(turns)],
    }  # fmt: skip


@pytest.fixture
def logs(tmp_path) -> Path:
    """Lines with damage, an object, an array, files of no known format, a hidden one."""
    folder = tmp_path / "logs"
    (folder / "deep" / "er").mkdir(parents=True)
    lines = [json.dumps(row(f"l{n}", turns=2 + n % 3)) for n in range(60)]
    lines[7] = lines[7][:-5]
    lines[20] = ""
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "deep" / "one.json").write_text(json.dumps(row("one"), indent=2))
    (folder / "deep" / "er" / "array.txt").write_text(json.dumps([row("a0"), {"id": "a1"}, row("a2", 4)]))
    (folder / "SOURCE.md").write_text("# notes")
    (folder / "other.json").write_text('{"some": "thing"}')
    (folder / ".hidden.jsonl").write_text(json.dumps(row("hidden")))
    return folder


def imported(tmp_path: Path, *paths: Path, **options) -> tuple[bytes, dict]:
    out = tmp_path / "out.jsonl"
    report = importing.import_files(list(paths), out, **({"workers": 1, "say": lambda _: None} | options))
    return out.read_bytes(), report


def test_every_record_is_kept_or_counted_with_its_place(logs, tmp_path) -> None:
    _, report = imported(tmp_path, logs)
    kept = [trajectory.id for trajectory in read_jsonl(tmp_path / "out.jsonl")]
    assert kept == ["a0", "a2", "one", *(f"l{n}" for n in range(60) if n not in (7, 20))]
    files = {entry["path"]: entry for entry in report["files"]}
    assert set(files) == {f"logs/{name}" for name in
                          ("lines.jsonl", "deep/one.json", "deep/er/array.txt", "SOURCE.md", "other.json")}  # fmt: skip
    assert [entry["where"] for entry in files["logs/lines.jsonl"]["rejected"]] == [
        "logs/lines.jsonl:8",
        "logs/lines.jsonl:21",
    ]
    assert files["logs/deep/er/array.txt"]["rejected"] == [
        {"where": "logs/deep/er/array.txt[1]", "reason": "domain: expected a non-empty string, found None"}
    ]
    for entry in report["files"]:
        assert entry["read"] == entry["kept"] + entry["rejected_count"]
    turns = sum(len(trajectory.turns) for trajectory in read_jsonl(tmp_path / "out.jsonl"))
    assert report["totals"] == {
        "read": 64, "kept": 61, "rejected": 3, "turns": turns, "turns_read": turns, "turns_kept": turns,
        "replaced_surrogates": 0, "unrecognised_files": 2, "skipped": 0,
        "turns_removed": {"empty_action": 0, "retry_cycle": 0, "unchanged_state": 0, "of_rejected_trajectories": 0},
        "filtered": {"undeclared_tool": 0, "environment_failure": 0, "too_short": 0},
        "redacted": {"private_key": 0, "token": 0, "url_password": 0, "email": 0, "card": 0, "phone": 0},
    }  # fmt: skip


def test_the_bytes_do_not_depend_on_workers_and_shards_join_to_the_whole(logs, tmp_path, monkeypatch) -> None:
    whole, report = imported(tmp_path, logs)
    monkeypatch.setattr(import_units, "UNIT_BYTES", 1000)
    for workers in (1, 3):
        assert imported(tmp_path, logs, workers=workers) == (whole, report)
    sha256 = hashlib.sha256(whole).hexdigest()
    kept, turns = report["totals"]["kept"], report["totals"]["turns"]
    assert report["output"] == {
        "path": "out.jsonl", "bytes": len(whole), "sha256": sha256, "trajectories": kept, "turns": turns,
    }  # fmt: skip
    parts, rejected = b"", []
    for index in range(4):
        part, of_part = imported(tmp_path, logs, shard=(index, 4))
        parts += part
        rejected += [entry for file in of_part["files"] for entry in file["rejected"]]
    assert parts == whole
    assert rejected == [entry for file in report["files"] for entry in file["rejected"]]


def test_parquet_holds_the_same_whatever_the_workers_and_shards_read_in_order_give_the_whole(
    logs, tmp_path, monkeypatch
) -> None:
    imported(tmp_path, logs)
    whole = list(read_jsonl(tmp_path / "out.jsonl"))
    monkeypatch.setattr(import_units, "UNIT_BYTES", 1000)
    columns, made = tmp_path / "out.parquet", []
    for workers in (1, 3):
        report = importing.import_files([logs], columns, workers=workers, say=str)
        made.append(columns.read_bytes())
        assert report["output"]["sha256"] == hashlib.sha256(made[-1]).hexdigest()
        assert (report["output"]["path"], report["output"]["trajectories"]) == ("out.parquet", len(whole))
    assert made[0] == made[1] and list(read_trajectories(columns)) == whole
    in_order = []
    for index in range(3):
        importing.import_files([logs], tmp_path / f"{index}.parquet", shard=(index, 3), say=str)
        in_order += read_trajectories(tmp_path / f"{index}.parquet")
    assert in_order == whole
    empty = importing.import_files([logs / "deep"], tmp_path / "e.parquet", shard=(1, 9), say=str)
    assert empty["output"]["trajectories"] == 0 and pq.read_table(tmp_path / "e.parquet").num_rows == 0


def test_parquet_that_an_import_wrote_may_be_replaced_and_is_no_log(logs, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["import", "logs", "--out", "logs/out.parquet"]) == 0
    assert main(["import", "logs", "--out", "x.jsonl", "--report", "r.json"]) == 0
    (rejected,) = [file for file in json.loads(Path("r.json").read_text())["files"] if "parquet" in file["path"]]
    assert "Parquet, which is no log" in rejected["rejected"][0]["reason"]
    pq.write_table(pa.table({"other": [1]}), "logs/out.parquet")
    capsys.readouterr()
    assert main(["import", "logs", "--out", "logs/out.parquet"]) == 2
    assert "logs/out.parquet: a log below logs, which would be replaced" in capsys.readouterr().err


def test_files_of_no_known_format_are_named_on_the_screen_and_all_in_the_report(
    logs, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        Path(f"logs/z{number}.txt").write_text(f"text {number}\n")
    assert main(["import", "logs", "--out", "x.jsonl", "--report", "r.json"]) == 0
    shown = capsys.readouterr().out
    assert (
        "  of no known format: logs/SOURCE.md, logs/other.json, logs/z0.txt and 2 more (--report lists all)\n" in shown
    )
    assert json.loads(Path("r.json").read_text())["unrecognised"] == [
        {"path": "logs/SOURCE.md", "begins_with": "# notes"},
        {"path": "logs/other.json", "begins_with": '{"some": "thing"}'},
        *({"path": f"logs/z{number}.txt", "begins_with": f"text {number}\n"} for number in range(3)),
    ]


def test_one_id_in_two_shards_is_in_both_and_refused_where_both_are_read(tmp_path) -> None:
    """The whole import keeps the first; who reads two shards refuses the second, with the id and both files."""
    (tmp_path / "logs").mkdir()
    for name in "ab":
        (tmp_path / "logs" / f"{name}.jsonl").write_text(json.dumps(row("twin")) + "\n" + json.dumps(row(name)) + "\n")
    outs = [tmp_path / f"{index}.jsonl" for index in range(2)]
    for index, out in enumerate(outs):
        importing.import_files([tmp_path / "logs"], out, shard=(index, 2), say=str)
        assert [t.id for t in read_jsonl(out)] == ["twin", "ab"[index]]
    with pytest.raises(ContentError, match=r"1\.jsonl.*'twin'.*0\.jsonl already"):
        list(read_corpus(outs, "fail", ReadCount()))


def test_help_names_every_format_and_does_not_load_them_for_others(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "auto: by content (default), or " + ", ".join(known.name for known in FORMATS) in shown
    code = "import sys; from agentworld.train.cli import _parser; _parser().parse_args(['import', 'x', '--out', 'y']); "
    code += "assert 'agentworld.data.formats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_the_folder_lies_changes_nothing(logs, tmp_path, monkeypatch) -> None:
    whole, report = imported(tmp_path, logs)
    monkeypatch.chdir(tmp_path)
    assert imported(tmp_path, Path("logs")) == (whole, report)


def test_lone_surrogates_become_the_replacement_character(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row("a", text="half \ud83d of \U0001f600 \udc00")) + "\n" + json.dumps(row("b")) + "\n")
    _, report = imported(tmp_path, path)
    first = next(iter(read_jsonl(tmp_path / "out.jsonl")))
    assert first.turns[0].observation == "half \ufffd of \U0001f600 \ufffd 0"
    assert report["totals"]["replaced_surrogates"] == 4


def test_fail_stops_at_the_first_and_leaves_no_file(logs, tmp_path) -> None:
    with pytest.raises(ContentError, match=r"logs/deep/er/array\.txt\[1\]: domain: expected"):
        imported(tmp_path, logs, on_bad="fail")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_a_named_file_of_no_known_format_is_refused_with_what_was_seen(logs, tmp_path) -> None:
    with pytest.raises(
        RequestError, match=r"other\.json is of no known format; it begins with '\{\"some\".*agentworld"
    ):
        imported(tmp_path, logs / "other.json")
    with pytest.raises(ContentError, match="no trajectory in 1 files, 0 records: 1 files are of no known format"):
        (tmp_path / "only").mkdir()
        (tmp_path / "only" / "x.txt").write_text("hello")
        imported(tmp_path, tmp_path / "only")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "arguments,code,said",
    [
        (["absent"], 2, "absent: no such file or folder"),
        (["logs", "--format", "nonsense"], 2, "unknown format 'nonsense'; known: agentworld"),
        (["logs", "--shard", "4/4"], 2, "not I/N"),
        (["logs", "logs"], 2, "would both be called"),
        (["logs/lines.jsonl", "--on-bad", "fail"], 1, "lines.jsonl:8: not JSON"),
        (["logs", "--report", "no/where.json"], 2, "the folder"),
    ],
)
def test_the_command_refuses_with_one_line(logs, tmp_path, monkeypatch, capsys, arguments, code, said) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", *arguments, "--out", "x.jsonl"]) == code
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1
    assert not (tmp_path / "x.jsonl").exists()


def test_the_command_imports_and_reports(logs, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", "logs", "--out", "x.jsonl", "--report", "r.json", "--workers", "2"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["totals"]["kept"] == 61
    shown = capsys.readouterr().out
    assert "x.jsonl: 61 trajectories" in shown and "3 of 64 records rejected" in shown and "1 x blank line" in shown


def test_filters_and_redaction_are_counted_by_file_and_add_up(tmp_path) -> None:
    """By hand: a keeps 3 of 4 turns; b has 1 of 2 left and goes; c stays whole and says one address twice."""
    a, b, c = row("a", 4, "a"), row("b", 2, "b"), row("c", 2, "mail bob@corp.org or Bob@corp.org;")
    a["turns"][1]["action"] = b["turns"][0]["action"] = " "
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "one.jsonl").write_text(f"{json.dumps(a)}\n{json.dumps(b)}\n")
    (folder / "two.jsonl").write_text(json.dumps(c) + "\n")
    text, report = imported(tmp_path, folder)
    one, two = report["files"]
    assert (one["read"], one["kept"], one["turns_read"], one["turns_kept"]) == (2, 1, 6, 3)
    assert one["turns_removed"] == {
        "empty_action": 2, "retry_cycle": 0, "unchanged_state": 0, "of_rejected_trajectories": 1,
    }  # fmt: skip
    assert one["filtered"] == {"undeclared_tool": 0, "environment_failure": 0, "too_short": 1}
    assert one["rejected"] == [{"where": "b", "reason": "fewer than 2 turns: 1 of 2 left"}]
    assert (two["turns_kept"], two["redacted"]["email"], report["totals"]["redacted"]["email"]) == (2, 4, 4)
    assert b"mail redacted-1@example.com or redacted-1@example.com; 0" in text and b"corp.org" not in text
    for counted in (*report["files"], report["totals"]):
        assert counted["turns_read"] == counted["turns_kept"] + sum(counted["turns_removed"].values())
    raw, off = imported(tmp_path, folder, filters=False, redact=False)
    assert [json.loads(line) for line in raw.splitlines()] == [
        t | {"system": t["system"] | {"demonstrations": ""}, "turns": [turn | {"meta": {}} for turn in t["turns"]]}
        for t in (a, b, c)
    ]
    assert (off["totals"]["turns_read"], off["totals"]["turns"], off["totals"]["rejected"]) == (8, 8, 0)


def test_what_a_filter_drops_is_not_bad_and_damage_after_it_is_named(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row("short", 1)) + "\n" + json.dumps(row("whole")) + "\n")
    _, report = imported(tmp_path, path, on_bad="fail")
    assert (report["totals"]["kept"], report["totals"]["filtered"]["too_short"]) == (1, 1)
    path.write_text(path.read_text() + '{"id": 1\n')
    with pytest.raises(ContentError, match=r"a\.jsonl:3: not JSON"):
        imported(tmp_path, path, on_bad="fail")


def test_rows_of_a_benchmark_stay_as_they_are(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    bench = row("bench", 1, "bob@corp.org") | {"source": "agentworldbench"}
    path.write_text(json.dumps(bench) + "\n")
    _, report = imported(tmp_path, path)
    assert next(iter(read_jsonl(tmp_path / "out.jsonl"))).turns[0].observation == "bob@corp.org 0"
    assert (report["totals"]["kept"], report["totals"]["redacted"]["email"]) == (1, 0)


def test_nothing_left_after_filters_is_an_error_with_the_reason(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row("short", 1)) + "\n")
    with pytest.raises(ContentError, match=r"no trajectory in 1 files, 1 records.*short: fewer than 2 turns: 1 of 1"):
        imported(tmp_path, path)


def test_the_command_switches_filters_and_redaction_off(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(json.dumps(row("short", 1, "bob@corp.org")) + "\n")
    assert main(["import", "a.jsonl", "--out", "x.jsonl"]) == 1
    assert main(["import", "a.jsonl", "--out", "x.jsonl", "--filters", "off"]) == 0
    assert "redacted-1@example.com 0" in Path("x.jsonl").read_text()
    assert main(["import", "a.jsonl", "--out", "x.jsonl", "--filters", "off", "--redact", "off"]) == 0
    assert "bob@corp.org 0" in Path("x.jsonl").read_text()


def test_a_folder_inside_another_is_read_once_and_the_summary_adds_up(tmp_path, capsys) -> None:
    inner = tmp_path / "logs" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.jsonl").write_text(json.dumps(row("a")) + "\n")
    (tmp_path / "logs" / "b.jsonl").write_bytes(b"{\xff\n")
    for order in ([tmp_path / "logs", inner], [inner, tmp_path / "logs"]):
        report = importing.import_files(order, tmp_path / "out.jsonl", say=str)
        assert (report["totals"]["read"], report["totals"]["kept"], report["totals"]["rejected"]) == (2, 1, 1)
        assert [entry["reason"] for entry in report["skipped"]] == ["read already, below another path"]
    text = import_report.summary(report, tmp_path / "out.jsonl")
    counted = re.findall(r"(\d+) files +(\d+) kept +(\d+) rejected", text)
    assert sum(int(rejected) for _, _, rejected in counted) == 1 and "(damaged)" in text
