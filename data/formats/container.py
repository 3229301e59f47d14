"""Files as records: one JSON object, the elements of an array, the lines of JSON Lines, a stream of JSON values that
follow each other without lines, or a text.

Memory is flat in the size of all but an object and a text, which are read whole. Damage is told record by record: what
stands before a cut is kept, and what follows a damaged element whose brackets close.
"""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.data.formats.format import Head, Rejected

HEAD_CHARACTERS = 65_536
CHUNK_CHARACTERS = 1 << 20
PROBED_LINES, PROBED_BYTES = 20, 1 << 20  # of a file whose first two lines are no JSON
BLANKS = " \t\r\n"
# A string that the text cuts reaches to its end: no bracket in it counts.
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


class DamagedError(ContentError):
    """A file or a record that cannot be read as what it seems to be."""


@dataclass(frozen=True)
class Record:
    """`where` is ":line" in JSON Lines, "[index]" in an array or among values, "" for a whole file."""

    where: str
    value: Any


def look(path: Path) -> Head:
    """The head of a file.

    Raises:
        DamagedError: empty, not UTF-8, or JSON that is damaged before its first record ends.
        OSError: the file cannot be read.
    """
    raw, text = _head(path)
    opening = text.lstrip(BLANKS)[:1]
    if opening not in ("{", "["):
        _decoded(raw)
        return Head("text", None, text)
    first, second = _two_lines(path)
    if second and _is_json(first):
        return Head("lines", _parse(first), text)
    if opening == "{" and second and _is_json(second):
        return Head("lines", _parse(second), text)
    if opening == "{" and _another_follows(text):
        return Head("stream", _first(path, in_array=False), text)
    if opening == "{" and (later := _later_line(path)) is not None:
        return Head("lines", later, text)
    if opening == "[":
        return Head("array", _first(path, in_array=True), text)
    try:
        return Head("object", _parse(path.read_bytes()), text)
    except DamagedError as error:
        try:
            return Head("stream", _first(path, in_array=False), text)
        except DamagedError:
            raise error from None


def records(path: Path, head: Head) -> Iterator[Record | Rejected]:
    """The records of a file that `look` has seen, in order, and what is damaged between them."""
    try:
        if head.layout == "text":
            yield Record("", _decoded(path.read_bytes(), final=True))
        elif head.layout == "object":
            yield Record("", head.first)
        elif head.layout == "lines":
            yield from lines(path)
        else:
            yield from _values(path, in_array=head.layout == "array")
    except DamagedError as error:  # in the middle: the values before it were given out
        yield Rejected("", str(error))


def lines(path: Path, start: int = 0, end: int | None = None, number: int = 1) -> Iterator[Record | Rejected]:
    """The JSON values of the lines that begin in bytes [start, end); `number` is that of the line at `start`."""
    with open(path, "rb") as file:
        file.seek(start)
        while end is None or file.tell() < end:
            raw = file.readline()
            if not raw:
                return
            try:
                yield Record(f":{number}", _parse(raw))
            except DamagedError as error:
                yield Rejected(f":{number}", str(error))
            number += 1


def _first(path: Path, in_array: bool) -> Any:
    """The first value that can be read, of the first ones: by it the format of the file is recognised.

    Raises:
        DamagedError: there is none.
    """
    damaged = None
    for value in islice(_values(path, in_array), PROBED_LINES):
        if isinstance(value, Record):
            return value.value
        damaged = damaged or value.reason
    raise DamagedError(damaged or "the array is empty")


def _another_follows(text: str) -> bool:
    """Whether a second object begins where the first one ends."""
    try:
        end = json.JSONDecoder().raw_decode(text, _skip(text, 0, BLANKS))[1]
    except (RecursionError, ValueError):
        return False
    return text[_skip(text, end, BLANKS) :][:1] == "{"


def _values(path: Path, in_array: bool) -> Iterator[Record | Rejected]:
    """The elements of the one array of a file, or the values that stand one after another in it, decoded one at a time
    from a buffer that grows to one value. A damaged one is rejected; where its brackets do not close, so is the rest.

    Raises:
        DamagedError: the rest of the file is lost.
    """
    kind, separators, ends = ("element", BLANKS + ",", ",]") if in_array else ("value", BLANKS, "{")
    with open(path, encoding="utf-8-sig", newline="") as file:
        buffer, index = _read(file, CHUNK_CHARACTERS), 0
        while not buffer.strip(BLANKS) and (more := _read(file, CHUNK_CHARACTERS)):
            buffer += more
        place = _skip(buffer, 0, BLANKS) + in_array
        while True:
            place = _skip(buffer, place, separators if index else BLANKS)
            if in_array and buffer[place : place + 1] == "]":
                break
            value, end, problem = _value(buffer, place)
            after = len(buffer) if end is None else _skip(buffer, end, BLANKS)
            may_go_on = isinstance(value, int | float) and buffer[after : after + 1] not in (",", "]")  # 1.5 of 1.5e3
            if (after == len(buffer) or may_go_on) and (
                more := _read(file, max(CHUNK_CHARACTERS, len(buffer) - place))
            ):
                buffer, place = buffer[place:] + more, 0
                continue
            if place == len(buffer):
                if in_array:
                    raise DamagedError(f"the array does not end after {index} elements (a truncated file?)")
                return
            is_followed_well = buffer[after : after + 1] in ends  # as the end of the file is
            if end is None or (problem and not is_followed_well):
                raise DamagedError(f"{problem}, in {kind} {index}; what follows is lost (a truncated file?)")
            yield Rejected(f"[{index}]", problem) if problem else Record(f"[{index}]", value)
            place, index = end, index + 1
            if in_array and not is_followed_well:
                raise DamagedError(f"not JSON after {index} elements: no comma and no end of the array")
        rest = buffer[place + 1 :]
        while rest:
            if rest.strip(BLANKS):
                raise DamagedError("text after the array")
            rest = _read(file, CHUNK_CHARACTERS)


def _value(text: str, place: int) -> tuple[Any, int | None, str]:
    """The JSON value at a place, where it ends, and why it cannot be read if so; the end is None where the text may be
    cut inside of it."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, place)
        return value, end, ""
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg.removesuffix(' at')}"
    except RecursionError:
        problem = "nested too deep to be read"
    except ValueError as error:  # an integer of thousands of digits
        problem = f"cannot be read: {error}"
    return None, _end_of_damaged(text, place), problem


def _end_of_damaged(text: str, place: int) -> int | None:
    """Where the brackets of a damaged object or array close; None where they do not in this text."""
    depth = 0
    if text[place : place + 1] not in ("{", "["):
        return None
    for found in _STRINGS_AND_BRACKETS.finditer(text, place):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


def _skip(text: str, place: int, characters: str) -> int:
    while text[place : place + 1] in characters and place < len(text):
        place += 1
    return place


def _head(path: Path) -> tuple[bytes, str]:
    with open(path, "rb") as file:
        raw = file.read(4 * HEAD_CHARACTERS)
    if not raw.strip():
        raise DamagedError("the file is empty")
    if raw[:2] == b"\x1f\x8b":
        raise DamagedError("compressed by gzip; unpack it, for example with gunzip")
    if raw[:4] == b"PAR1":
        raise DamagedError("Parquet, which is no log; `agentworld show` reads trajectories in it")
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DamagedError("UTF-16; convert it, for example with iconv -f utf-16 -t utf-8")
    return raw, codecs.getincrementaldecoder("utf-8-sig")("replace").decode(raw)[:HEAD_CHARACTERS]


def _two_lines(path: Path) -> tuple[bytes, bytes]:
    """The first two lines that are not blank."""
    found = []
    with open(path, "rb") as file:
        for raw in file:
            if raw.strip():
                found.append(raw)
            if len(found) == 2:
                break
    return (*found, b"", b"")[:2]


def _later_line(path: Path) -> Any:
    """The first object that is a whole line among the first lines of a file that is damaged before it; None where there
    is none, or where that line stands inside of a larger object."""
    with open(path, "rb") as file:
        text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(file.read(PROBED_BYTES))
    start, seen = 0, 0
    for line in text.split("\n"):
        seen += bool(line.strip())
        if seen > PROBED_LINES:
            return None
        if line[:1] == "{" and _is_json(line.encode()):
            return _parse(line.encode()) if _end_of_first(text) <= start else None
        start += len(line) + 1
    return None


def _end_of_first(text: str) -> int:
    """Where the first JSON value ends, or is damaged."""
    try:
        return json.JSONDecoder().raw_decode(text, _skip(text, 0, BLANKS))[1]
    except json.JSONDecodeError as error:
        return error.pos
    except (RecursionError, ValueError):
        return 0


def _decoded(raw: bytes, final: bool = False) -> str:
    """Raises DamagedError for bytes that are not UTF-8; a character cut at the end is one only if `final`."""
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final)
    except UnicodeDecodeError as error:
        raise DamagedError(_not_utf8(error)) from None


def _parse(raw: bytes) -> Any:
    text = _decoded(raw, final=True)
    if not text.strip():
        raise DamagedError("blank line")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise DamagedError(f"more than one JSON value on the line, the second at column {error.colno}") from None
        place = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise DamagedError(f"not JSON: {error.msg.removesuffix(' at')} at {place} (truncated?)") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or an integer of thousands of digits
        raise DamagedError(f"not JSON that can be read: {error}") from None


def _is_json(raw: bytes) -> bool:
    try:
        _parse(raw)
    except DamagedError:
        return False
    return True


def _read(file: Any, characters: int) -> str:
    try:
        return file.read(characters)
    except UnicodeDecodeError as error:
        raise DamagedError(_not_utf8(error)) from None


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 at byte {error.start}; convert it, for example with iconv -f latin1 -t utf8"
