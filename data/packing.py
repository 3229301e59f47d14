"""Packing documents into rows of three columns for the padding-free collator of `trl.SFTTrainer`.

The collator makes one attention segment of each entry of `seq_lengths` and takes no loss from a segment's first token,
which no token of its segment predicts (trl 1.16.0 trl/trainer/sft_trainer.py:208). The labels here say so already, and
a label that is lost that way is counted.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentworld.data.render import IGNORED_LABEL, Rendered


@dataclass(frozen=True)
class PackedRow:
    """`input_ids` and `labels` have one length, at most the row's; `seq_lengths` adds up to it."""

    input_ids: list[int]
    labels: list[int]
    seq_lengths: list[int]


@dataclass(frozen=True)
class PackingCount:
    """What became of the documents; packed + dropped = given, in documents and in tokens.

    A split document counts as packed when one of its pieces is. `trained_tokens` of the packed tokens carry loss.
    `labels_lost` packed tokens would have carried loss but start a piece.
    """

    rows: int
    row_tokens: int
    documents: int
    tokens: int
    trained_tokens: int
    dropped_documents: int
    dropped_too_long: int  # of dropped_documents: longer than a row (pack_whole)
    dropped_untrained: int  # of dropped_documents: no token that carries loss
    dropped_tokens: int
    dropped_trained_tokens: int  # of dropped_tokens: would have carried loss
    labels_lost: int

    @property
    def fill(self) -> float:
        """Share of the rows' tokens in use; 0 without rows."""
        return self.tokens / (self.rows * self.row_tokens) if self.rows else 0.0


def pack_splitting(documents: Iterable[Rendered], row_tokens: int) -> tuple[list[PackedRow], PackingCount]:
    """Pack for CPT: a document longer than a row is cut into pieces, each of which is a segment of its own.

    A piece in which nothing carries loss is dropped and counted: the other pieces do not see it.
    """
    return _pack([_cut(document, row_tokens) for document in documents], row_tokens)


def pack_whole(documents: Iterable[Rendered], row_tokens: int) -> tuple[list[PackedRow], PackingCount]:
    """Pack for SFT: no document is cut; one that is longer than a row is dropped and counted."""
    return _pack([[document] for document in documents], row_tokens)


def _cut(document: Rendered, row_tokens: int) -> list[Rendered]:
    """Pieces of `row_tokens` and a rest. A rest of one token could not be trained, and it is the end id: it takes a
    second token from the piece before."""
    size = len(document.input_ids)
    cuts = [*range(0, size, row_tokens), size]
    if size > row_tokens and size % row_tokens == 1:
        cuts[-2] -= 1
    return [Rendered(document.input_ids[a:b], document.trained[a:b]) for a, b in pairwise(cuts)]


def _pack(pieces_of: Sequence[list[Rendered]], row_tokens: int) -> tuple[list[PackedRow], PackingCount]:
    assert row_tokens >= 2, f"a row of {row_tokens} tokens predicts nothing"
    packed: list[Rendered] = []
    dropped: list[Rendered] = []
    documents = too_long = 0
    for pieces in pieces_of:
        kept = [p for p in pieces if len(p.input_ids) <= row_tokens and any(p.trained[1:])]
        packed += kept
        dropped += [p for p in pieces if len(p.input_ids) > row_tokens or not any(p.trained[1:])]
        documents += bool(kept)
        too_long += any(len(p.input_ids) > row_tokens for p in pieces)
    rows = [_row(row) for row in _best_fit(packed, row_tokens)]
    dropped_documents = len(pieces_of) - documents
    return rows, PackingCount(
        rows=len(rows),
        row_tokens=row_tokens,
        documents=documents,
        tokens=sum(len(p.input_ids) for p in packed),
        trained_tokens=sum(sum(p.trained[1:]) for p in packed),
        dropped_documents=dropped_documents,
        dropped_too_long=too_long,
        dropped_untrained=dropped_documents - too_long,
        dropped_tokens=sum(len(p.input_ids) for p in dropped),
        dropped_trained_tokens=sum(sum(p.trained) for p in dropped),
        labels_lost=sum(p.trained[0] for p in packed),
    )


def _best_fit(pieces: list[Rendered], row_tokens: int) -> list[list[Rendered]]:
    """Best-fit decreasing: the longest piece first, each into the fullest row that has room (ties: the oldest row).

    Rows come in the order in which they were opened, so long pieces come first: training has to shuffle the rows.
    """
    rows: list[list[Rendered]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for piece in sorted(pieces, key=lambda p: -len(p.input_ids)):  # stable: ties stay in the given order
        size = len(piece.input_ids)
        at = bisect_left(free, (size, 0))
        if at < len(free):
            left, row = free.pop(at)
        else:
            left, row = row_tokens, len(rows)
            rows.append([])
        rows[row].append(piece)
        if left > size:
            insort(free, (left - size, row))
    return rows


def _row(pieces: list[Rendered]) -> PackedRow:
    input_ids: list[int] = []
    labels: list[int] = []
    for piece in pieces:
        input_ids += piece.input_ids
        labels += [IGNORED_LABEL, *piece.labels[1:]]
    return PackedRow(input_ids, labels, [len(piece.input_ids) for piece in pieces])
