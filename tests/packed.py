"""Packing of a few documents, with rows as plain lists."""

from collections.abc import Iterable

from agentworld.data.packing import PackedRow, Packer, PackingCount
from agentworld.data.render import Rendered


def pack(documents: Iterable[Rendered], row_tokens: int, splits: bool) -> tuple[list[PackedRow], PackingCount]:
    packer = Packer(row_tokens, splits)
    packer.add_all(documents)
    rows = [PackedRow(*(column.tolist() for column in vars(row).values())) for row in packer.rows()]
    return rows, packer.count
