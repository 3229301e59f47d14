"""Files of trajectories: JSON Lines, or Parquet with the same content; the ending chooses what is written.

JSON Lines is that of `schema`. In Parquet a trajectory is a row:

    id, domain, source, split_group    string
    system                             struct of the five components, absent ones null
    turns                              list of struct(action, observation, meta); `meta` is JSON text

`meta` is text because its keys differ from turn to turn: a struct would give every turn all keys, and a turn with a
`context_only` of null would be history. Nothing is lost between the two formats. Equal trajectories in equal order give
equal bytes with one version of pyarrow, whatever the number of `write` calls before them or of processes: a row group
ends where its text reaches ROW_GROUP_CHARACTERS. Shards of Parquet cannot be joined byte by byte as those of JSON Lines
can; reading them in order gives the trajectories of the whole.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from agentworld.data.schema import (
    SchemaError,
    Trajectory,
    from_dict,
    parsed,
    read_jsonl,
    refuse_lone_surrogates,
    to_dict,
)

PARQUET_MAGIC = b"PAR1"
PARQUET_SUFFIX = ".parquet"
ROW_GROUP_CHARACTERS = 8 << 20  # of all texts: some ten times this in memory while it is written
BATCH_ROWS = 64  # read at once: a foreign file may have one row group for everything
BUFFER_BYTES = 1 << 20  # of a column that is read page by page
NAMES = ("id", "domain", "source", "split_group")
COMPONENTS = ("task_description", "action_space", "demonstrations", "initial_state", "simulation_instruction")


class Writer(Protocol):
    """A file of trajectories that is being written."""

    def write(self, trajectory: Trajectory) -> None: ...


def is_parquet_name(path: str | Path) -> bool:
    """Whether a file of this name is written as Parquet."""
    return Path(path).suffix.lower() == PARQUET_SUFFIX


def rows_in(path: Path) -> int:
    """Rows of a file of trajectories: lines, or what the footer of Parquet says; bad ones count too."""
    if _is_parquet(path):
        import pyarrow.parquet as pq

        return int(pq.ParquetFile(path).metadata.num_rows)
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def holds_trajectories(path: Path) -> bool:
    """Whether a file is Parquet with the columns of trajectories."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not _is_parquet(path):
        return False
    try:
        return pq.read_schema(path).names == _schema().names
    except (pa.ArrowException, OSError, ValueError):
        return False


@contextmanager
def open_writer(path: str | Path) -> Iterator[Writer]:
    """A writer of Parquet for the ending `.parquet`, else of JSON Lines; the file is whole when the block ends.

    The caller chooses a temporary path and renames: after an exception the file holds a part.

    Raises:
        OSError: the file cannot be written.
        UnicodeEncodeError: a text holds a lone surrogate, which is no character.
    """
    with open(path, "wb") as file:
        if is_parquet_name(path):
            with _ParquetWriter(file) as writer:
                yield writer
        else:
            yield _JsonLinesWriter(file)


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write all of them and return how many; see `open_writer`."""
    count = 0
    with open_writer(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
            count += 1
    return count


def read_trajectories(path: str | Path, on_bad: Callable[[SchemaError], None] | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in order, of whichever format its first bytes are; memory flat in its size.

    Args:
        on_bad: called with the error of each bad line or row, which is then skipped; None raises at the first.

    Raises:
        SchemaError: `path:row: field: reason`, rows from 1; also for a file without a single row, and for Parquet
            whose footer cannot be read (a truncated file), whatever `on_bad` is.
        OSError: the file cannot be read.
    """
    if not _is_parquet(Path(path)):
        return read_jsonl(path, on_bad)
    return parsed(path, _parquet_rows(Path(path)), _parse_row, on_bad, "row")


def _is_parquet(path: Path) -> bool:
    if not path.is_file():  # a pipe gives its bytes once; what is not there is an error of the reader
        return False
    with open(path, "rb") as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


class _JsonLinesWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, trajectory: Trajectory) -> None:
        self._file.write((json.dumps(to_dict(trajectory), ensure_ascii=False) + "\n").encode())


class _ParquetWriter:
    """Collects rows and writes a row group when their text is long enough."""

    def __init__(self, file: BinaryIO) -> None:
        import pyarrow.parquet as pq  # 0.2 s and 40 MB that JSON Lines does without

        self._schema = _schema()
        self._rows: list[Trajectory] = []
        self._characters = 0
        self._writer = pq.ParquetWriter(
            file,
            self._schema,
            compression="zstd",
            use_dictionary=["domain", "source", *(f"system.{name}" for name in COMPONENTS)],
            write_statistics=list(NAMES),
            write_page_checksum=True,
        )

    def write(self, trajectory: Trajectory) -> None:
        self._rows.append(trajectory)
        self._characters += sum(len(turn.action) + len(turn.observation) for turn in trajectory.turns)
        self._characters += sum(len(value) for value in vars(trajectory.system).values() if value is not None)
        if self._characters >= ROW_GROUP_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        table = _table(self._rows, self._schema)
        self._rows, self._characters = [], 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def __enter__(self) -> "_ParquetWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._rows:
            self._flush()
        self._writer.close()


def _schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    turn = pa.struct([pa.field(name, text, nullable=False) for name in ("action", "observation", "meta")])
    system = pa.struct([pa.field(name, text, nullable=name in COMPONENTS[3:]) for name in COMPONENTS])
    return pa.schema(
        [pa.field(name, text, nullable=False) for name in NAMES]
        + [pa.field("system", system, nullable=False)]
        + [pa.field("turns", pa.list_(pa.field("element", turn, nullable=False)), nullable=False)]
    )


def _table(rows: list[Trajectory], schema: Any) -> Any:
    """Column by column: an array of nested Python objects takes three times as long."""
    import pyarrow as pa

    def texts(values: Iterable[str | None]) -> Any:
        return pa.array(values, pa.string())

    turns = [turn for row in rows for turn in row.turns]
    metas = ["{}" if not turn.meta else json.dumps(turn.meta, ensure_ascii=False) for turn in turns]
    of_turn = [texts([turn.action for turn in turns]), texts([turn.observation for turn in turns]), texts(metas)]
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row.turns))
    turn_type, system_type = schema.field("turns").type, schema.field("system").type
    of_system = [texts([getattr(row.system, name) for row in rows]) for name in COMPONENTS]
    return pa.Table.from_arrays(
        [
            *(texts([getattr(row, name) for row in rows]) for name in NAMES),
            pa.StructArray.from_arrays(of_system, fields=list(system_type)),
            pa.ListArray.from_arrays(
                pa.array(ends, pa.int32()),
                pa.StructArray.from_arrays(of_turn, fields=list(turn_type.value_type)),
                type=turn_type,
            ),
        ],
        schema=schema,
    )


def _parse_row(row: dict[str, Any] | SchemaError) -> Trajectory:
    return from_dict(_with_parsed_meta(_checked(row)))


def _parquet_rows(path: Path) -> Iterator[dict[str, Any] | SchemaError]:
    """The rows of a file, or for each row of a row group from its first damaged batch on, why it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    damage = (pa.ArrowException, OSError, ValueError, NotImplementedError)  # a corrupt page is an OSError
    with open(path, "rb") as opened:
        try:
            file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            columns = file.schema_arrow.names
        except damage as error:
            raise SchemaError(f"{path}: not Parquet that can be read (truncated?): {_one_line(error)}") from None
        if missing := [name for name in (*NAMES, "system", "turns") if name not in columns]:
            found = ", ".join(columns)
            raise SchemaError(
                f"{path}: no Parquet of trajectories: it lacks {', '.join(missing)}; its columns: {found}"
            )
        for number, rows in enumerate(groups):
            given = 0
            try:
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[number], use_threads=False):
                    for row in _rows_of(batch):
                        yield row
                        given += 1
                problem = "its rows end early"  # a damaged page header can hide them: no checksum covers it
            except damage as error:
                problem = _one_line(error)
            reason = f"row group {number} of {len(groups)} cannot be read from here on: {problem}"
            yield from (SchemaError(reason) for _ in range(rows - given))


def _rows_of(batch: Any) -> Iterable[dict[str, Any] | SchemaError]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:  # of one row: the others are good
        return [_row_of(batch.slice(place, 1)) for place in range(batch.num_rows)]


def _row_of(batch: Any) -> dict[str, Any] | SchemaError:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return SchemaError(f"not UTF-8 at byte {error.start} of a text")


def _checked(row: dict[str, Any] | SchemaError) -> dict[str, Any]:
    if isinstance(row, SchemaError):
        raise row
    return row


def _with_parsed_meta(row: dict[str, Any]) -> dict[str, Any]:
    """The row as JSON Lines has it. `meta` is JSON text or null; a struct has lost which keys a turn had."""
    turns = row.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return row
    return row | {"turns": [_turn(index, turn) for index, turn in enumerate(turns)]}


def _turn(index: int, turn: dict[str, Any]) -> dict[str, Any]:
    text = turn.get("meta")
    if text is None or text == "{}":
        return turn | {"meta": {}}
    if not isinstance(text, str):
        raise SchemaError(f"turns[{index}].meta: expected JSON text, found {type(text).__name__}")
    try:
        meta = json.loads(text)
        refuse_lone_surrogates(text, meta)
    except (RecursionError, ValueError) as error:
        raise SchemaError(f"turns[{index}].meta: not JSON that can be read: {error}") from None
    return turn | {"meta": meta}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
