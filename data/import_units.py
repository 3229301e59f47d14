"""The work of an import: files below the paths that were named, large ones cut into ranges of lines, shards of both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.data.formats import detect
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.formats.format import Format

UNIT_BYTES = 32 << 20  # of a JSON Lines file; larger ones are cut


@dataclass(frozen=True)
class SourceFile:
    """`name` is the path below the folder that was named, with that folder's name: it makes ids and reports that do not
    depend on where the folder lies. `named` by itself, not found in a folder."""

    path: Path
    name: str
    named: bool


@dataclass(frozen=True)
class Unit:
    """A file, or its lines that begin in bytes [start, end), the first of which has number `number`."""

    file: SourceFile
    start: int = 0
    end: int | None = None
    number: int = 1

    @property
    def is_part(self) -> bool:
        return self.end is not None


def find_files(paths: Sequence[Path]) -> Iterator[SourceFile]:
    """The files that `paths` name, and those below folders, in order of their names; hidden ones are left out.

    Raises:
        RequestError: a path is not there, a folder holds no file, or two files would have one name.
    """
    seen: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path)))
            if not below:
                raise RequestError(f"{path}: the folder holds no file")
            found = [SourceFile(p, f"{path.resolve().name}/{p.relative_to(path).as_posix()}", False) for p in below]
        elif path.is_file():
            found = [SourceFile(path, path.name, True)]
        else:
            raise RequestError(f"{path}: no such file or folder")
        for file in found:
            if file.name in seen:
                raise RequestError(
                    f"{file.path} and {seen[file.name]} would both be called {file.name} in ids; "
                    "name a folder that holds both"
                )
            seen[file.name] = file.path
            yield file


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def units_of(file: SourceFile, chosen: Format | None) -> Iterator[Unit]:
    """One unit, or several for a large file of lines."""
    size = file.path.stat().st_size
    if size <= UNIT_BYTES or not _can_be_cut(file.path, chosen):
        yield Unit(file)
        return
    with open(file.path, "rb") as opened:
        start, number = 0, 1
        while start < size:
            read = opened.read(UNIT_BYTES) + opened.readline()
            yield Unit(file, start, opened.tell(), number)
            start, number = opened.tell(), number + read.count(b"\n")


def _can_be_cut(path: Path, chosen: Format | None) -> bool:
    try:
        head = look(path)
    except DamagedError:
        return False
    known = chosen or detect(head)
    return head.layout == "lines" and known is not None and not known.whole


def shard_of(units: Sequence[Unit], shard: tuple[int, int]) -> list[Unit]:
    """The units that begin in the i-th of n equal parts of all bytes."""
    index, count = shard
    sizes = [(unit.end - unit.start) if unit.end is not None else unit.file.path.stat().st_size for unit in units]
    total, place, chosen = max(1, sum(sizes)), 0, []
    for unit, size in zip(units, sizes, strict=True):
        if place * count // total == index:
            chosen.append(unit)
        place += size
    return chosen
