"""The parts of an import become its output: of trajectories with one id the first is kept, the others are counted."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentworld.data import cleaning
from agentworld.data.import_report import FileCount
from agentworld.data.schema import from_dict
from agentworld.data.trajectory_files import is_parquet_name, open_writer

Repeated = Mapping[int, Collection[int]]  # by part, the lines (from 0) whose id an earlier line has


def repeated_ids(parts: Sequence[Path]) -> dict[int, set[int]]:
    """By part, the lines (from 0) whose id an earlier line has, in this part or in one before it."""
    ids = [np.frombuffer(Path(f"{part}.ids").read_bytes(), dtype=[("a", "<u8"), ("b", "<u8")]) for part in parts]
    ends = np.cumsum([len(of_part) for of_part in ids])
    joined = np.concatenate(ids) if ids else np.empty(0, dtype=[("a", "<u8"), ("b", "<u8")])
    order = np.lexsort((joined["b"], joined["a"]))  # stable: the first of equal ids stays first
    again = np.flatnonzero(joined[order][1:] == joined[order][:-1]) + 1
    repeated: dict[int, set[int]] = {}
    for place in np.sort(order[again]):
        number = int(np.searchsorted(ends, place, side="right"))
        repeated.setdefault(number, set()).add(int(place - (ends[number] - len(ids[number]))))
    return repeated


def count_repeated(part: Path, repeated: Collection[int], count: FileCount) -> None:
    """Count the lines of a part that are left out: more rejected, less kept; `read` has them already."""
    with open(part, "rb") as lines, open(f"{part}.places") as places:
        for number, (line, where) in enumerate(zip(lines, places, strict=True)):
            if number not in repeated:
                continue
            row = json.loads(line)
            count.reject(json.loads(where), f"an earlier trajectory has the id {row['id']!r}")
            count.read -= 1
            count.kept -= 1
            count.turns -= len(row["turns"])
            count.turns_removed[cleaning.OF_REJECTED] += len(row["turns"])


def join(parts: Sequence[Path], repeated: Repeated, whole: Path) -> dict[str, Any]:
    """Write the parts to `whole`, in order and in the format of its name, to the disk; returns its size and hash."""
    if is_parquet_name(whole):
        with open_writer(whole) as writer:
            for number, part in enumerate(parts):
                for line in _lines(part, repeated.get(number, ())):
                    writer.write(from_dict(json.loads(line)))
    else:
        with open(whole, "wb") as joined:
            for number, part in enumerate(parts):
                if number in repeated:
                    joined.writelines(_lines(part, repeated[number]))
                    continue
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined, 1 << 20)
    with open(whole, "rb") as file:
        os.fsync(file.fileno())
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": sha256}


def _lines(part: Path, left_out: Collection[int]) -> Iterator[bytes]:
    with open(part, "rb") as lines:
        for number, line in enumerate(lines):
            if number not in left_out:
                yield line
