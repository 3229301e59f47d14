"""Mixing: shares and choices against a naive oracle that reads everything, sorts it and counts."""

import hashlib
import json
import math
import random
from collections import Counter

import pytest
from packed import pack
from renderers import FOREIGN, TOKENIZERS, WILD, trained
from sources import SEED, ids_of, mixed, texts_of, write

from agentworld.data import mixing
from agentworld.data.documents_settings import DocumentSource
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.mixing import balance, mix
from agentworld.data.render import Renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(trained())


def draw(purpose: str, *names: str) -> int:
    """The hash of draws.digest, written out."""
    text = b"".join(b"%d:%s" % (len(name.encode()), name.encode()) for name in (purpose, str(SEED), *names))
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")


def in_order_of_draws(name: str, texts: list[str]) -> list[str]:
    return sorted(set(texts), key=lambda text: draw("document", name, hashlib.sha256(text.encode()).hexdigest()))


def nearest(texts: list[str], wanted: float, renderer: Renderer) -> list[str]:
    """The beginning whose tokens come nearest to `wanted`, the longest of equals, by trying all."""
    sums = [0]
    for text in texts:
        sums.append(sums[-1] + len(renderer.document(text).input_ids))
    return texts[: min(range(len(sums)), key=lambda n: (abs(sums[n] - wanted), -n))]


def whole_by_bisection(tokens: int, shares: list[float], available: list[int]) -> float:
    """The total at which trajectories and documents add up to it."""
    low, high = 0.0, tokens / (1 - sum(shares)) + 1
    for _ in range(200):
        middle = (low + high) / 2
        if tokens + sum(map(min, available, [share * middle for share in shares])) > middle:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.parametrize("kept_bytes", [mixing.BYTES_PER_TOKEN, 0.1])  # 0.1: sources have to be read again
@pytest.mark.parametrize("tokens", [200, 3_000, 40_000])
def test_the_choice_is_that_of_the_oracle_and_shares_are_kept_to_one_document(
    tmp_path, renderer, monkeypatch, tokens, kept_bytes
):
    monkeypatch.setattr(mixing, "BYTES_PER_TOKEN", kept_bytes)
    shares = {"law": 0.05, "medicine": 0.2, "web": 0.1}
    texts = {name: texts_of(name, 800) for name in shares}
    sources = [
        DocumentSource(name, str(write(tmp_path / name, texts[name])), share=share) for name, share in shares.items()
    ]
    mixture = mixed(sources, tokens, renderer, tmp_path)
    total = tokens / (1 - 0.35)
    chosen = [
        text
        for name, share in shares.items()
        for text in nearest(in_order_of_draws(name, texts[name]), share * total, renderer)
    ]
    assert ids_of(mixture) == [renderer.document(text).input_ids for text in chosen]
    longest = max(len(renderer.document(text).input_ids) for each in texts.values() for text in each)
    report = mixture.report
    assert report["tokens"] == tokens + sum(map(len, ids_of(mixture)))
    for entry in report["sources"]:
        assert not entry["exhausted"]
        assert abs(entry["tokens"] - entry["asked_share"] * report["tokens"]) <= longest
        assert abs(entry["tokens"] - entry["asked_share"] * total) <= longest / 2
        assert entry["share"] == entry["tokens"] / report["tokens"]
        read = entry["read"]["kept"]
        assert read == 800 == entry["distinct_documents"] + entry["duplicates"] + entry["unused_documents"]
    everything = report["trajectories"]["share"] + sum(entry["share"] for entry in report["sources"])
    assert math.isclose(everything, 1, abs_tol=1e-12)


def test_the_order_of_rows_and_files_and_other_sources_change_nothing(tmp_path, renderer):
    texts = texts_of("law", 300)
    other = DocumentSource("web", str(write(tmp_path / "web", texts_of("web", 300))), share=0.1)
    found = []
    for number, (given, files) in enumerate([(texts, 1), (texts[::-1], 1), (random.Random(0).sample(texts, 300), 7)]):
        folder = write(tmp_path / str(number), given, files)
        found.append(ids_of(mixed([DocumentSource("law", str(folder), share=0.1)], 5_000, renderer, tmp_path)))
    assert 0 < len(found[0]) < 100
    assert found[0] == found[1] == found[2]
    law = DocumentSource("law", str(tmp_path / "0"), share=0.1)
    both = ids_of(mixed([other, law], 9_000, renderer, tmp_path))  # twice the tokens wanted of law, and some more
    assert both[both.index(found[0][0]) :][: len(found[0])] == found[0]
    assert found[0] != ids_of(mixed([law], 5_000, renderer, tmp_path, seed=4))


def test_equal_documents_of_a_source_are_used_once_and_counted(tmp_path, renderer):
    """Whatever stands between the copies: used + copies + unused = read."""
    texts = texts_of("law", 100)
    rng = random.Random(5)
    given = rng.choices(texts, k=400) + texts
    rng.shuffle(given)
    found = []
    for number, order in enumerate((given, given[::-1], sorted(given))):
        law = DocumentSource("law", str(write(tmp_path / str(number), order)), share=0.25)
        mixture = mixed([law], 3_000, renderer, tmp_path)
        found.append((ids_of(mixture), mixture.report))
    assert found[0][0] == found[1][0] == found[2][0]
    chosen = nearest(in_order_of_draws("law", texts), 1_000, renderer)
    assert found[0][0] == [renderer.document(text).input_ids for text in chosen]
    copies = Counter(given)
    for _, report in found:
        (entry,) = report["sources"]
        assert entry["documents"] == entry["distinct_documents"] == len(chosen)
        assert entry["duplicates"] == sum(copies[text] - 1 for text in chosen)
        assert entry["unused_documents"] == sum(copies[text] for text in set(texts) - set(chosen))


def test_a_source_with_too_few_tokens_is_used_up_and_the_others_keep_their_shares(tmp_path, renderer):
    few, many = texts_of("few", 5), texts_of("many", 2_000, longest=10)
    sizes = [len(renderer.document(text).input_ids) for text in few]
    sources = [
        DocumentSource("few", str(write(tmp_path / "few", few)), share=0.3),
        DocumentSource("many", str(write(tmp_path / "many", many)), share=0.2, kind="replay"),
    ]
    report = mixed(sources, 8_000, renderer, tmp_path).report
    scarce, ample = report["sources"]
    assert (scarce["tokens"], scarce["documents"], scarce["exhausted"]) == (sum(sizes), 5, True)
    assert (ample["exhausted"], scarce["epochs"], ample["epochs"]) == (False, 1, 1)
    longest = max(len(renderer.document(text).input_ids) for text in many)
    assert abs(ample["tokens"] - (8_000 + sum(sizes)) / 0.8 * 0.2) <= longest / 2
    assert abs(ample["share"] - 0.2) < longest / 8_000
    sources[0].epochs = 3
    mixture = mixed(sources, 8_000, renderer, tmp_path)
    scarce = mixture.report["sources"][0]
    assert (scarce["tokens"], scarce["documents"], scarce["distinct_documents"]) == (3 * sum(sizes), 15, 5)
    assert (scarce["epochs"], scarce["exhausted"], scarce["unused_documents"]) == (3, True, 0)
    used = ids_of(mixture)[:15]
    assert used[:5] == [renderer.document(text).input_ids for text in in_order_of_draws("few", few)]
    assert sorted(used) == sorted(3 * used[:5])
    assert {tuple(map(tuple, used[n : n + 5])) for n in (0, 5, 10)} != {tuple(map(tuple, used[:5]))}


def test_a_source_is_repeated_only_as_far_as_its_share_needs(tmp_path, renderer):
    texts = texts_of("few", 20)
    size = sum(len(renderer.document(text).input_ids) for text in texts)
    source = DocumentSource("few", str(write(tmp_path / "few", texts)), share=0.5, epochs=10)
    mixture = mixed([source], size * 5 // 2, renderer, tmp_path)
    (entry,) = mixture.report["sources"]
    assert abs(entry["tokens"] - size * 5 // 2) <= max(map(len, ids_of(mixture))) / 2
    assert not entry["exhausted"]
    assert set(Counter(map(tuple, ids_of(mixture))).values()) <= {2, 3}


def test_balance_is_the_root_found_by_bisection():
    rng = random.Random(1)
    for _ in range(2_000):
        count = rng.randint(1, 6)
        weights = [rng.random() ** 3 for _ in range(count)]
        shares = [weight / sum(weights) * rng.choice((0.05, 0.5, 0.99)) for weight in weights]
        tokens = rng.randint(1, 10**6)
        available = [int(10 ** rng.uniform(0, 8)) for _ in shares]
        total = whole_by_bisection(tokens, shares, available)
        expected = list(map(min, available, [share * total for share in shares]))
        assert balance(tokens, shares, available) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_never_becomes_a_control_token(tmp_path, name):
    """One end of text a document, no other added token, and the text comes back exactly."""
    renderer = Renderer(TOKENIZERS[name]())
    control = renderer.tokenizer.get_added_vocab()
    hostile = [text for text in WILD if text.strip()] + ["".join(control), "".join(FOREIGN), *control]
    source = DocumentSource("law", str(write(tmp_path / "law", hostile)), share=0.5)
    mixture = mixed([source], 10**6, renderer, tmp_path)
    documents = list(mixture.documents())
    assert {renderer.decode(document.input_ids[:-1]) for document in documents} == set(hostile)
    for document in documents:
        assert document.input_ids[-1] == renderer.pad_id
        assert not set(document.input_ids[:-1]) & set(control.values())
        assert all(document.trained)
        assert document == renderer.document(renderer.decode(document.input_ids[:-1]))


def test_shares_of_what_is_trained_and_of_the_kinds(tmp_path, renderer):
    """By hand: 1,000 trajectory tokens of which 250 carry loss, and documents of which every token does."""
    sources = [
        DocumentSource(name, str(write(tmp_path / name, texts_of(name, 1))), share=0.01, kind=kind)
        for name, kind in (("a", "knowledge"), ("b", "replay"), ("c", "knowledge"))
    ]
    a, b, c = (len(renderer.document(texts_of(name, 1)[0]).input_ids) for name in "abc")
    for source in sources:
        source.share = 0.3
    report = mix(sources, 1_000, 250, renderer, SEED, "fail", tmp_path).report
    whole, loss = 1_000 + a + b + c, 250 + a + b + c
    assert report["tokens"] == whole
    assert report["trajectories"] == {
        "tokens": 1_000,
        "trained_tokens": 250,
        "share": 1_000 / whole,
        "trained_share": 250 / loss,
    }
    assert report["kinds"] == {
        "knowledge": {
            "asked_share": 0.6,
            "tokens": a + c,
            "share": (a + c) / whole,
            "trained_share": (a + c) / loss,
        },
        "replay": {"asked_share": 0.3, "tokens": b, "share": b / whole, "trained_share": b / loss},
    }
    assert json.loads(json.dumps(report)) == report


def test_packing_trains_every_token_of_a_document_but_the_first_of_a_piece(tmp_path, renderer):
    source = DocumentSource("law", str(write(tmp_path / "law", texts_of("law", 50))), share=0.5)
    mixture = mixed([source], 10**5, renderer, tmp_path)
    rows, count = pack(mixture.documents(), 64, splits=True)
    assert count.tokens == mixture.report["sources"][0]["tokens"]
    assert count.dropped_tokens == 0
    assert count.trained_tokens == count.tokens - sum(len(row.seq_lengths) for row in rows)


def test_a_source_without_a_share_is_not_read(tmp_path, renderer):
    (tmp_path / "a.jsonl").write_text("damaged")
    mixture = mixed([DocumentSource("off", str(tmp_path / "a.jsonl"))], 100, renderer, tmp_path)
    assert (ids_of(mixture), mixture.report["tokens"], mixture.report["sources"]) == ([], 100, [])
    assert mixed([], 100, renderer, tmp_path).report["trajectories"]["share"] == 1


def test_nothing_to_take_a_share_of_and_nothing_to_give_are_refused(tmp_path, renderer):
    folder = write(tmp_path / "law", ["x"])
    with pytest.raises(
        RequestError, match=r"there is no CPT trajectory; raise data\.split\.cpt or set data\.documents"
    ):
        mixed([DocumentSource("law", str(folder), share=0.1)], 0, renderer, tmp_path)
    (tmp_path / "empty.jsonl").write_text('{"text": " "}\n{"text": 1}\n')
    source = DocumentSource("law", str(tmp_path / "empty.jsonl"), share=0.1)
    reason = (
        r"law\]: no usable document in 2 read, 1 of them empty; the first reason: .*:2: text: expected a text, found"
    )
    with pytest.raises(ContentError, match=reason):
        mix([source], 100, 100, renderer, SEED, "skip", tmp_path)
