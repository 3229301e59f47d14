"""Packing documents into rows of three columns for the padding-free collator of `trl.SFTTrainer`.

The collator makes one attention segment of each entry of `seq_lengths` and takes no loss from a segment's first token,
which no token of its segment predicts (trl 1.16.0 trl/trainer/sft_trainer.py:208). The labels here say so already, and
a label that is lost that way is counted.

Documents come as a stream and lie in a temporary file until it is known which row each belongs to: memory is some tens
of bytes a piece, whatever the number of tokens.
"""

import tempfile
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentworld.data.render import IGNORED_LABEL, Rendered


@dataclass(frozen=True)
class PackedRow:
    """Three int32 arrays: `input_ids` and `labels` have one length, at most the row's; `seq_lengths` adds up to it."""

    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    seq_lengths: npt.NDArray[np.int32]


@dataclass
class PackingCount:
    """What became of the documents; packed + dropped = given, in documents and in tokens.

    A split document counts as packed when one of its pieces is. `trained_tokens` of the packed tokens carry loss.
    `labels_lost` packed tokens would have carried loss but start a piece. `shortest_tokens`: of the documents given, 0
    without any.
    """

    row_tokens: int
    rows: int = 0
    documents: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    dropped_documents: int = 0
    dropped_too_long: int = 0  # of dropped_documents: longer than a row (whole packing)
    dropped_untrained: int = 0  # of dropped_documents: no token that carries loss
    dropped_tokens: int = 0
    dropped_trained_tokens: int = 0  # of dropped_tokens: would have carried loss
    labels_lost: int = 0
    shortest_tokens: int = 0

    @property
    def fill(self) -> float:
        """Share of the rows' tokens in use; 0 without rows."""
        return self.tokens / (self.rows * self.row_tokens) if self.rows else 0.0

    @property
    def given(self) -> int:
        """Documents."""
        return self.documents + self.dropped_documents

    @property
    def given_tokens(self) -> int:
        return self.tokens + self.dropped_tokens

    @property
    def given_trained_tokens(self) -> int:
        return self.trained_tokens + self.labels_lost + self.dropped_trained_tokens


class Packer:
    """Add documents, then take the rows once; `count` is complete when the rows are taken.

    Args:
        splits: whether a document longer than a row is cut into pieces, each of which is a segment of its own (CPT);
            a piece in which nothing carries loss is dropped and counted: the other pieces do not see it. Otherwise
            (SFT) a document that is too long is dropped and counted.
        scratch: folder of the temporary file of 5 bytes a token; None = the system's (TMPDIR).
    """

    def __init__(self, row_tokens: int, splits: bool, scratch: Path | None = None) -> None:
        assert row_tokens >= 2, f"a row of {row_tokens} tokens predicts nothing"
        self.count = PackingCount(row_tokens)
        self._splits = splits
        self._spool = _Spool(scratch)

    def add(self, document: Rendered) -> None:
        """Take in one document."""
        ids, trained = np.asarray(document.input_ids, np.int32), np.asarray(document.trained, np.bool_)
        count, packed = self.count, 0
        too_long = not self._splits and len(ids) > count.row_tokens
        for start, end in pairwise(_cuts(len(ids), count.row_tokens) if self._splits else (0, len(ids))):
            carries = int(np.count_nonzero(trained[start:end]))
            lost = int(trained[start]) if end > start else 0
            if too_long or carries == lost:
                count.dropped_tokens += end - start
                count.dropped_trained_tokens += carries
                continue
            packed += 1
            count.tokens += end - start
            count.trained_tokens += carries - lost
            count.labels_lost += lost
            self._spool.write(ids[start:end], trained[start:end])
        count.shortest_tokens = min(len(ids), count.shortest_tokens) if count.given else len(ids)
        count.documents += packed > 0
        count.dropped_documents += packed == 0
        count.dropped_too_long += too_long
        count.dropped_untrained += packed == 0 and not too_long

    def add_all(self, documents: Iterable[Rendered]) -> None:
        """Take in documents as they come."""
        for document in documents:
            self.add(document)

    def rows(self) -> Iterator[PackedRow]:
        """The rows, read from the temporary file, which then is gone.

        They come in the order in which they were opened, so long pieces come first: training has to shuffle them.
        """
        rows = best_fit(self._spool.lengths, self.count.row_tokens)
        self.count.rows = len(rows)
        for pieces in rows:
            yield self._row(pieces)
        self._spool.close()

    def _row(self, pieces: Sequence[int]) -> PackedRow:
        input_ids, labels = [], []
        for piece in pieces:
            ids, trained = self._spool.read(piece)
            label = np.where(trained, ids, np.int32(IGNORED_LABEL))
            label[0] = IGNORED_LABEL
            input_ids.append(ids)
            labels.append(label)
        lengths = np.array([len(ids) for ids in input_ids], np.int32)
        return PackedRow(np.concatenate(input_ids), np.concatenate(labels), lengths)


def best_fit(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Best-fit decreasing: the longest piece first, each into the fullest row that has room (ties: the oldest row).

    Args:
        lengths: tokens of each piece, at most `row_tokens`.

    Returns:
        The pieces of each row, by their index in `lengths`.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):  # stable: ties in the given order
        size = lengths[piece]
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


def _cuts(size: int, row_tokens: int) -> list[int]:
    """Where pieces of `row_tokens` and a rest begin, and the end. A rest of one token could not be trained, and it is
    the end id: it takes a second token from the piece before."""
    cuts = [*range(0, size, row_tokens), size]
    if size > row_tokens and size % row_tokens == 1:
        cuts[-2] -= 1
    return cuts


class _Spool:
    """Pieces in a temporary file without a name: ids as int32, then a byte a token that says whether it is trained."""

    def __init__(self, directory: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (open as long as this object lives)
        self._offsets: list[int] = []
        self.lengths: list[int] = []

    def write(self, ids: npt.NDArray[np.int32], trained: npt.NDArray[np.bool_]) -> None:
        self._offsets.append(self._file.tell())
        self.lengths.append(len(ids))
        self._file.write(ids.tobytes())
        self._file.write(trained.tobytes())

    def read(self, piece: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        length = self.lengths[piece]
        self._file.seek(self._offsets[piece])
        content = self._file.read(5 * length)
        assert len(content) == 5 * length, "the spool was cut"
        return np.frombuffer(content, np.int32, length), np.frombuffer(content, np.bool_, length, 4 * length)

    def close(self) -> None:
        self._file.close()
