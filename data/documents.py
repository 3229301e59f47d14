"""Reading documents for CPT as a stream: text, Markdown, JSON Lines, Parquet, folders of these, and `datasets` sources.

Memory is that of one document (Parquet: of one batch of rows), whatever the size of the source. Text is kept verbatim,
but for a byte order mark and for lone surrogates, which are no characters and become U+FFFD, counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentworld.data.corpus import ReadCount
from agentworld.data.documents_settings import DocumentSource, key_of
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.formats.container import lines, records
from agentworld.data.formats.format import Head, Rejected
from agentworld.data.import_units import find_files
from agentworld.data.unicode_text import without_lone_surrogates

MAX_DOCUMENT_BYTES = 64 << 20  # tokenizing takes some hundred times the memory of its text; a book has 1 MB
PARQUET_ROWS = 64  # of a batch
PARQUET_BUFFER_BYTES = 1 << 20  # of a column that is read as a stream, not a row group at a time


@dataclass
class DocumentCount(ReadCount):
    """Documents of one source; read = kept + empty + rejected. `unrecognised_files`: other files of a folder."""

    files: int = 0
    unrecognised_files: int = 0
    empty: int = 0  # nothing but white space
    replaced_surrogates: int = 0


def read_documents(source: DocumentSource, on_bad: str, count: DocumentCount) -> Iterator[str]:
    """Yield the documents of a source in its order; `count` is complete when the iterator is at its end.

    Args:
        on_bad: "fail" stops at the first damaged document, "skip" counts it and goes on.

    Raises:
        RequestError: a path or data set that is not there, an unknown suffix, an unknown column (the text names those
            that are there).
        ContentError: a damaged document under "fail" (`path:line: reason`), or a data set that breaks off.
    """
    for found in _local(source, count) if source.path else _remote(source):
        if isinstance(found, Rejected):
            if on_bad == "fail":
                way_out = "data.on_bad=skip counts such documents and goes on"
                raise ContentError(f"{found.where}: {found.reason}; {way_out}")
            count.reject(f"{found.where}: {found.reason}")
            continue
        text, replaced = without_lone_surrogates(found)
        count.read += 1
        if not text.strip():
            count.empty += 1
            continue
        count.kept += 1
        count.replaced_surrogates += replaced
        yield text
        if count.kept == source.max_documents:
            return


def _local(source: DocumentSource, count: DocumentCount) -> Iterator[str | Rejected]:
    key = f"{key_of(source)}.path"
    try:
        files = list(find_files([Path(source.path)]))
    except RequestError as error:
        raise RequestError(f"{key}: {error}") from None
    for file in files:
        reader = READERS.get(file.path.suffix.lower())
        if reader is None and file.named:
            raise RequestError(f"{key}: {file.path}: expected one of {', '.join(READERS)}")
        if reader is None:
            count.unrecognised_files += 1
            continue
        count.files += 1
        try:
            yield from reader(file.path, source)
        except OSError as error:
            raise RequestError(f"{key}: {file.path}: cannot be read: {error.strerror or error}") from error
    if count.files == 0:
        raise RequestError(f"{key}: {source.path} holds none of {', '.join(READERS)} in its {len(files)} files")


def _text_file(path: Path, source: DocumentSource) -> Iterator[str | Rejected]:
    """A whole file is one document."""
    size = path.stat().st_size
    if size > MAX_DOCUMENT_BYTES:
        yield _too_long(str(path), size)
        return
    for record in records(path, Head("text", None, "")):
        yield Rejected(str(path), record.reason) if isinstance(record, Rejected) else record.value


def _json_lines(path: Path, source: DocumentSource) -> Iterator[str | Rejected]:
    """A line is a document. The first object tells whether the field is there at all; later lines may lack it."""
    is_first = True
    for record in lines(path):
        where = f"{path}{record.where}"
        if isinstance(record, Rejected):
            yield Rejected(where, record.reason)
        elif not isinstance(record.value, dict):
            yield Rejected(where, f"expected a JSON object with the field {source.column!r}")
        else:
            if is_first:
                _require_column(source, where, list(record.value))
            is_first = False
            yield _text_of(record.value, source, where)


def _parquet(path: Path, source: DocumentSource) -> Iterator[str | Rejected]:
    """A row is a document; only the column of the text is read, as a stream."""
    row = 0
    with pa.OSFile(str(path)) as opened:
        try:
            # Without pre_buffer and with buffer_size a column is read page by page: a row group may be the whole file.
            file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=PARQUET_BUFFER_BYTES)
            _require_column(source, str(path), file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[source.column]):
                for value in batch.column(source.column).to_pylist():
                    row += 1
                    yield _text_of({source.column: value}, source, f"{path}:{row}")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a corrupt page is an OSError
            after = f" after row {row}" if row else ""
            yield Rejected(str(path), f"not Parquet that can be read{after}: {_one_line(error)}")


READERS: dict[str, Callable[[Path, DocumentSource], Iterator[str | Rejected]]] = {
    ".txt": _text_file,
    ".md": _text_file,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}


def _remote(source: DocumentSource) -> Iterator[str | Rejected]:
    """The rows of a split of a data set, as `datasets` streams them: from the Hub, its cache, or a local folder."""
    key, place = key_of(source), f"{source.dataset}[{source.split}]"
    for number, row in _rows(source, key, place):
        if number == 1:
            _require_column(source, place, list(row))
        yield _text_of(row, source, f"{place}:{number}")


def _rows(source: DocumentSource, key: str, place: str) -> Iterator[tuple[int, dict[str, Any]]]:
    import datasets  # a second to import, and most runs have no such source

    name, config, revision = source.dataset, source.config or None, source.revision or None
    number = 0
    # The exceptions are those of HTTP clients and of decoders of every kind: they share no class but Exception.
    try:
        rows = datasets.load_dataset(name, config, split=source.split, revision=revision, streaming=True)
    except Exception as error:  # not found, offline, unknown config or split
        raise RequestError(f"{key}: the data set {place} cannot be opened: {_one_line(error)}") from error
    try:
        for number, row in enumerate(rows, start=1):
            yield number, row
    except Exception as error:  # no damaged document that could be skipped: all that follows is lost
        raise ContentError(f"{key}: {place} breaks off after row {number}: {_one_line(error)}") from error


def _text_of(row: dict[str, Any], source: DocumentSource, where: str) -> str | Rejected:
    if source.column not in row:
        return Rejected(where, f"no field {source.column!r}; there are {', '.join(row)}")
    value = row[source.column]
    if not isinstance(value, str):
        return Rejected(where, f"{source.column}: expected a text, found {type(value).__name__}")
    if len(value) > MAX_DOCUMENT_BYTES:
        return _too_long(where, len(value))
    return value


def _require_column(source: DocumentSource, where: str, names: Sequence[str]) -> None:
    if source.column not in names:
        known = ", ".join(names) or "none"
        raise RequestError(f"{key_of(source)}.column={source.column}: {where} has no such column; there are: {known}")


def _too_long(where: str, size: int) -> Rejected:
    return Rejected(where, f"one document of {size >> 20} MiB, at most {MAX_DOCUMENT_BYTES >> 20} are read; split it")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
