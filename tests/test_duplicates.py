"""Duplicates: brute force over plain Python sets agrees, and the result depends on ids and content only."""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, compress, pairwise

import pytest
from recorded import needs_corpora, recorded

from agentworld.data import duplicates
from agentworld.data.duplicates import DuplicateCount, DuplicateIndex, Pair
from agentworld.data.errors import ContentError, RequestError
from agentworld.data.held_out import HeldOut
from agentworld.data.schema import System, Trajectory, Turn
from agentworld.data.settings import DuplicateSettings

ONE_WORD = DuplicateSettings(shingle_words=1)


def given(name: str, *turns: tuple[str, str], group: str = "g") -> Trajectory:
    return Trajectory(name, "terminal", "s", group, System("t", "a"), [Turn(*turn) for turn in turns])


def words(first: int, last: int) -> str:
    """w<first> to w<last>: a set of known size with shingle_words=1."""
    return " ".join(f"w{n}" for n in range(first, last + 1))


def drop_duplicates(
    trajectories: Sequence[Trajectory],
    settings: DuplicateSettings | None = None,
    held_out: HeldOut | None = None,
    workers: int = 1,
) -> tuple[list[Trajectory], DuplicateCount]:
    """What stays, in the order given, and the count."""
    with DuplicateIndex(settings, held_out) as index:
        index.add(trajectories, workers)
        count = index.resolve()
        return list(compress(trajectories, index.kept())), count


def kept(trajectories: Sequence[Trajectory], settings: DuplicateSettings | None = None) -> list[str]:
    return [trajectory.id for trajectory in drop_duplicates(trajectories, settings)[0]]


def set_of(trajectory: Trajectory, length: int = 5) -> set[tuple[str, ...]]:
    text = "\n".join(f"{turn.action}\n{turn.observation}" for turn in trajectory.turns)
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[n : n + length]) for n in range(max(1, len(found) - length + 1))} if found else set()


def similarity(a: set, b: set, threshold: float = 0.0) -> float:
    """Jaccard; 0 as well where the sizes alone keep it under the threshold, which saves most of the time."""
    if min(len(a), len(b)) < threshold * max(len(a), len(b)) - 1:
        return 0.0
    common = len(a & b)
    return common / (len(a) + len(b) - common) if common else 0.0


def by_brute_force(trajectories: Iterable[Trajectory], threshold: float) -> dict[str, tuple[str, str | None]]:
    """id -> (kind, the id that it is a duplicate of); "kept" and None for what stays."""
    found: dict[str, tuple[str, str | None]] = {}
    of_content: dict[tuple, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.id):
        content = tuple((turn.action, turn.observation) for turn in trajectory.turns)
        if content in of_content:
            found[trajectory.id] = ("exact", of_content[content].id)
        else:
            of_content[content] = trajectory
    longest = sorted(of_content, key=lambda content: (-len(content), of_content[content].id))
    beginnings = {longer[:n]: of_content[longer].id for longer in reversed(longest) for n in range(1, len(longer))}
    stays: dict[str, set] = {}
    for content, trajectory in of_content.items():
        if content in beginnings:
            found[trajectory.id] = ("prefix", beginnings[content])
            continue
        own = set_of(trajectory)
        near = (name for name, other in stays.items() if similarity(own, other, threshold) >= threshold)
        if (other := next(near, None)) is not None:
            found[trajectory.id] = ("near", other)
        else:
            found[trajectory.id] = ("kept", None)
            stays[trajectory.id] = own
    return found


def made_up(count: int, seed: int = 0) -> list[Trajectory]:
    """Families of texts with 0 to 40 words of 300 changed, some cut after a turn, some copied, with shuffled ids."""
    draw = random.Random(seed)
    names = [f"t{n:04}" for n in range(count)]
    draw.shuffle(names)
    made: list[Trajectory] = []
    base: list[str] = []
    for name in names:
        if len(made) % 8 == 0:
            base = [f"v{draw.randrange(5000)}" for _ in range(300)]
        changed = list(base)
        for _ in range(draw.choice([1, 2, 4, 6, 8, 12, 16, 24, 40])):
            changed[draw.randrange(300)] = f"x{draw.randrange(5000)}"
        turns = [(f"cat {name[:0]}{n}", " ".join(changed[n * 50 : n * 50 + 50])) for n in range(6)]
        if made and draw.random() < 0.15:
            turns = [(turn.action, turn.observation) for turn in draw.choice(made[-8:]).turns][: draw.randrange(2, 7)]
        made.append(given(name, *turns))
    return made


def widest_gap(trajectories: Sequence[Trajectory], around: float) -> float:
    """A threshold as far from all similarities near `around` as there is one."""
    sets = [set_of(trajectory) for trajectory in trajectories]
    found = {value for a, b in combinations(sets, 2) if abs((value := similarity(a, b)) - around) < 0.04}
    values = sorted({around - 0.04, *found, around + 0.04})
    return max(pairwise(values), key=lambda pair: pair[1] - pair[0])[0] + 1e-3


@pytest.mark.parametrize("around", [0.5, 0.65, 0.8, 0.9])
def test_the_index_agrees_with_brute_force(around) -> None:
    trajectories = made_up(400)
    threshold = widest_gap(trajectories, around)
    expected = by_brute_force(trajectories, threshold)
    stays, count = drop_duplicates(trajectories, DuplicateSettings(threshold=threshold))
    assert [t.id for t in stays] == [t.id for t in trajectories if expected[t.id][0] == "kept"]
    kinds = [kind for kind, _ in expected.values()]
    for kind in ("exact", "prefix", "near", "kept"):
        assert getattr(count, kind) == kinds.count(kind) > 5, kind
    assert count.read == count.kept + count.exact + count.prefix + count.near == 400
    found = {t.id: set_of(t) for t in trajectories}
    assert {pair.dropped for pair in count.pairs} == set(expected) - {t.id for t in stays}
    for pair in count.pairs:
        kind, other = expected[pair.dropped]
        while expected[other][1] is not None:  # what it is a duplicate of may have been dropped as well
            other = expected[other][1]
        assert (pair.kind, pair.kept) == (kind, other)
        assert pair.similarity == pytest.approx(similarity(found[pair.dropped], found[pair.kept]), abs=1e-3)


def test_neither_order_nor_workers_change_what_stays() -> None:
    trajectories = made_up(200, seed=1)
    stays, count = drop_duplicates(trajectories)
    for seed, workers in ((1, 1), (2, 3)):
        shuffled = random.Random(seed).sample(trajectories, len(trajectories))
        again, count_again = drop_duplicates(shuffled, workers=workers)
        assert count_again == count
        assert [t.id for t in again] == [t.id for t in shuffled if t in stays]  # in the order of the input


def test_exact_duplicates_leave_the_smallest_id() -> None:
    turns = [("ls", "a  b"), ("pwd", "/")]
    other_prompt = replace(given("c", *turns), system=System("other", "a"), domain="swe", split_group="h")
    stays, count = drop_duplicates([given("b", *turns), given("a", *turns), other_prompt])
    assert [t.id for t in stays] == ["a"]
    assert (count.exact, count.prefix, count.near) == (2, 0, 0)
    assert count.pairs == [Pair("b", "a", "exact", 1.0), Pair("c", "a", "exact", 1.0)]


def test_text_that_stands_in_another_field_is_other_content() -> None:
    settings = DuplicateSettings(near=False)
    assert kept([given("a", ("x", "yz")), given("b", ("xy", "z")), given("c", ("x", ""), ("", "yz"))], settings) == [
        "a", "b", "c"]  # fmt: skip
    assert kept([given("a", ("ls", "A")), given("b", ("ls", "a")), given("c", ("ls", "a "))], settings) == [
        "a",
        "b",
        "c",
    ]


def test_the_first_turns_of_a_longer_one_go() -> None:
    turns = [("a", "one two three"), ("b", "four five"), ("c", "six seven eight nine ten eleven")]
    files = [given(f"s_{n}", *turns[:n]) for n in (1, 2, 3)]
    stays, count = drop_duplicates(files, ONE_WORD)
    assert [t.id for t in stays] == ["s_3"]
    assert (count.prefix, count.near) == (2, 0)
    # 4 and 7 of the 14 words
    assert count.pairs == [Pair("s_1", "s_3", "prefix", 0.2857), Pair("s_2", "s_3", "prefix", 0.5)]


def test_only_whole_turns_from_the_first_on_make_a_prefix() -> None:
    whole = given("z", ("a", "one two"), ("b", "three four"), ("c", "five"))
    for turns in (
        [("a", "one")],
        [("b", "three four")],
        [("a", "one two"), ("b", "three")],
        [("a", "one two"), ("c", "five")],
    ):
        assert kept([given("a", *turns), whole]) == ["a", "z"]


def test_equally_long_ones_name_the_smallest_and_copies_of_a_prefix_lead_to_what_stays() -> None:
    start = ("a", words(1, 50))
    trajectories = [
        given("1", start), given("2", start),
        given("y", start, ("b", words(100, 200))), given("x", start, ("b", words(300, 400))),
    ]  # fmt: skip
    stays, count = drop_duplicates(trajectories, ONE_WORD)
    assert [t.id for t in stays] == ["y", "x"]
    assert [(pair.dropped, pair.kept, pair.kind) for pair in count.pairs] == [("2", "x", "exact"), ("1", "x", "prefix")]
    longest = given("z", start, ("b", words(500, 600)), ("c", "d"))
    count = drop_duplicates([*trajectories, longest], ONE_WORD)[1]
    assert [(pair.dropped, pair.kept, pair.kind) for pair in count.pairs] == [("2", "z", "exact"), ("1", "z", "prefix")]


def test_near_duplicates_are_compared_with_what_stays_by_ascending_id() -> None:
    # 10 words each: neighbours share 9 of 11 (0.818), the outer two 8 of 12 (0.667)
    left, middle, right = (("", words(n, n + 9)) for n in (0, 1, 2))
    assert kept([given("a", left), given("b", middle), given("c", right)], ONE_WORD) == ["a", "c"]
    assert kept([given("b", left), given("a", middle), given("c", right)], ONE_WORD) == ["a"]
    assert kept([given("a", left), given("c", middle), given("b", right)], ONE_WORD) == ["a", "b"]
    between = drop_duplicates([given("c", middle), given("b", right), given("a", left)], ONE_WORD)[1]
    assert between.pairs == [Pair("c", "a", "near", 0.8182)]  # near to both: the smallest id is named


def test_the_threshold_itself_is_near() -> None:
    pair = [given("a", ("", words(0, 8))), given("b", ("", words(1, 9)))]  # 8 of 10 words
    assert kept(pair, DuplicateSettings(threshold=0.8, shingle_words=1)) == ["a"]
    assert kept(pair, DuplicateSettings(threshold=0.801, shingle_words=1)) == ["a", "b"]


def test_sets_of_other_sizes_are_near_up_to_the_threshold() -> None:
    for size, near in ((80, True), (79, False)):  # all of the smaller is in the larger: size of 100 words
        texts = [("", words(1, size)), ("", words(1, 100))]
        for pair in (texts, texts[::-1]):
            expected = ["a"] if near else ["a", "b"]
            assert kept([given("a", pair[0]), given("b", pair[1])], ONE_WORD) == expected


def test_near_goes_by_words_in_order_not_by_case_and_signs() -> None:
    text = "one two three four five six seven"
    assert kept([given("a", ("ls", text)), given("b", ("ls", "One, two -- three four five six\nseven!"))]) == ["a"]
    assert kept([given("a", ("ls", text)), given("b", ("ls", "seven six five four three two one"))]) == ["a", "b"]
    assert kept([given("a", ("ls", "+")), given("b", ("ls", "-"))], DuplicateSettings(near=False)) == ["a", "b"]
    assert kept([given("a", ("$", "+")), given("b", ("$", "-"))]) == ["a", "b"]  # without a word nothing is near


def test_held_out_groups_go_first_and_are_counted() -> None:
    turns = [("ls", "a"), ("pwd", "/")]
    trajectories = [
        given("a", *turns, group="bench:1"), given("b", *turns, group="mine"),
        given("c", ("id", "x"), group="android-world:Task"), given("d", ("id", "y"), group="android"),
        given("e", ("id", "z"), group="bench:1"),
    ]  # fmt: skip
    stays, count = drop_duplicates(trajectories, None, HeldOut(frozenset({"bench:1", "bench"}), ("android-world:",)))
    assert [t.id for t in stays] == ["b", "d"]  # b is no duplicate: what is held out does not stay
    assert (count.held_out, count.exact, count.kept) == (3, 0, 2)
    assert count.held_out_groups == {"android-world:Task": 1, "bench:1": 2}
    assert count.pairs == []


def test_ids_ascend_by_code_point_and_hostile_text_survives() -> None:
    for hostile in ("\x00 a", "\u2028 a", "\x1b[31m a", "<|im_end|> a", "\ud800 a", "x" * 1_000_000 + " a"):
        same = [given(name, ("ls", hostile)) for name in ("b\x00", "\uffff", "\U0001f600", "b")]
        assert kept(same) == ["b"] == [min(t.id for t in same)]
        assert kept([*same[1:3], given("a", ("ls", hostile + "?"), ("pwd", "/ root of everything"))]) == ["\uffff", "a"]


def test_the_report_names_the_first_pairs_of_each_kind_and_counts_all(monkeypatch) -> None:
    monkeypatch.setattr(duplicates, "PAIRS_KEPT", 2)
    trajectories = [given(f"e{n}", ("ls", "same")) for n in range(5)]
    trajectories += [given(f"n{n}", ("ls", words(0, 99) + f" more{n}")) for n in range(5)]
    count = drop_duplicates(trajectories)[1]
    assert (count.exact, count.near) == (4, 4)
    assert [pair.dropped for pair in count.pairs] == ["e1", "e2", "n1", "n2"]
    assert count.to_dict()["pairs"][0] == {"dropped": "e1", "kept": "e0", "kind": "exact", "similarity": 1.0}


def test_errors_name_the_id_or_the_setting(tmp_path) -> None:
    with pytest.raises(ContentError, match=r"^id: 'a' stands in the input twice"):
        drop_duplicates([given("a", ("ls", "x")), given("a", ("ls", "y"))])
    for settings, name in ((DuplicateSettings(threshold=0), "threshold=0"), (DuplicateSettings(threshold=1.2), "1.2"),
                           (DuplicateSettings(shingle_words=0), "shingle_words=0")):  # fmt: skip
        with pytest.raises(RequestError, match=name):
            drop_duplicates([], settings)
    with DuplicateIndex(folder=tmp_path) as index:
        index.add([given("b1", ("ls", "y")), given("c", ("ls", "y"))])
        index.add([given("a", ("ls", "x"))])
        index.resolve()
        assert list(index.kept()) == [True, False, True]  # in the order of the input
    assert list(tmp_path.iterdir()) == []


@needs_corpora
def test_recorded_trajectories_agree_with_brute_force() -> None:
    trajectories = [t for t in recorded() if t.source != "agentworldbench"]
    expected = by_brute_force(trajectories, 0.8)
    count = drop_duplicates(trajectories)[1]
    found = {pair.dropped: pair.kind for pair in count.pairs}
    assert count.exact + count.near + count.prefix == len(found) > 500
    assert found == {name: kind for name, (kind, _) in expected.items() if kind != "kept"}
