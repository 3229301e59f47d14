"""The work of an import: files below the paths that were named, large ones cut into ranges of lines, shards of both."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.data.formats import detect
from agentworld.data.formats.container import DamagedError, look
from agentworld.data.formats.format import Format
from agentworld.data.outputs import is_same_file

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


def find_files(paths: Sequence[Path]) -> list[SourceFile]:
    """The files that `paths` name and those below folders; errors as in `search`."""
    return search(paths)[0]


def search(paths: Sequence[Path], left_out: Sequence[Path] = ()) -> tuple[list[SourceFile], list[dict[str, str]]]:
    """The files that `paths` name, and those below folders, in order of their names; hidden ones are left out.

    The second list has the path and the reason of what is below a folder and is not read: links to folders, dangling
    ones, pipes and devices, folders that cannot be read, what a path before has named, and the files of `left_out` (the
    outputs).

    Raises:
        RequestError: a path is not there or cannot be read, a folder holds no file, or two files would have one name.
    """
    files: list[SourceFile] = []
    seen: dict[str, Path] = {}
    skipped: list[dict[str, str]] = []
    read: set[Path] = set()  # what the paths before have named
    for path in paths:
        if path.is_dir():
            found, of_folder = _below(path, left_out)
            skipped += of_folder
            if not found:
                raise RequestError(f"{path}: the folder holds no file" + _that_can_be_read(of_folder))
            twice = [file for file in found if file.name not in seen and file.path.resolve() in read]
            skipped += [{"path": file.name, "reason": "read already, below another path"} for file in twice]
            found = [file for file in found if file not in twice]
        elif path.is_file():
            try:
                open(path, "rb").close()
            except OSError as error:
                raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
            found = [SourceFile(path, _text(path.name), True)]
        elif path.exists():
            raise RequestError(f"{path}: neither a regular file nor a folder; write what it gives to a file")
        else:
            raise RequestError(f"{path}: no such file or folder")
        for file in found:
            if file.name in seen:
                raise RequestError(
                    f"{file.path} and {seen[file.name]} would both be called {file.name} in ids; "
                    "name a folder that holds both"
                )
            seen[file.name] = file.path
        read |= {file.path.resolve() for file in found}
        files += found
    return files, skipped


def _below(folder: Path, left_out: Sequence[Path]) -> tuple[list[SourceFile], list[dict[str, str]]]:
    """The regular files below a folder, and what else there is; links to folders are not followed."""
    files: list[Path] = []
    skipped: list[tuple[Path, str]] = []

    def unreadable(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise RequestError(f"{folder}: the folder cannot be read: {error.strerror}")
        skipped.append((Path(error.filename), f"a folder that cannot be read: {error.strerror}"))

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        here = Path(parent)
        folders[:] = [name for name in folders if not name.startswith(".")]
        skipped += [(here / name, "a link to a folder") for name in folders if (here / name).is_symlink()]
        for path in (here / name for name in names if not name.startswith(".")):
            if not path.exists():
                skipped.append((path, "a link to nothing"))
            elif not path.is_file():
                skipped.append((path, "no regular file"))
            elif any(is_same_file(path, other) for other in left_out):
                skipped.append((path, "an output of this import"))
            else:
                files.append(path)
    root = folder.resolve().name

    def name(path: Path) -> str:
        return _text(f"{root}/{path.relative_to(folder).as_posix()}")

    found = [SourceFile(path, name(path), False) for path in sorted(files)]
    return found, [{"path": name(path), "reason": reason} for path, reason in sorted(skipped)]


def _text(name: str) -> str:
    r"""A file name as text: its bytes that are not UTF-8 stand as \xff, so that no two names become one."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _that_can_be_read(skipped: list[dict[str, str]]) -> str:
    return f" to read; skipped: {skipped[0]['path']}: {skipped[0]['reason']}" if skipped else ""


def units_of(file: SourceFile, chosen: Format | None) -> Iterator[Unit]:
    """One unit, or several for a large file of lines. A file that cannot be read is one: a worker will say so."""
    size = _size(file.path)
    if size <= UNIT_BYTES or not _can_be_cut(file.path, chosen):
        yield Unit(file)
        return
    with open(file.path, "rb") as opened:
        start, number = 0, 1
        while start < size and (read := opened.read(UNIT_BYTES) + opened.readline()):
            yield Unit(file, start, opened.tell(), number)
            start, number = opened.tell(), number + read.count(b"\n")


def _size(path: Path) -> int:
    """In bytes; 0 for a file that has vanished."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _can_be_cut(path: Path, chosen: Format | None) -> bool:
    try:
        head = look(path)
    except (DamagedError, OSError):
        return False
    known = chosen or detect(head)
    return head.layout == "lines" and known is not None and not known.whole


def shard_of(units: Sequence[Unit], shard: tuple[int, int]) -> list[Unit]:
    """The units that begin in the i-th of n equal parts of all bytes."""
    index, count = shard
    sizes = [(unit.end - unit.start) if unit.end is not None else _size(unit.file.path) for unit in units]
    total, place, chosen = max(1, sum(sizes)), 0, []
    for unit, size in zip(units, sizes, strict=True):
        if min(place * count // total, count - 1) == index:  # empty files at the end belong to the last
            chosen.append(unit)
        place += size
    return chosen
