"""Mixing documents into CPT by shares of its tokens.

All trajectories are used; each source gives documents until it holds its share of the whole. A document is drawn by a
hash of its text, so that neither the order of files and rows nor another source changes what is drawn, and equal
documents of a source count once. Reading is one pass: of the documents seen so far only the first in the order of their
draws are kept, as many as surely reach the share, and their texts lie in a temporary file. Then they are tokenized in
that order until the share is reached. Memory is about 300 bytes a kept document, whatever the size of the source.
"""

import heapq
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from agentworld.data import draws
from agentworld.data.documents import DocumentCount, read_documents
from agentworld.data.documents_settings import KINDS, DocumentSource, check_sources, key_of
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.render import Rendered, Renderer

BYTES_PER_TOKEN = 8  # kept for each token wanted; text has 3 to 5. Where it is not enough, the source is read again
ID_BYTES = 4
DRAW_BYTES = 16  # of a draw's hash: no two of 10 billion documents share it, but for a chance below 1e-18


@dataclass(frozen=True)
class Mixture:
    """The chosen documents, and their part of the report (see `_report`)."""

    report: dict[str, Any]
    _spool: "_Spool"
    _taken: list[list["_Stored"]]

    def documents(self) -> Iterator[Rendered]:
        """The documents of each source in the order of their draws; one that is used twice comes twice."""
        for taken in self._taken:
            for document in taken:
                ids = array("i", self._spool.read(document)).tolist()
                yield Rendered(ids, [True] * len(ids))  # as `Renderer.document` gives them


def mix(
    sources: Sequence[DocumentSource],
    trajectory_tokens: int,
    trained_trajectory_tokens: int,
    renderer: Renderer,
    seed: int,
    on_bad: str,
    scratch: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Mixture:
    """Choose documents so that each source holds its share of all CPT tokens, to within one document.

    A source that has too few tokens for its share, `epochs` times over, is used up; the others keep their shares of
    what is then the whole.

    Args:
        trajectory_tokens: of the rendered CPT trajectories.
        trained_trajectory_tokens: those of them that carry loss.
        scratch: a folder for the temporary file: some 8 bytes a token of the documents used, several times that where a
            source is much larger than its share.

    Raises:
        RequestError: see `check_sources` and `read_documents`; shares of no trajectory at all.
        ContentError: see `read_documents`; a source without a usable document.
    """
    check_sources(sources)
    sources = [source for source in sources if source.share > 0]
    if sources and trajectory_tokens == 0:
        raise RequestError(
            "data.documents: shares are of the CPT tokens, and there is no CPT trajectory; raise data.split.cpt or set "
            "data.documents=[]"
        )
    spool = _Spool(scratch)
    at_most = trajectory_tokens / (1 - math.fsum(source.share for source in sources))  # tokens, with every share full
    drawn = []
    for source in sources:
        drawn.append(_draw(source, at_most * source.share, renderer, seed, on_bad, spool))
        say(f"documents: {source.name}: {drawn[-1].count.kept} of {drawn[-1].count.read} usable")
    available = [source.epochs * each.tokens for source, each in zip(sources, drawn, strict=True)]
    wanted = balance(trajectory_tokens, [source.share for source in sources], available)
    taken = [_take(*each, seed) for each in zip(sources, drawn, wanted, strict=True)]
    parts = zip(sources, drawn, available, wanted, taken, strict=True)
    total = trajectory_tokens + sum(document.tokens for documents in taken for document in documents)
    report = _report([_source_report(*part) for part in parts], trajectory_tokens, trained_trajectory_tokens, total)
    return Mixture(report, spool, taken)


def balance(trajectory_tokens: int, shares: Sequence[float], available: Sequence[int]) -> list[float]:
    """The tokens that each source shall give: its share of the whole, or all it has where that is less.

    The whole is the root of total = trajectories + sum of min(available, share x total). Its right side minus its left
    is concave in the total, so Newton's iteration from the largest total (no source is short) comes down to the root,
    and a source that has enough on the way never becomes short again.
    """
    total = trajectory_tokens / (1 - math.fsum(shares))
    short = {k for k, share in enumerate(shares) if available[k] < share * total}
    while True:
        full = math.fsum(share for k, share in enumerate(shares) if k not in short)
        total = (trajectory_tokens + sum(available[k] for k in short)) / (1 - full)
        still_short = {k for k in short if available[k] < shares[k] * total}
        if still_short == short:
            return [available[k] if k in short else share * total for k, share in enumerate(shares)]
        short = still_short


@dataclass(frozen=True, order=True, slots=True)
class _Stored:
    """A document in the spool, as UTF-8 or as ids: `length` bytes at `offset`. `draw` gives the order."""

    draw: int
    offset: int
    length: int

    @property
    def tokens(self) -> int:
        """Of a document that is stored as ids."""
        return self.length // ID_BYTES


class _Spool:
    """A temporary file without a name, gone with this object."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (open as long as this object lives)

    def write(self, draw: int, content: bytes) -> _Stored:
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(content)
        return _Stored(draw, offset, len(content))

    def read(self, stored: _Stored) -> bytes:
        self._file.seek(stored.offset)
        content = self._file.read(stored.length)
        assert len(content) == stored.length, "the spool was cut"
        return content


@dataclass
class _Selection:
    """Of the texts offered, the first in the order of their draws: as few as reach `wanted` bytes, or all.

    `copies` has the draw of each, and how often it was offered again. Which texts these are, and their copies, does not
    depend on the order of offers: a text that is among the first at the end was so from the start.
    """

    wanted: float
    length: int = 0
    copies: dict[int, int] = field(default_factory=dict)
    _heap: list[tuple[int, _Stored]] = field(default_factory=list)  # the last in the order of draws on top

    def has_room_for(self, draw: int) -> bool:
        return self.length < self.wanted or draw < self._heap[0][1].draw

    def add(self, text: _Stored) -> None:
        heapq.heappush(self._heap, (-text.draw, text))
        self.copies[text.draw] = 0
        self.length += text.length
        while self.length - self._heap[0][1].length >= self.wanted:
            last = heapq.heappop(self._heap)[1]
            self.length -= last.length
            del self.copies[last.draw]

    def in_order(self) -> list[_Stored]:
        return sorted(text for _, text in self._heap)


@dataclass(frozen=True)
class _Drawn:
    """Of one source: what was read, how often each text came again, and the documents as ids in the order of their
    draws until the tokens wanted are reached, or all that there are."""

    count: DocumentCount
    copies: dict[int, int]
    documents: list[_Stored]
    tokens: int


def _draw(source: DocumentSource, wanted: float, renderer: Renderer, seed: int, on_bad: str, spool: _Spool) -> _Drawn:
    """Read a source to its end and draw `wanted` tokens from it."""
    kept_bytes = wanted * BYTES_PER_TOKEN
    while True:
        count, selection = DocumentCount(), _Selection(kept_bytes)
        for text in read_documents(source, on_bad, count):
            content = text.encode()
            name = sha256(content).hexdigest()
            draw = int.from_bytes(draws.digest("document", seed, source.name, name)[:DRAW_BYTES], "big")
            if draw in selection.copies:
                selection.copies[draw] += 1
            elif selection.has_room_for(draw):
                selection.add(spool.write(draw, content))
        if not selection.copies:
            first = f"; the first reason: {count.reasons[0]}" if count.reasons else ""
            seen = f"{count.read} read, {count.empty} of them empty"
            raise ContentError(f"{key_of(source)}: no usable document in {seen}{first}")
        documents = _tokenized(selection.in_order(), wanted, renderer, spool)
        tokens = sum(document.tokens for document in documents)
        has_all = len(selection.copies) + sum(selection.copies.values()) == count.kept
        if tokens >= wanted or has_all:
            return _Drawn(count, selection.copies, documents, tokens)
        kept_bytes *= 2 * wanted / tokens  # its tokens are longer than thought


def _tokenized(texts: list[_Stored], wanted: float, renderer: Renderer, spool: _Spool) -> list[_Stored]:
    """The first texts as ids until `wanted` tokens are reached, or all."""
    documents: list[_Stored] = []
    tokens = 0
    for text in texts:
        if tokens >= wanted:
            break
        ids = renderer.document(spool.read(text).decode()).input_ids
        documents.append(spool.write(text.draw, array("i", ids).tobytes()))
        tokens += len(ids)
    return documents


def _take(source: DocumentSource, drawn: _Drawn, wanted: float, seed: int) -> list[_Stored]:
    """Documents in the order of their draws until `wanted` tokens are reached, each epoch in an order of its own; the
    last one only where it brings the sum nearer."""
    order = list(drawn.documents)
    taken: list[_Stored] = []
    tokens = 0
    for epoch in range(source.epochs):
        if epoch:
            order.sort(key=lambda d: draws.digest("document again", seed, source.name, epoch, d.draw))
        for document in order:
            if tokens >= wanted or tokens + document.tokens - wanted > wanted - tokens:
                return taken
            taken.append(document)
            tokens += document.tokens
    return taken


def _source_report(
    source: DocumentSource, drawn: _Drawn, available: int, wanted: float, taken: list[_Stored]
) -> dict[str, Any]:
    """kept of `read` = distinct_documents + duplicates (copies of those) + unused_documents."""
    distinct = set(taken)
    duplicates = sum(drawn.copies[document.draw] for document in distinct)
    tokens = sum(document.tokens for document in taken)
    return {
        "name": source.name,
        "kind": source.kind,
        "asked_share": source.share,
        "tokens": tokens,
        "documents": len(taken),
        "distinct_documents": len(distinct),
        "duplicates": duplicates,
        "unused_documents": drawn.count.kept - len(distinct) - duplicates,
        "epochs": tokens / max(1, sum(document.tokens for document in distinct)),  # 0 where none was taken
        "exhausted": wanted == available,
        "read": asdict(drawn.count),
    }


def _report(sources: list[dict[str, Any]], trajectory_tokens: int, trained: int, total: int) -> dict[str, Any]:
    """Tokens and their shares of the whole, and shares of the tokens that carry loss: in documents every token does."""
    total_trained = trained + total - trajectory_tokens

    def shares(tokens: int, trained_tokens: int) -> dict[str, Any]:
        trained_share = trained_tokens / total_trained if total_trained else 0.0
        return {"share": tokens / total if total else 0.0, "trained_share": trained_share}

    for source in sources:
        source.update(shares(source["tokens"], source["tokens"]))
    kinds = {}
    for kind in KINDS:
        tokens = sum(source["tokens"] for source in sources if source["kind"] == kind)
        asked = math.fsum(source["asked_share"] for source in sources if source["kind"] == kind)
        kinds[kind] = {"asked_share": asked, "tokens": tokens, **shares(tokens, tokens)}
    trajectories = {"tokens": trajectory_tokens, "trained_tokens": trained, **shares(trajectory_tokens, trained)}
    return {"tokens": total, "trajectories": trajectories, "kinds": kinds, "sources": sources}
