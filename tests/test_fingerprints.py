"""Shingles, signatures and bands against what they must be; nothing is read ahead without bound."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from agentworld.data.fingerprints import MISSED, PERMUTATIONS, band_rows, fingerprints, jaccard, shingles, signature
from agentworld.data.ordered_map import ordered_map
from agentworld.data.schema import System, Trajectory, Turn


def words(first: int, last: int) -> str:
    return " ".join(f"w{n}" for n in range(first, last + 1))


def test_a_bounded_number_is_read_ahead_and_held() -> None:
    seen = 0

    def counted() -> Iterable[Trajectory]:
        nonlocal seen
        for seen in range(1, 1001):
            yield Trajectory(f"{seen}", "terminal", "s", "g", System("t", "a"), [Turn("ls", "x")])

    found = fingerprints(counted(), 5, workers=2)
    assert next(found).id == "1"
    assert seen <= 5 * 16
    assert [each.id for each in found] == [f"{n}" for n in range(2, 1001)]


def test_equal_values_of_signatures_estimate_the_similarity() -> None:
    draw = np.random.default_rng(0)
    for share in (0.2, 0.5, 0.8):
        errors = []
        for _ in range(200):
            union = np.unique(draw.integers(0, 2**32, 400, np.uint32))
            side = draw.permuted(np.arange(len(union)) % 2) * (draw.random(len(union)) >= share)
            a, b = union[side != 1], union[(side == 1) | (draw.random(len(union)) < share)]
            equal = np.count_nonzero(signature(a) == signature(b)) / PERMUTATIONS
            errors.append(equal - jaccard(a, b))
        assert abs(np.mean(errors)) < 4 * 0.5 / (200 * PERMUTATIONS) ** 0.5  # 4 standard deviations at the widest
        assert np.std(errors) < 0.06  # 0.044 if the 128 orders are independent


def test_bands_find_what_is_at_the_threshold() -> None:
    assert [band_rows(t) for t in (0.5, 0.8, 1.0, 0.01)] == [2, 5, PERMUTATIONS, 1]
    for threshold in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95):
        lost = [(1 - threshold**r) ** (PERMUTATIONS // r) for r in (band_rows(threshold), band_rows(threshold) + 1)]
        assert lost[0] <= MISSED < lost[1]


def test_shingles_are_runs_of_words() -> None:
    assert len(shingles([words(0, 9)], 5)) == 6
    assert len(shingles([words(0, 4), words(0, 4)], 5)) == 5  # 6 runs; the last equals the first
    assert len(shingles(["one", "two"], 5)) == 1
    assert len(shingles([" .,"], 5)) == 0


def test_an_ordered_map_keeps_the_order_and_drops_the_rest_when_closed(tmp_path) -> None:
    asked: list[Path] = []

    def files() -> Iterable[Path]:
        for n in range(100):
            asked.append(tmp_path / f"{n}")
            yield asked[-1]

    results = ordered_map(touched, files(), workers=2, ahead=10)
    assert [next(results), next(results)] == ["0", "1"]
    assert len(asked) == 12
    results.close()
    assert len(list(tmp_path.iterdir())) <= 12
    assert list(ordered_map(touched, files(), workers=3, ahead=0)) == [f"{n}" for n in range(100)]
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(inverse, [1, 0, 2], workers=1, ahead=5))


def touched(path: Path) -> str:
    path.touch()
    return path.name


def inverse(value: int) -> float:
    return 1 / value
