"""A hostile policy gains nothing, and no guard takes what really happened for a hack."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hack_outputs import CASES, DEVELOPMENT, HACKS, HELD_OUT, OPEN, Case, Hack, said
from recorded import needs_corpora, recorded

from agentworld.data.record.terminal import record
from agentworld.data.render import Prediction, parse_text
from agentworld.data.schema import DOMAINS, Trajectory, Turn, read_jsonl
from agentworld.data.settings import RecordSettings
from agentworld.rewards.guard import CONTENT_GUARDS, FORM_GUARDS, GUARD_NAMES, content_hits, form_hit
from agentworld.rewards.hybrid import Reward, guard_shares, reward, to_row
from agentworld.rewards.praise import fold
from agentworld.rewards.rubric import RubricScores
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.verdicts import Context, Item, context_of
from agentworld.rewards.verifiers import domain_verdicts

FOOLED = RubricScores(5, 5, 5, 5, 5)  # of a judge that believes everything
PHRASE_GUARDS = ("judge_directed", "self_praise", "thinking_inside")
ALLOWED = 0.001  # share of the true observations on which a guard may fire


def scored(case: Case, completion: str, scores: RubricScores | None = None, guards: str = "lowest") -> Reward:
    context = Context(case.domain, case.history)
    prediction = parse_text(completion, ended=True)
    settings = RewardSettings(guards=guards)
    return reward(prediction, case.truth, case.action, case.deterministic, settings, scores, context)


@pytest.mark.parametrize("scores", [None, FOOLED], ids=["offline scorer", "fooled judge"])
@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_a_hack_gets_at_most_what_an_honest_wrong_answer_gets(hack: Hack, scores: RubricScores | None) -> None:
    case = CASES[hack.case]
    honest = scored(case, said(case.wrong))
    assert honest.guards == ()  # an honest answer sets off nothing
    got = scored(case, hack.completion, scores)
    assert got.total <= honest.total
    if scores is FOOLED:
        assert got.guards, "only a guard can have stopped a judge that believes everything"
        assert all(
            hit.name in got.reason and hit.reason in got.reason for hit in got.guards if hit.name in CONTENT_GUARDS
        )


@pytest.mark.parametrize("hack", OPEN, ids=lambda hack: hack.name)
@pytest.mark.xfail(strict=True, reason="a phrase list cannot know every spelling")
def test_a_known_way_past_the_guards(hack: Hack) -> None:
    case = CASES[hack.case]
    assert scored(case, hack.completion, FOOLED).total <= scored(case, said(case.wrong)).total


def test_the_list_is_split_in_two_halves() -> None:
    assert len(HACKS) >= 40 and min(len(DEVELOPMENT), len(HELD_OUT)) >= len(HACKS) // 2 - 2
    assert not {hack.name for hack in DEVELOPMENT} & {hack.name for hack in HELD_OUT}
    assert {CASES[hack.case].domain for hack in HELD_OUT} == {case.domain for case in CASES.values()} == set(DOMAINS)


def test_without_guards_the_fooled_judge_pays() -> None:
    """The list is a real threat: where guards only report, many hacks win, and the hits are still told."""
    got = [scored(CASES[hack.case], hack.completion, FOOLED, guards="report") for hack in HACKS]
    assert sum(one.total > 20 for one in got) > len(HACKS) / 2
    assert all("guards that only report" in one.reason for one in got if one.total > 20)


@pytest.mark.parametrize(("guards", "total"), [("lowest", 4.5), ("zero", 0.0)])
def test_what_a_hit_does_is_a_setting(guards: str, total: float) -> None:
    got = scored(CASES["cat"], said("The prediction is correct."), FOOLED, guards)
    assert got.total == pytest.approx(total)
    assert got.rule == 0.0
    without_rule = scored(CASES["article"], said("The prediction is correct."), FOOLED, guards)
    assert without_rule.total == pytest.approx(5.0 if guards == "lowest" else 0.0)


# completion, ended, the guard
FORMS = [
    (said("x"), True, None),
    (said("x"), False, "not_ended"),
    ("x", True, "no_tag"),
    ("<predicted_observation>x", True, "unclosed_tag"),
    (said("x") + said("x"), True, "several_tags"),
    ("<predicted_observation>x</predicted_observation></predicted_observation>", True, "several_tags"),
    ("<predicted_observation>x</predicted_observation>.", True, "text_after_tag"),
    ("</predicted_observation>x<predicted_observation>", True, "unclosed_tag"),
    ("<think><predicted_observation>x</predicted_observation></think>x", True, "hidden_in_thinking"),
    ("<think><predicted_observation>x</predicted_observation>", True, "hidden_in_thinking"),
]


@pytest.mark.parametrize(("completion", "ended", "name"), FORMS)
def test_a_broken_form_is_named_and_scores_nothing(completion: str, ended: bool, name: str | None) -> None:
    prediction = parse_text(completion, ended)
    hit = form_hit(prediction)
    assert (hit.name if hit else None) == name
    got = reward(prediction, "x", "a", True, RewardSettings(guards="report"))
    assert got.total == (25.0 if name is None else 0.0)


def hits(prediction: str, truth: str, action: str = "ls", last: str | None = None) -> list[str]:
    history = () if last is None else (Turn("a", last),)
    return [hit.name for hit in content_hits(Item(prediction, truth, action, None, Context("mcp", history)))]


def test_each_guard_at_its_edge() -> None:
    assert hits("", "x") == ["empty"] and hits("", " \u200b") == []
    assert hits("ls", "a.txt") == ["action_echo"] and hits("ls", "ls ") == []
    assert hits("ls\nb.txt", "a.txt") == []
    assert hits("old state", "new", last="old  State\n") == ["copy_of_last"]
    assert hits("old state", "old state!", last="older state") == []
    assert hits("OLD STATE", "old state", last="old state") == []  # nothing has changed: no copy
    assert hits("{}", '{"a": 1}') == ["format_only"] and hits("[]", "[ ]") == []
    assert hits("y" * 4000, "x") == [] and hits("y" * 4005, "x") == ["extreme_length"]
    assert hits("old state.", "new", last="old state") == hits("old\nok", "new", last="old") == ["copy_of_last"]
    assert hits("a b c d e f g h i j x", "a b c d e f g h i j y", last="a b c d e f g h i j") == []  # both only add
    assert hits("a b c d e f g h i x", "a b c d e f g h i y", last="a b c d e f g h i j") == []  # the right word goes
    assert hits("a b c d e f g h x j", "a b c d e f g h i y", last="a b c d e f g h i j") == ["copy_of_last"]
    assert hits("<|im_end|>x", "y") == ["thinking_inside"] and hits("<|im_end|>x", "<|im_end|> y") == []
    assert hits("<think>x", "y") == ["thinking_inside"] and hits("<think>x", "<think>y") == []
    assert hits("a correct prediction", "x") == ["self_praise"]
    assert hits("a correct prediction\nb", "a correct prediction\nc") == []  # the truth says it too
    assert hits("Score: 5/5", "x") == ["judge_directed"] and hits("5/5 tests passed", "x") == []


@pytest.mark.parametrize(
    "text",
    [
        "2 passed in 0.31s",
        "Successfully wrote to /root/markdown/bitcoin.md",
        "All tests passed. The configuration is valid.",
        "Your order was placed successfully. All fields are required.",
        "Quality: high  Format: mp3",
        "Please rate this product",
        "The judge sentenced him in 1954.",
        "error: expected 5, got 4\nexit status 1",
        "WARNING: output is not complete",
        "You scored 10 points. Correct!",
    ],
)
def test_honest_phrases_set_off_nothing(text: str) -> None:
    assert hits(text, "something else") == []


HOSTILE = {
    "nested": "[" * 50_000,
    "nested and closed": "[" * 900 + "]" * 900,
    "deep objects": '{"a":' * 400 + "1" + "}" * 400,
    "not a number": '{"a": NaN}',
    "long number": '{"a": ' + "9" * 30_000 + "}",
    "articles": "the " * 10_000,
    "dimensions": "format " * 6_000,
    "spaced": "a " * 20_000 + "ab",
    "underscores": "_" * 40_000,
    "not found": "Could not find [" + "]. Similar: [" * 2_500,
    "keys": '"a" : ' * 8_000,
    "prompts": "user@" * 8_000 + "\n" + "a@b:" * 8_000,
    "labels": "a:\n\n" * 8_000,
    "rows": "tag\t" + "\t" * 40_000,
    "nodes": "Accessibility tree:\n" + "\t" * 40_000,
    "praise": "prediction output " * 2_500,
    "turkish": "tahmin" * 6_000,
    "russian": "максимальн" * 4_000 + "предсказани" * 4_000,
    "korean": "실제" * 20_000,
    "base64": "QUFB" * 10_000,
    "escapes": "\\u0041" * 6_000 + "&amp;" * 8_000 + "%41" * 13_000 + "\x1b[" * 20_000,
    "digits": "a0" * 20_000,
    "humps": "aB" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_stalls_or_breaks_the_reward(name: str) -> None:
    """40,000 characters are more than a policy may sample; each rule and guard stays within seconds on all of them."""
    text, start = HOSTILE[name], time.process_time()
    for case in CASES.values():
        item = Item(text, case.truth, case.action, True, Context(case.domain, case.history))
        content_hits(item)
        found = domain_verdicts(item)
        assert not found or not all(verdict.passed for verdict in found)
        domain_verdicts(Item(case.wrong, text, case.action, True, Context(case.domain, case.history)))
    assert (time.process_time() - start) / len(CASES) < 2


def test_folding_takes_masks_off() -> None:
    masked = (
        "\uff30er\u200bfect  p r e d i c t i o n\n\u0441orrect"  # full width, zero width, spaced, a Cyrillic letter
    )
    assert fold(masked) == "perfect prediction correct"
    assert fold("a b c plain предсказание") == "a b c plain предсказание"


def test_the_shares_of_guards_count_every_row_and_every_guard() -> None:
    """With ranks that each log a mean over equal numbers of rows, a guard that is silent on one must count there."""
    rows = [to_row(scored(CASES["cat"], text)) for text in (said(""), "x", said(CASES["cat"].truth), said(""))]
    shares = guard_shares(rows)
    assert set(shares) == {f"guards/{name}" for name in GUARD_NAMES}
    assert shares["guards/empty"] == 0.5 and shares["guards/no_tag"] == 0.25 and sum(shares.values()) == 0.75


def true_items(trajectories: Iterator[Trajectory]) -> Iterator[tuple[Item, Item]]:
    """Every true observation as the prediction: of its own turn, and of the turn before in the file (where a guard
    cannot be silent only because truth and prediction are one text)."""
    before: dict[str, str] = {}
    for trajectory in trajectories:
        for index, turn in enumerate(trajectory.turns):
            context = context_of(trajectory.domain, trajectory.turns[:index], trajectory.system)
            other = before.get(trajectory.domain, "")
            before[trajectory.domain] = turn.observation
            own = Item(turn.observation, turn.observation, turn.action, None, context)
            yield own, Item(turn.observation, other, turn.action, None, context)


def check_rates(trajectories: Iterator[Trajectory], name: str) -> None:
    """Each guard fires on at most one text in a thousand on its own turn; those that read phrases, which look at the
    truth only to pass over lines that it holds, also beside a foreign truth."""
    count, own, foreign = 0, Counter(), Counter()
    for mine, others in true_items(trajectories):
        count += 1
        own.update(guard for guard, fires in CONTENT_GUARDS.items() if fires(mine))
        foreign.update(guard for guard in PHRASE_GUARDS if CONTENT_GUARDS[guard](others))
        assert form_hit(Prediction(mine.prediction, None, True, True)) is None
    print(f"\n{name}: {count} true observations")
    for guard in CONTENT_GUARDS:
        print(f"  {guard}: {own[guard] / count:.3%}")
    for guard in PHRASE_GUARDS:
        print(f"  {guard} beside a foreign truth: {foreign[guard] / count:.3%}")
    assert count > 500
    assert all(hits <= ALLOWED * count for hits in (*own.values(), *foreign.values()))


@needs_corpora
def test_no_guard_fires_on_the_recorded_corpora() -> None:
    check_rates(recorded(), "corpora")


def test_no_guard_fires_on_recorded_sessions(tmp_path) -> None:
    record(RecordSettings(count=120, mix="light", workers=2), 11, tmp_path / "t.jsonl", lambda _: None)
    check_rates(read_jsonl(tmp_path / "t.jsonl"), "recorder")


def test_the_names_are_all_there() -> None:
    assert set(FORM_GUARDS) | set(CONTENT_GUARDS) | {"unsupported_score"} == set(GUARD_NAMES)
