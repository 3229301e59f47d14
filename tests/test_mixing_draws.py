"""Drawing documents of a stream: what is kept, stored and tokenized of a large source."""

import math
import random
from collections import Counter

import pytest
from renderers import trained
from sources import ids_of, mixed, write

from agentworld.data import mixing
from agentworld.data.documents_settings import DocumentSource
from agentworld.data.render import Renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(trained())


def test_only_what_is_used_is_tokenized(tmp_path, renderer, monkeypatch):
    """Of 3,000 documents 20 are needed; one more may be read past the end."""
    texts = [f"{number:06} alpha" for number in range(3_000)]
    source = DocumentSource("law", str(write(tmp_path / "law", texts)), share=0.5)
    wanted = 20 * len(renderer.document(texts[0]).input_ids)
    seen, document = [], Renderer.document
    monkeypatch.setattr(Renderer, "document", lambda self, text: seen.append(text) or document(self, text))
    chosen = ids_of(mixed([source], wanted, renderer, tmp_path))
    assert 15 <= len(chosen) <= 25
    assert len(chosen) <= len(seen) <= len(chosen) + 1


def test_a_selection_keeps_the_shortest_beginning_that_is_enough_in_any_order():
    """Of 2,000 texts of 1 to 9 bytes 500 bytes are wanted; memory is that of the texts kept, at every moment."""
    rng = random.Random(2)
    offers = [mixing._Stored(rng.getrandbits(64), offset, rng.randint(1, 9)) for offset in range(2_000)]
    offers += rng.choices(offers, k=500)
    for order in (offers, offers[::-1], sorted(offers), sorted(offers)[::-1]):
        selection, given = mixing._Selection(500), Counter()
        for text in order:
            given[text] += 1
            if text.draw in selection.copies:
                selection.copies[text.draw] += 1
            elif selection.has_room_for(text.draw):
                selection.add(text)
            assert len(selection.copies) == len(selection.in_order()) <= 500
        expected: list[mixing._Stored] = []
        for text in sorted(given):
            if sum(kept.length for kept in expected) < 500:
                expected.append(text)
        assert selection.in_order() == expected
        assert selection.length == sum(text.length for text in expected)
        assert selection.copies == {text.draw: given[text] - 1 for text in expected}


def test_texts_that_cannot_be_among_the_first_are_not_stored(tmp_path, renderer, monkeypatch):
    """In random order the n-th of 3,000 texts is among the first k with chance k / n."""
    texts = [f"{number:06} alpha" for number in range(3_000)]
    source = DocumentSource("law", str(write(tmp_path / "law", texts)), share=0.5)
    stored = []
    write_one = mixing._Spool.write
    monkeypatch.setattr(
        mixing._Spool, "write", lambda self, draw, content: stored.append(content) or write_one(self, draw, content)
    )
    mixed([source], 200, renderer, tmp_path)
    kept = math.ceil(200 * mixing.BYTES_PER_TOKEN / len(texts[0]))
    assert kept < sum(content.endswith(b"alpha") for content in stored) < 1.25 * kept * (1 + math.log(3_000 / kept))
