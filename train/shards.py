"""Hugging Face safetensors shards, written by several ranks at once from tensors that never stand in memory together.

The library's `save_file` wants every tensor of a file at once. Here the header of a shard is written from shapes, then
one tensor after the other (format: github.com/huggingface/safetensors, README, "Format"), and the SHA-256 of the file
is taken from the same bytes while they are written, so that no shard is read again to be hashed.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from transformers.modeling_utils import str_to_torch_dtype

SHARD_BYTES = 4 << 30
INDEX = "model.safetensors.index.json"
DTYPE_NAMES = {dtype: name for name, dtype in str_to_torch_dtype.items()}
Digest = dict[str, int | str]  # {"bytes": int, "sha256": hex}, as in handoff.json


@dataclass(frozen=True)
class Entry:
    """One tensor of an export, known by name and shape before its values are gathered."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fetch: Callable[[int], torch.Tensor | None]  # collective; argument: the writing rank, which gets the whole tensor
    # on the CPU; the other ranks get None and keep nothing

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def total_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of all tensors, headers left out."""
    return sum(entry.bytes for entry in entries)


def write(entries: Sequence[Entry], directory: Path, shard_bytes: int = SHARD_BYTES) -> dict[str, Digest]:
    """Write `entries` and their index into `directory`, which every rank sees; collective.

    Shard i is written by rank i modulo the number of ranks. The ranks take one tensor of each of their shards in turn,
    so that all write at the same time, and the first rank writes the index when every shard is on the disk.

    Args:
        shard_bytes: a shard holds at most so many bytes of tensors, or one tensor.

    Returns:
        On every rank, size and SHA-256 of each shard by file name.
    """
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    shards = _divide(entries, shard_bytes)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    _barrier()  # the first rank has made the directory
    digests: dict[str, Digest] = {}
    for first in range(0, len(shards), world):
        own = names[first + rank] if first + rank < len(shards) else None
        found = _write_group(shards[first : first + world], rank, directory / own if own else None)
        if own and found:
            digests[own] = found
    digests = _of_all_ranks(digests)
    if rank == 0:
        weight_map = {entry.name: name for name, shard in zip(names, shards, strict=True) for entry in shard}
        index = {"metadata": {"total_size": total_bytes(entries)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1))
    return digests


def _divide(entries: Sequence[Entry], shard_bytes: int) -> list[list[Entry]]:
    """Entries in order, each shard as full as the limit allows; wider dtypes first within a shard, which keeps every
    tensor aligned."""
    shards: list[list[Entry]] = []
    size = 0
    for entry in entries:
        if not shards or size + entry.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.bytes
    return [sorted(shard, key=lambda entry: -entry.dtype.itemsize) for shard in shards]


def _write_group(group: Sequence[Sequence[Entry]], rank: int, path: Path | None) -> Digest | None:
    """One shard on each rank; `path` is None on the ranks that have none and only help to gather."""
    with ExitStack() as stack:
        shard = _ShardFile(stack.enter_context(open(path, "wb")), group[rank]) if path else None
        for writer, entry in _in_turn(group):
            if shard is not None and writer == rank:
                shard.wait()  # the tensor before is written and dropped: one is held at a time
                tensor = entry.fetch(writer)
                assert tensor is not None, entry.name
                shard.add(tensor)
                del tensor
            else:
                entry.fetch(writer)
        return shard.close() if shard is not None else None


def _in_turn(group: Sequence[Sequence[Entry]]) -> Iterator[tuple[int, Entry]]:
    """(writing rank, entry): the first entry of each shard, then the second of each, and so on."""
    for entries in zip_longest(*group):
        yield from ((writer, entry) for writer, entry in enumerate(entries) if entry is not None)


class _ShardFile:
    """A safetensors file that is written one tensor after the other; writing and hashing run beside the caller."""

    def __init__(self, file: BinaryIO, entries: Sequence[Entry]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._pool = ThreadPoolExecutor(2)
        self._pending: list[Future[None]] = []
        self._expected = iter(entries)
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for entry in entries:
            place = [offset, offset + entry.bytes]
            header[entry.name] = {"dtype": DTYPE_NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
            offset += entry.bytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        for part in (len(text).to_bytes(8, "little"), text):
            self._file.write(part)
            self._hash.update(part)

    def add(self, tensor: torch.Tensor) -> None:
        """Take the next tensor; it is let go when `wait` returns."""
        entry = next(self._expected)
        assert (tuple(tensor.shape), tensor.dtype) == (entry.shape, entry.dtype), entry.name
        values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        # In boxes that the threads empty: a thread may keep its arguments for a moment after its result is known.
        self._pending = [self._pool.submit(work, [values]) for work in (self._write_values, self._hash_values)]

    def wait(self) -> None:
        for future in self._pending:
            future.result()
        self._pending = []

    def close(self) -> Digest:
        """Bring the file to the disk and return its size and hash."""
        self.wait()
        assert next(self._expected, None) is None, "a tensor of the shard was not written"
        self._pool.shutdown()
        size = self._file.tell()
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": size, "sha256": self._hash.hexdigest()}

    def _write_values(self, box: list) -> None:
        self._file.write(box.pop())

    def _hash_values(self, box: list) -> None:
        self._hash.update(box.pop())


def _of_all_ranks(digests: dict[str, Digest]) -> dict[str, Digest]:
    if not dist.is_initialized():
        return digests
    parts: list[dict[str, Digest]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, digests)
    return {name: digest for part in parts for name, digest in part.items()}


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
