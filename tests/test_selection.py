"""Weights and shares of what is used, against brute force; the catalogue gives back what was put in."""

import random
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from preparation import prepare_from, trajectory

from agentworld.data.catalogue import Catalogue
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.schema import Trajectory, Turn, parse_line, read_jsonl, write_jsonl
from agentworld.data.selection import largest_whole, select
from agentworld.data.trajectory_files import write_trajectories


def catalogued(folder: Path, trajectories: list[Trajectory], seed: int = 0) -> Catalogue:
    catalogue = Catalogue(folder / f"catalogue-{random.random()}", seed)
    assert list(catalogue.adding(trajectories)) == trajectories
    return catalogue


def mixture(sizes: dict[tuple[str, str], int], length: int = 50) -> list[Trajectory]:
    """sizes: (domain, source) -> trajectories of about `length` characters."""
    made = chain.from_iterable([key] * size for key, size in sizes.items())
    turn = [Turn("a" * (length // 2), "b" * (length - length // 2))]
    return [
        replace(trajectory(0), id=f"t{n}", domain=domain, source=source, split_group=f"g{n % 7}", turns=turn)
        for n, (domain, source) in enumerate(made)
    ]


def used(
    catalogue: Catalogue, weights: dict | None = None, shares: dict | None = None, kept: list | None = None
) -> set:
    chosen, count = select(catalogue, kept or [True] * len(catalogue), weights or {}, shares or {})
    found = {parse_line(line).id for number, line in catalogue.lines(lambda number: bool(chosen[number]))}
    assert len(found) == sum(part.used for part in count.domains.values())
    assert sum(part.given for part in count.sources.values()) == sum(kept or [True] * len(catalogue))
    return found


def test_the_catalogue_gives_back_lines_and_columns(tmp_path):
    given = [replace(trajectory(n), split_group=f"g{n % 3}", domain=("terminal", "mcp")[n % 2]) for n in range(20)]
    catalogue = catalogued(tmp_path, given)
    assert len(catalogue) == 20
    assert [parse_line(line) for _, line in catalogue.lines(lambda number: number % 4 == 1)] == given[1::4]
    for number, item in enumerate(given):
        assert (catalogue.group_of(number), catalogue.domain_of(number)) == (item.split_group, item.domain)
        assert (catalogue.source_of(number), catalogue.turns[number]) == (item.source, len(item.turns))
        assert catalogue.characters[number] == sum(len(turn.action + turn.observation) for turn in item.turns)
    flags = [number % 2 == 0 for number in range(20)]
    assert catalogue.group_sizes(flags) == Counter(item.split_group for item in given[::2])


def test_a_weight_is_the_part_of_a_domain_and_a_larger_one_keeps_what_a_smaller_one_kept(tmp_path):
    given = mixture({("terminal", "a"): 2000, ("mcp", "a"): 300})
    domain_of = {item.id: item.domain for item in given}
    catalogue = catalogued(tmp_path, given)
    found = {weight: used(catalogue, {"terminal": weight}) for weight in (0.0, 0.25, 0.6, 1.0)}
    for weight, names in found.items():
        count = Counter(domain_of[name] for name in names)
        assert count["mcp"] == 300
        assert abs(count["terminal"] - 2000 * weight) < 4 * (2000 * weight * (1 - weight)) ** 0.5 + 1e-9
    assert found[0.0] < found[0.25] < found[0.6] < found[1.0]
    shuffled = random.Random(0).sample(given, len(given))
    assert used(catalogued(tmp_path, shuffled), {"terminal": 0.25}) == found[0.25]
    assert used(catalogued(tmp_path, given, seed=1), {"terminal": 0.25}) != found[0.25]


@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ({"a": 800, "b": 200}, {"a": 0.5}, {"a": 200, "b": 200}),  # b has no share and is used whole
        ({"a": 100, "b": 300}, {"a": 0.5}, {"a": 100, "b": 300}),  # too few for its share: used up
        ({"a": 600, "b": 600, "c": 120}, {"a": 0.6, "b": 0.3}, {"a": 600, "b": 309, "c": 120}),  # a short: b of 1,029
        ({"a": 900, "b": 100}, {"a": 0.75, "b": 0.25}, {"a": 300, "b": 100}),  # all named: the scarcest is used up
        ({"a": 50, "b": 50}, {"a": 0.0}, {"a": 0, "b": 50}),
    ],
)
def test_a_share_is_of_what_is_used(tmp_path, sizes, shares, expected):
    given = mixture({("terminal", source): size for source, size in sizes.items()})
    source_of = {item.id: item.source for item in given}
    found = Counter(source_of[name] for name in used(catalogued(tmp_path, given), shares=shares))
    assert all(abs(found[source] - number) <= 1 for source, number in expected.items()), found


def test_the_largest_whole_is_the_root_of_its_equation():
    rng = random.Random(1)
    for _ in range(500):
        names = "abcd"[: rng.randint(1, 4)]
        shares = {name: rng.random() for name in names}
        total = sum(shares.values()) / rng.uniform(0.1, 0.99)
        shares = {name: share / total for name, share in shares.items()}
        available = {name: rng.choice((0, 1, rng.randint(1, 10**6))) for name in names}
        unshared = rng.randint(1, 10**5)
        whole = largest_whole(unshared, available, shares)
        filled = sum(min(available[name], share * whole) for name, share in shares.items())
        assert whole == pytest.approx(unshared + filled, rel=1e-9)


def test_what_was_dropped_before_is_no_part_of_a_share(tmp_path):
    given = mixture({("terminal", "a"): 100, ("terminal", "b"): 100})
    kept = [number % 2 == 0 for number in range(200)]
    found = used(catalogued(tmp_path, given), shares={"a": 0.25, "b": 0.75}, kept=kept)
    assert found <= {item.id for item, stays in zip(given, kept, strict=True) if stays}
    assert abs(len(found) - (50 + 50 / 3)) <= 1


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"source_shares": {"nowhere": 0.5}}, ContentError, "nowhere: no trajectory has this source; found: test"),
        ({"source_shares": {"test": 0.4}}, ContentError, "add up to 0.4 and name every source"),
        ({"source_shares": {"a": 0.7, "b": 0.7}}, RequestError, "add up to 1.4"),
        ({"source_shares": {"a": -0.1}}, RequestError, "data.source_shares.a=-0.1"),
        ({"domain_weights": {"terminal": 2.0}}, RequestError, "data.domain_weights.terminal=2.0"),
        ({"domain_weights": {"terminals": 1.0}}, RequestError, "no such domain; known: mcp, search"),
        ({"domain_weights": {"terminal": 0.0}}, ContentError, "leave no trajectory"),
        ({"workers": -1}, RequestError, "data.workers=-1"),
    ],
)
def test_refusals(tmp_path, changes, error, text):
    write_jsonl(tmp_path / "in.jsonl", (trajectory(i) for i in range(40)))
    with pytest.raises(error, match=text):
        prepare_from(tmp_path / "in.jsonl", tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_a_preparation_is_the_same_with_any_number_of_processes_and_from_parquet(tmp_path, monkeypatch):
    """Small batches, so that several processes have work."""
    monkeypatch.setattr("agentworld.data.rendering.BATCH_CHARACTERS", 2000)
    rows = [replace(trajectory(i), source=f"s{i % 2}") for i in range(150)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    write_trajectories(tmp_path / "in.parquet", rows)
    changes = {"source_shares": {"s0": 0.3}, "domain_weights": {"terminal": 0.9}, "simulation_share": 0.5}
    sums = set()
    for number, (source, workers) in enumerate((("jsonl", 1), ("jsonl", 2), ("jsonl", 3), ("parquet", 2))):
        out = tmp_path / f"out{number}"
        report = prepare_from(tmp_path / f"in.{source}", out, workers=workers, **changes)
        sums.add(report["sha256"])
        assert 0.25 < report["selection"]["sources"]["s0"]["used_characters"] / sum(
            part["used_characters"] for part in report["selection"]["sources"].values()
        ) < 0.33  # fmt: skip
    assert len(sums) == 1
    used_ids = [t.id for pool in ("cpt", "sft", "rl", "eval") for t in read_jsonl(tmp_path / "out0" / f"{pool}.jsonl")]
    assert len(used_ids) == len(set(used_ids)) == report["selection"]["domains"]["terminal"]["used"] < 110
    assert not (tmp_path / "out0" / "scratch").exists()
