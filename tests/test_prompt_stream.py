"""Domain balance of RL: shares, whole groups, and a resume that goes on in the same stream."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

import pytest
from accelerate.data_loader import SkipBatchSampler
from torch.utils.data import BatchSampler
from trl.trainer.utils import RepeatSampler

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import prompt_stream
from agentworld.train.compose import compose

DOMAINS = ["terminal"] * 20 + ["swe"] * 7 + ["mcp"] * 11 + ["web"] * 9
WEIGHTS = {"terminal": 2.0, "swe": 1.0, "mcp": 0.7, "web": 0.0}
ROLLOUTS, PER_ROLLOUT = 40, 10


def drawn(rollouts: int = ROLLOUTS, seed: int = 3) -> list[int]:
    return prompt_stream.draw(DOMAINS, WEIGHTS, rollouts, PER_ROLLOUT, seed)


def test_every_rollout_holds_the_shares_to_within_one_prompt_and_the_run_to_within_two() -> None:
    """Also for many domains with odd weights."""
    random = Random(0)
    names = ["terminal", "swe", "mcp", "web", "search", "os", "android"]
    odd = [{name: random.choice([0.1, 0.3, 1, 2.7, 9]) for name in names} for _ in range(20)]
    for weights in (WEIGHTS, {"terminal": 1, "swe": 1, "mcp": 1}, {"terminal": 0.97, "swe": 0.03}, *odd):
        parts = prompt_stream.shares(weights)
        assert sum(parts.values()) == 1
        total: Counter[str] = Counter()
        for number, counts in enumerate(prompt_stream.rollout_counts(parts, 200, PER_ROLLOUT), start=1):
            assert sum(counts.values()) == PER_ROLLOUT
            assert all(abs(counts[name] - part * PER_ROLLOUT) < 1 for name, part in parts.items())
            total.update(counts)
            assert all(abs(total[name] - part * PER_ROLLOUT * number) < 2 for name, part in parts.items())


def test_shares_are_those_of_the_decimals_that_the_recipe_names() -> None:
    """With binary fractions 7 prompts of 10 would be a hair more, and a domain of 7 prompts would be refused."""
    tenths = prompt_stream.shares({"terminal": 0.1, "swe": 0.7, "mcp": 0.2, "web": 0.0})
    assert tenths == {"terminal": Fraction(1, 10), "swe": Fraction(7, 10), "mcp": Fraction(2, 10)}


def test_the_domains_of_a_rollout_are_mixed() -> None:
    order = drawn()
    names = [[DOMAINS[n] for n in order[first : first + PER_ROLLOUT]] for first in range(0, len(order), PER_ROLLOUT)]
    changes = [sum(one != next_ for one, next_ in pairwise(rollout)) for rollout in names]
    assert sum(changes) / len(changes) > 4, "2 where a rollout holds one domain after the other; 5.6 by chance"


def test_which_prompts_stand_together_depends_on_seed_domain_and_pass() -> None:
    """As sets: the order within a rollout is drawn apart, and would hide that nothing else is."""

    def passes(seed: int) -> list[list[set[int]]]:
        order = prompt_stream.draw(["terminal"] * 20 + ["swe"] * 20, {"terminal": 1, "swe": 1}, 8, 10, seed)
        rollouts = [order[first : first + 10] for first in range(0, 80, 10)]
        sets = [[{n % 20 for n in rollout if n // 20 == domain} for rollout in rollouts] for domain in (0, 1)]
        return [one[start : start + 4] for one in sets for start in (0, 4)]

    found = [*passes(0), *passes(1), [set(range(first, first + 5)) for first in range(0, 20, 5)]]
    assert all(set.union(*one) == set(range(20)) for one in found)
    assert all(one != other for one, other in combinations(found, 2))


def test_a_domain_is_used_up_before_a_prompt_of_it_comes_again() -> None:
    order = drawn()
    assert {DOMAINS[number] for number in order} == {"terminal", "swe", "mcp"}, "a weight of 0 leaves a domain out"
    met = dict.fromkeys((number for number, name in enumerate(DOMAINS) if name != "web"), 0)
    for first in range(0, len(order), PER_ROLLOUT):
        for number in order[first : first + PER_ROLLOUT]:
            met[number] += 1
        for domain in ("terminal", "swe", "mcp"):
            times = [count for number, count in met.items() if DOMAINS[number] == domain]
            assert max(times) - min(times) <= 1
    assert met[order[0]] > 5
    first = [[n for n in order[start:] if DOMAINS[n] == "terminal"][:20] for start in (0, 20 * PER_ROLLOUT)]
    assert first[0] != first[1], "each pass has an order of its own"


def test_no_rollout_holds_a_prompt_twice_and_equal_seeds_draw_equally() -> None:
    order = drawn()
    tight = prompt_stream.draw(DOMAINS, {"swe": 7.0, "terminal": 4.0}, 50, 11, 0)  # all 7 of swe in every rollout
    for stream, size in ((order, PER_ROLLOUT), (tight, 11)):
        assert all(len(set(stream[first : first + size])) == size for first in range(0, len(stream), size))
    assert drawn() == order != drawn(seed=4)
    assert drawn(rollouts=7) == order[: 7 * PER_ROLLOUT], "more steps lengthen the stream and change nothing before"


def test_the_trainers_sampler_keeps_groups_whole_and_skips_to_where_a_resume_goes_on() -> None:
    """TRL's own sampler on the drawn order, as GRPOTrainer sets it up for 2 mini-batches a rollout of groups of 4."""
    group, uses = 4, 2
    order = drawn()
    sampler = RepeatSampler(order, mini_repeat_count=group, batch_size=PER_ROLLOUT, repeat_count=uses, shuffle=False)
    met = [order[place] for place in sampler]
    size = PER_ROLLOUT * group
    rollouts = [met[first : first + size] for first in range(0, len(met), size)]
    assert len(rollouts) == ROLLOUTS * uses, "nothing is cut off at the end"
    for number, rollout in enumerate(rollouts):
        expected = order[number // uses * PER_ROLLOUT :][:PER_ROLLOUT]
        assert rollout == [key for key in expected for _ in range(group)]
    batches = BatchSampler(sampler, batch_size=size // 2, drop_last=False)
    resumed = list(SkipBatchSampler(batches, skip_batches=9))
    assert resumed == list(batches)[9:]


def test_what_is_reported_is_what_is_drawn() -> None:
    order = drawn()
    facts = prompt_stream.stream_facts(DOMAINS, order)
    assert facts["web"] == {"prompts": 9, "drawn": 0, "share": 0.0}
    for domain in ("terminal", "swe", "mcp"):
        assert abs(facts[domain]["drawn"] - Fraction(str(WEIGHTS[domain])) / Fraction("3.7") * len(order)) < 1
        assert facts[domain]["share"] == facts[domain]["drawn"] / len(order)
    assert prompt_stream.stream_facts(DOMAINS, None)["mcp"] == {"prompts": 11, "share": 11 / 47}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"terminal": 1, "swe": 1, "mcp": 1}, "names no weight for web, which has 9 prompts; add web: 0"),
        ({**WEIGHTS, "search": 1}, "gives search up to 3 of the 10 prompts of a rollout, and there are 0"),
        ({**WEIGHTS, "swe": 9}, r"gives swe up to 8 of the 10 .* and there are 7: a rollout would hold a prompt twice"),
    ],
)
def test_weights_that_the_prompts_cannot_follow_are_refused(weights, said) -> None:
    with pytest.raises(ContentError, match=said):
        prompt_stream.require_domains(weights, DOMAINS, PER_ROLLOUT)
    prompt_stream.require_domains(WEIGHTS, DOMAINS, PER_ROLLOUT)
    prompt_stream.require_domains({}, DOMAINS, 100)
    prompt_stream.require_domains({"swe": 7.0, "terminal": 4.0, "mcp": 0, "web": 0}, DOMAINS, 11)  # just enough of swe


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.domain_weights={terminals:1}", r"rl\.domain_weights\.terminals: no such domain"),
        ("rl.domain_weights={terminal:-1}", r"rl\.domain_weights\.terminal=-1.0 must not be negative"),
        ("rl.domain_weights={terminal:nan}", r"rl\.domain_weights\.terminal must be a finite number"),
        ("rl.domain_weights={terminal:inf}", r"rl\.domain_weights\.terminal must be a finite number"),
        ("rl.domain_weights={terminal:0}", "all 0"),
        ("rl.pilot_completions=1", r"rl\.pilot_completions=1 .* at least 2"),
        ("reward=reference", r"set rl\.pilot_completions to at least 2"),
        ("rl.pilot_completions=-1", r"rl\.pilot_completions=-1 .* at least 2"),
    ],
)
def test_recipes_that_say_nothing_to_draw_are_refused(override, said) -> None:
    with pytest.raises(RequestError, match=said):
        compose(["recipe=smoke", override])
