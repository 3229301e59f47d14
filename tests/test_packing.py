"""Packing: every token once and in order, or counted as dropped; labels stay with their tokens."""

import random
from collections import Counter
from functools import partial

import pytest
from packed import pack

from agentworld.data.packing import PackedRow, PackingCount
from agentworld.data.render import Rendered

PACKERS = {"splitting": partial(pack, splits=True), "whole": partial(pack, splits=False)}


def random_documents(rng: random.Random, row_tokens: int) -> list[Rendered]:
    """Documents whose tokens are unique over all of them: id = 1000 * document + position, from 1."""
    documents = []
    for number in range(1, rng.randint(2, 40)):
        length = rng.choice((1, 2, row_tokens - 1, row_tokens, row_tokens + 1, rng.randint(1, 3 * row_tokens)))
        share = rng.choice((0.0, 0.1, 0.5, 1.0))
        trained = [rng.random() < share for _ in range(length)]
        documents.append(Rendered([1000 * number + i for i in range(length)], trained))
    return documents


def segments(rows: list[PackedRow]) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of every segment."""
    found = []
    for row in rows:
        at = 0
        for length in row.seq_lengths:
            found.append((row.input_ids[at : at + length], row.labels[at : at + length]))
            at += length
    return found


@pytest.mark.parametrize("name", PACKERS)
def test_every_token_stands_once_or_is_counted(name):
    rng = random.Random(0)
    for _ in range(200):
        row_tokens = rng.randint(4, 30)
        documents = random_documents(rng, row_tokens)
        rows, count = PACKERS[name](documents, row_tokens)
        trained_of = {t: k for d in documents for t, k in zip(d.input_ids, d.trained, strict=True)}
        for row in rows:
            assert sum(row.seq_lengths) == len(row.input_ids) == len(row.labels) <= row_tokens
            assert all(length > 0 for length in row.seq_lengths)
            assert any(label != -100 for label in row.labels)
        found = segments(rows)
        tokens = [token for ids, _ in found for token in ids]
        assert max(Counter(tokens).values(), default=1) == 1
        for ids, labels in found:
            assert ids == list(range(ids[0], ids[0] + len(ids)))  # one document, contiguous, in order
            assert labels[0] == -100
            assert labels[1:] == [token if trained_of[token] else -100 for token in ids[1:]]
        check_count(count, documents, rows, found)


def check_count(count: PackingCount, documents: list[Rendered], rows: list[PackedRow], found: list) -> None:
    given = {token for document in documents for token in document.input_ids}
    trained = {t for d in documents for t, k in zip(d.input_ids, d.trained, strict=True) if k}
    packed = {token for ids, _ in found for token in ids}
    assert count.rows == len(rows)
    assert count.tokens == len(packed)
    assert count.dropped_tokens == len(given - packed)
    assert count.trained_tokens == sum(label != -100 for _, labels in found for label in labels)
    assert count.labels_lost == sum(ids[0] in trained for ids, _ in found)
    assert count.dropped_trained_tokens == len(trained - packed)
    assert count.trained_tokens + count.labels_lost + count.dropped_trained_tokens == len(trained)
    assert count.documents == len({token // 1000 for token in packed})
    assert count.documents + count.dropped_documents == len(documents)
    assert count.dropped_too_long + count.dropped_untrained == count.dropped_documents
    assert count.fill == pytest.approx(len(packed) / (len(rows) * count.row_tokens) if rows else 0)


@pytest.mark.parametrize("length", range(2, 40))
def test_splitting_loses_no_tail(length):
    """All of a long document is packed, its last token with its label, whatever the rest."""
    rows, count = pack([Rendered(list(range(length)), [True] * length)], 8, splits=True)
    assert sorted(token for row in rows for token in row.input_ids) == list(range(length))
    assert (count.tokens, count.dropped_tokens) == (length, 0)
    assert any(row.labels[-1] == length - 1 or length - 1 in row.labels for row in rows)
    assert count.labels_lost == -(-length // 8)  # the first token of each piece
    assert count.trained_tokens == length - count.labels_lost


def test_whole_packing_never_cuts():
    rng = random.Random(1)
    for _ in range(100):
        row_tokens = rng.randint(4, 30)
        documents = random_documents(rng, row_tokens)
        rows, count = pack(documents, row_tokens, splits=False)
        whole = {tuple(document.input_ids) for document in documents}
        assert all(tuple(ids) in whole for ids, _ in segments(rows))
        assert count.dropped_too_long == sum(len(document.input_ids) > row_tokens for document in documents)


def test_a_document_as_long_as_the_row_fits():
    document = Rendered([1, 2, 3, 4], [False, True, True, True])
    rows, count = pack([document, Rendered([5, 6, 7, 8, 9], [True] * 5)], 4, splits=False)
    assert [row.input_ids for row in rows] == [[1, 2, 3, 4]]
    assert (count.dropped_too_long, count.dropped_tokens, count.dropped_trained_tokens) == (1, 5, 5)


@pytest.mark.parametrize("name", PACKERS)
def test_what_carries_no_loss_is_dropped_and_counted(name):
    """Also when the only trained token starts the document, where the collator takes its label."""
    masked = Rendered([1, 2, 3], [False] * 3)
    first_only = Rendered([4, 5, 6], [True, False, False])
    good = Rendered([7, 8, 9], [False, False, True])
    rows, count = PACKERS[name]([masked, first_only, good], 10)
    assert rows == [PackedRow([7, 8, 9], [-100, -100, 9], [3])]
    assert (count.dropped_documents, count.dropped_untrained, count.dropped_tokens) == (2, 2, 6)
    assert count.dropped_trained_tokens == 1
    rows, count = PACKERS[name]([masked], 10)
    assert (rows, count.rows, count.fill, count.dropped_documents) == ([], 0, 0.0, 1)
    assert PACKERS[name]([], 10)[0] == []


def test_a_piece_without_loss_is_dropped_but_not_its_document():
    trained = [False] * 8 + [True] * 4
    rows, count = pack([Rendered(list(range(12)), trained)], 4, splits=True)
    assert sorted(tuple(row.input_ids) for row in rows) == [(8, 9, 10, 11)]
    assert (count.documents, count.dropped_documents, count.dropped_tokens, count.labels_lost) == (1, 0, 8, 1)


def test_rows_are_full():
    rng = random.Random(2)
    documents = [Rendered([n] * size, [True] * size) for n, size in enumerate(rng.choices(range(20, 400), k=500))]
    for packer in PACKERS.values():
        _, count = packer(documents, 1024)
        assert count.fill > 0.97
    exact = [Rendered([n] * size, [True] * size) for n, size in enumerate((3, 7, 5, 5, 6, 4, 8, 2))]
    _, count = pack(exact, 10, splits=False)
    assert (count.rows, count.fill) == (4, 1.0)


def test_packing_is_deterministic():
    documents = random_documents(random.Random(3), 16)
    assert pack(documents, 16, splits=True) == pack(list(documents), 16, splits=True)
