"""Reading documents: every reader against files written by hand, damage by its line, and streams that stay streams."""

import json
import os
import re
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentworld.data.documents import DocumentCount, read_documents
from agentworld.data.documents_settings import DocumentSource, check_paths, check_sources
from agentworld.data.errors import ContentError, RequestError

TEXTS = ["one\r\ntwo\n\nthree", "\u2028 \x85 \x00 <|im_end|>\n", " 中文 \U0001f600\n"]


def source(path: Path | str = "", **changes) -> DocumentSource:
    return DocumentSource(**{"name": "law", "path": str(path), "share": 0.1, **changes})


def read(path: Path | str, on_bad: str = "fail", **changes) -> tuple[list[str], DocumentCount]:
    count = DocumentCount()
    texts = list(read_documents(source(path, **changes), on_bad, count))
    assert count.read == count.kept + count.empty + count.rejected
    assert count.kept == len(texts)
    return texts, count


def write_lines(path: Path, texts: list[str], column: str = "text") -> Path:
    rows = (json.dumps({"id": number, column: text}, ensure_ascii=False) for number, text in enumerate(texts))
    path.write_bytes("".join(f"{row}\n" for row in rows).encode())
    return path


def write_parquet(path: Path, texts: list[str | None], column: str = "text", rows: int = 2) -> Path:
    pq.write_table(pa.table({"id": list(range(len(texts))), column: texts}), path, row_group_size=rows)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".md", ".MD"])
def test_a_text_file_is_one_document_kept_verbatim(tmp_path, suffix):
    for text in TEXTS:
        path = tmp_path / f"a{suffix}"
        path.write_bytes(text.encode())
        assert read(path)[0] == [text]
    path.write_bytes(b"\xef\xbb\xbf# Title\r\n")
    assert read(path)[0] == ["# Title\r\n"]


@pytest.mark.parametrize("column", ["text", "body"])
def test_json_lines_and_parquet_give_the_texts_of_their_column_in_order(tmp_path, column):
    assert read(write_lines(tmp_path / "a.jsonl", TEXTS, column), column=column)[0] == TEXTS
    assert read(write_parquet(tmp_path / "a.parquet", TEXTS, column), column=column)[0] == TEXTS


def test_damaged_lines_are_counted_by_line_and_stop_the_reading_under_fail(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "good", "id": 1}',
        b'{"text": null}',
        b"",
        b"[1]",
        b'{"id": 2, "lang": "en"}',
        b'{"text": " \\n"}',
        b'{"text": "half \\ud83d"}',
        b'{"text": "\xff"}',
        b'{"text": "cut',
    ]
    path.write_bytes(b"\n".join(lines))
    texts, count = read(path, "skip")
    assert texts == ["good", "half \ufffd"]
    assert (count.read, count.kept, count.empty, count.rejected, count.replaced_surrogates) == (9, 2, 1, 6, 1)
    assert count.reasons == [
        f"{path}:2: text: expected a text, found NoneType",
        f"{path}:3: blank line",
        f"{path}:4: expected a JSON object with the field 'text'",
        f"{path}:5: no field 'text'; there are id, lang",
        f"{path}:8: not UTF-8 at byte 10; convert it, for example with iconv -f latin1 -t utf8",
        f"{path}:9: not JSON: Unterminated string starting at column 10 (truncated?)",
    ]
    with pytest.raises(ContentError, match=re.escape(f"{path}:2: text: expected a text, found NoneType; data.on_bad=")):
        read(path)


def test_damage_of_text_and_parquet_files_is_counted_by_file_and_row(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    write_parquet(tmp_path / "b.parquet", ["x", None, "y"])
    whole = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "c.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "d.txt").write_bytes(b"good")
    texts, count = read(tmp_path, "skip")
    assert texts == ["x", "y", "good"]
    assert (count.files, count.read, count.rejected) == (4, 6, 3)
    assert count.reasons[0].startswith(f"{tmp_path / 'a.txt'}: not UTF-8 at byte 3")
    assert count.reasons[1] == f"{tmp_path / 'b.parquet'}:2: text: expected a text, found NoneType"
    assert count.reasons[2].startswith(f"{tmp_path / 'c.parquet'}: not Parquet that can be read: ")


def test_too_long_a_document_is_counted_and_not_read(tmp_path):
    (tmp_path / "a.txt").write_text("good")
    with open(tmp_path / "b.txt", "wb") as file:
        file.truncate(1 << 40)
    texts, count = read(tmp_path, "skip")
    assert texts == ["good"]
    assert count.reasons == [f"{tmp_path / 'b.txt'}: one document of 1048576 MiB, at most 64 are read; split it"]


def test_a_folder_gives_its_files_by_name_and_counts_the_others(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("hidden")
    (tmp_path / "b" / "z.md").write_text("third")
    (tmp_path / "c.txt").write_text("fourth")
    (tmp_path / "picture.png").write_bytes(b"\x89")
    write_lines(tmp_path / "a.jsonl", ["first", "second"])
    texts, count = read(tmp_path)
    assert texts == ["first", "second", "third", "fourth"]
    assert (count.files, count.unrecognised_files) == (3, 1)


def test_the_number_of_documents_read_can_be_limited(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["", "one", "two", "three"])
    texts, count = read(path, max_documents=2)
    assert texts == ["one", "two"]
    assert (count.read, count.empty) == (3, 1)


def test_a_data_set_gives_what_its_files_hold(tmp_path):
    for number in range(2):
        write_lines(tmp_path / f"train-{number}.jsonl", [f"{text}{number}" for text in TEXTS], "body")
    write_lines(tmp_path / "test-0.jsonl", ["held out"], "body")
    wanted = {"dataset": str(tmp_path), "column": "body"}
    assert read("", **wanted)[0] == [f"{text}{number}" for number in range(2) for text in TEXTS]
    assert read("", split="test", **wanted)[0] == ["held out"]
    with pytest.raises(RequestError, match=r"data\.documents\[law\]: the data set .*\[dev\] cannot be opened: .*dev"):
        read("", split="dev", **wanted)
    with pytest.raises(RequestError, match=r"data\.documents\[law\]\.column=text: .* there are: id, body$"):
        read("", dataset=str(tmp_path))


def test_a_data_set_is_asked_for_by_configuration_and_revision(tmp_path, monkeypatch):
    write_lines(tmp_path / "old.jsonl", ["1900"])
    write_lines(tmp_path / "new.jsonl", ["2000"])
    entries = (f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("old", "new"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{''.join(entries)}---\n")
    assert read("", dataset=str(tmp_path), config="new")[0] == ["2000"]
    with pytest.raises(RequestError, match=r"cannot be opened: .*'old', 'new'"):
        read("", dataset=str(tmp_path))
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **named: asked.append((args, named)) or [{"text": "x"}])
    assert read("", dataset="a/b", revision="v2", split="dev")[0] == ["x"]
    assert asked == [(("a/b", None), {"split": "dev", "revision": "v2", "streaming": True})]


def test_a_data_set_that_breaks_off_stops_even_where_damage_is_skipped(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", ["a", None])
    (tmp_path / "train-1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ContentError, match=r"data\.documents\[law\]: .* breaks off after row 2: "):
        read("", "skip", dataset=str(tmp_path))
    with pytest.raises(RequestError, match=r"no/such-data-set.* cannot be opened"):
        read("", dataset="no/such-data-set")


@pytest.mark.parametrize(("kind", "most"), [("jsonl", 1), ("parquet", 4), ("dataset", 25)])
def test_the_first_document_comes_before_the_file_is_read(tmp_path, kind, most):
    """Of 40 MB in one row group or split at most so many MB are read (`datasets` reads two chunks of 10 MB)."""
    import datasets  # noqa: F401 (here, so that the reading of its own files is not counted)

    texts = [os.urandom(500).hex() for _ in range(40_000)]
    wanted = source(tmp_path / f"train.{kind}")
    if kind == "parquet":
        write_parquet(tmp_path / "train.parquet", texts, rows=len(texts))
    else:
        write_lines(tmp_path / "train.jsonl", texts)
    if kind == "dataset":
        wanted = source("", dataset=str(tmp_path))
    if kind == "jsonl":
        os.truncate(tmp_path / "train.jsonl", 1 << 40)  # a hole of a terabyte behind the lines: never to be read
    before = bytes_read()
    assert list(islice(read_documents(wanted, "fail", DocumentCount()), 2)) == texts[:2]
    assert bytes_read() - before < most * 1_000_000


def bytes_read() -> int:
    """What this process has read by system calls, in bytes."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, r"data.documents\[0\].name is empty"),
        (
            {"path": ""},
            r"data.documents\[law\]: give either path \(file or folder\) or dataset \(name\), found neither",
        ),
        ({"dataset": "x"}, r"data.documents\[law\]: give either .*, found both"),
        ({"kind": "other"}, r"data.documents\[law\].kind=other: expected one of knowledge, replay"),
        ({"column": ""}, r"data.documents\[law\].column is empty"),
        ({"share": 1.0}, r"data.documents\[law\].share=1.0: a share of the CPT tokens is a number in \[0, 1\)"),
        ({"share": -0.1}, r"data.documents\[law\].share=-0.1: "),
        ({"share": float("nan")}, r"data.documents\[law\].share=nan: "),
        ({"epochs": 0}, r"data.documents\[law\]: epochs=0 must be at least 1"),
        ({"max_documents": -1}, r"data.documents\[law\]: .*max_documents=-1 at least 0"),
    ],
)
def test_wrong_sources_are_refused_by_key(tmp_path, changes, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        check_sources([source(**{"path": tmp_path, **changes})])


def test_a_path_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    check_paths([source(tmp_path), source("/no/such", share=0.0), source("", dataset="x")])
    with pytest.raises(RequestError, match=r"^data.documents\[law\].path: /no/such: no such file or folder$"):
        check_paths([source(tmp_path, name="web"), source("/no/such")])


def test_shares_that_leave_nothing_and_names_that_are_equal_are_refused(tmp_path):
    check_sources([source(tmp_path, share=0.5), source(tmp_path, name="web", share=0.4)])
    with pytest.raises(RequestError, match=r"law 0\.6 \+ web 0\.4 = 1 leaves no share for trajectories"):
        check_sources([source(tmp_path, share=0.6), source(tmp_path, name="web", share=0.4)])
    with pytest.raises(RequestError, match="two sources are called 'law'"):
        check_sources([source(tmp_path), source(tmp_path)])


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["x"], "body")
    with pytest.raises(RequestError, match=rf"^data.documents\[law\].column=text: {lines}:1 .* there are: id, body$"):
        read(lines)
    table = write_parquet(tmp_path / "a.parquet", ["x"], "body")
    with pytest.raises(RequestError, match=rf"^data.documents\[law\].column=text: {table} .* there are: id, body$"):
        read(table, "skip")
    (tmp_path / "a.csv").write_text("text\nx\n")
    with pytest.raises(RequestError, match=r"a\.csv: expected one of \.txt, \.md, \.jsonl, \.parquet"):
        read(tmp_path / "a.csv")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "a.csv").write_text("x")
    with pytest.raises(RequestError, match=r"only holds none of .* in its 1 files"):
        read(tmp_path / "only")
    with pytest.raises(RequestError, match=r"^data.documents\[law\].path: .*missing: no such file or folder"):
        read(tmp_path / "missing")
