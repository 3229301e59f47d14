"""Files that a command writes: refused before any work where they cannot be written or would replace what is read, and
put in their place when they are whole."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agentworld.data.errors import RequestError


def require_outputs(outputs: Mapping[str, Path], inputs: Iterable[Path]) -> None:
    """Refuse what could not end well. An output is written beside its place and moved there, so a device, a pipe or
    another file of that name would be gone.

    Args:
        outputs: flag -> file.
        inputs: files and folders that are read.

    Raises:
        RequestError: naming the flag and the way out.
    """
    named: dict[str, Path] = {}
    inputs = list(inputs)
    for flag, path in outputs.items():
        folder = path.absolute().parent
        if path.is_dir():
            raise RequestError(f"{flag} {path}: a folder; name a file")
        if path.exists() and not path.is_file():
            raise RequestError(f"{flag} {path}: not a regular file; the output replaces what it names")
        if not folder.is_dir():
            raise RequestError(f"{flag} {path}: the folder {folder} does not exist; make it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise RequestError(f"{flag} {path}: the folder {folder} cannot be written")
        for other in inputs:
            if is_same_file(path, other):
                raise RequestError(f"{flag} {path}: the input {other} itself, which would be replaced; name another")
        for earlier, other in named.items():
            if is_same_file(path, other):
                raise RequestError(f"{earlier} and {flag} are one file, {path}; name two")
        named[flag] = path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write; it is moved there when the block ends well, so a reader never finds half of it."""
    temporary = path.parent / f".{path.name}.tmp-{os.getpid()}"
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, by whatever names; one that is not there yet is the same as its own path."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one.resolve() == other.resolve()
