"""The working folder of an import: the parts that are finished, what they were made from, and who works there.

It lies beside the output, hidden, one for each output name. A part is finished when its `.json` is there: it is
written last, and holds the count of the part and the sizes and hashes of its files. An import that ends well, or whose
content cannot be used, leaves nothing; one that was killed or interrupted leaves its finished parts, and `--resume`
goes on with them if `plan.json` says that they were made from the same files, by the same version, with the same flags.
"""

import errno
import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.import_report import COUNTERS, FileCount
from agentworld.data.import_units import SourceFile

PREFIX = ".agentworld-import-"
PLAN, LOCK = "plan.json", "lock"
SUFFIXES = ("", ".places", ".ids")  # the files of a part: trajectories, where each stood, hashes of the ids


class HashedFile:
    """A file that is written from its beginning, and the hash of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake2b(digest_size=16)
        self._size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def facts(self) -> list[Any]:
        return [self._size, self._digest.hexdigest()]


@dataclass(frozen=True)
class Work:
    """`finished`: the numbers of the parts that an earlier start left whole."""

    folder: Path
    finished: frozenset[int]

    def part(self, number: int) -> Path:
        return self.folder / f"{number:06}"


def make_plan(out: Path, files: Sequence[SourceFile], flags: dict[str, str], unit_bytes: int) -> dict[str, Any]:
    """What the parts depend on. A file is known by its name, its size and the time of its last change."""
    seen = []
    for file in files:
        try:
            status = file.path.stat()
            seen.append([file.name, status.st_size, status.st_mtime_ns])
        except OSError:  # it vanished: a worker will say so
            seen.append([file.name, None, None])
    made_by = {"agentworld": version("agentworld"), "part": unit_bytes}
    return {"out": out.name, "made_by": made_by, "flags": flags, "files": seen}


@contextmanager
def working_folder(
    out: Path, plan: dict[str, Any], parts: int, resume: bool, say: Callable[[str], None]
) -> Iterator[Work]:
    """The folder for the parts of `out`, locked, and removed at the end unless there is something to resume.

    Raises:
        RequestError: another import writes this output, or under `resume` the plan is another one.
    """
    folder = out.parent / (PREFIX + blake2b(os.fsencode(out.name), digest_size=6).hexdigest())
    with _locked(folder, out, say):
        finished = _left_by_a_stopped_import(folder, plan, parts) if resume else frozenset()
        if not finished:
            _clear(folder, say)
            _write_whole(folder / PLAN, json.dumps(plan))
        else:
            say(f"import: goes on with {len(finished)} of {parts} parts finished")
        try:
            yield Work(folder, finished)
        except (ContentError, RequestError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException:
            done = len(list(folder.glob("*[0-9].json")))
            if done == 0:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                say(f"import: {done} of {parts} parts are kept in {folder}; the same command with --resume goes on")
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the folder and hold its lock, which the system gives back when this process dies, however it dies."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            file = open(folder / LOCK, "a")  # noqa: SIM115 (held while the import runs)
        except FileNotFoundError:  # the one who had it has just removed the folder
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.close()
                raise RequestError(f"--out {out}: another import that runs now writes this file") from None
            say(f"import: {folder.parent} has no file locks ({error.strerror}): run no other import to {out.name} now")
        if _is_there(folder / LOCK, file):
            break
        file.close()
    try:
        yield
    finally:
        file.close()


def _is_there(path: Path, file: Any) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _clear(folder: Path, say: Callable[[str], None]) -> None:
    """Remove all but the lock."""
    left = [path for path in folder.iterdir() if path.name != LOCK]
    if any(path.suffix == ".json" and path.name != PLAN for path in left):
        say("import: removes what a stopped import to this output left, and starts anew")
    for path in left:
        path.unlink()


def _left_by_a_stopped_import(folder: Path, plan: dict[str, Any], parts: int) -> frozenset[int]:
    try:
        stored = json.loads((folder / PLAN).read_text())
    except (FileNotFoundError, ValueError):  # it was stopped before its first part
        return frozenset()
    if not isinstance(stored, dict) or stored.keys() != plan.keys():
        raise RequestError(f"--resume: {folder / PLAN} is of another version; without --resume the import starts anew")
    if (reason := _difference(stored, json.loads(json.dumps(plan)))) is not None:
        raise RequestError(f"--resume: {reason}; without --resume the import starts anew")
    return frozenset(number for number in range(parts) if _is_whole(folder / f"{number:06}"))


def _difference(stored: dict[str, Any], plan: dict[str, Any]) -> str | None:
    """Why the parts of one plan are of no use to the other; None if they are."""
    if stored["made_by"] != plan["made_by"]:
        return f"the stopped import was made by another version, {stored['made_by']}, this is {plan['made_by']}"
    for name, value in plan["flags"].items():
        if stored["flags"].get(name) != value:
            return f"the stopped import had {name} {stored['flags'].get(name)}, this one has {name} {value}"
    before, now = ({name: facts for name, *facts in files} for files in (stored["files"], plan["files"]))
    for name in [*before, *now]:
        if name not in now:
            return f"{name} is gone since the stopped import"
        if name not in before:
            return f"{name} is new since the stopped import"
        if before[name] != now[name]:
            return f"{name} has changed since the stopped import"
    return None if list(before) == list(now) else "the paths are in another order than in the stopped import"


def finish_part(part: Path, count: FileCount, files: dict[str, HashedFile]) -> None:
    """Tell, after its files are closed, that a part is whole."""
    content = {"count": vars(count), "files": {suffix: files[suffix].facts() for suffix in SUFFIXES}}
    _write_whole(part.with_name(part.name + ".json"), json.dumps(content))


def count_of(part: Path) -> FileCount:
    """The count of a finished part."""
    stored = json.loads(part.with_name(part.name + ".json").read_text())["count"]
    return FileCount(**stored | {name: Counter(stored[name]) for name in COUNTERS})


def _is_whole(part: Path) -> bool:
    try:
        count_of(part)
        stored = json.loads(part.with_name(part.name + ".json").read_text())["files"]
        return all(_facts(Path(f"{part}{suffix}")) == stored[suffix] for suffix in SUFFIXES)
    except (OSError, ValueError, KeyError, TypeError):  # not there, or cut by a crash of the machine: it is made again
        return False


def _facts(path: Path) -> list[Any]:
    digest = blake2b(digest_size=16)
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
        return [file.tell(), digest.hexdigest()]


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)
