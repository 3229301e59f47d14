"""The parser of a judge's reply: every usual way to write five scores is read, and no other content is."""

import json
import random

import pytest

from agentworld.rewards.judge_reply import DIMENSIONS, ReplyError, parse_choice, parse_reply
from agentworld.rewards.rubric import RubricScores

GOOD = {"format": 5, "factuality": 2, "consistency": 4, "realism": 3.5, "quality": 1}
SCORES = RubricScores(**GOOD)


def block(text: str) -> str:
    return f"<final_evaluation>{text}</final_evaluation>"


def spelled(scores: dict, draw: random.Random) -> str:
    """The scores in one of the ways in which models write them."""
    items = list(scores.items())
    draw.shuffle(items)
    nested = draw.random() < 0.3
    values = {
        draw.choice([name, name.upper(), name.capitalize()]): {"score": value, "reason": 'it\'s "so"'}
        if nested
        else value
        for name, value in items
    }
    if draw.random() < 0.3:
        values["comment"] = "5 of 5; {braces} inside"
    text = draw.choice([json.dumps(values), json.dumps(values, indent=2), repr(values)])
    if draw.random() < 0.3:
        text = text[:-1].rstrip() + ",}"
    if draw.random() < 0.3:
        text = f"```json\n{text}\n```"
    if draw.random() < 0.3:
        text = f"\n\n {text} \n"
    text = block(text)
    if draw.random() < 0.3:
        text = f"<think>perhaps {block(json.dumps(dict.fromkeys(DIMENSIONS, 5)))}</think>{text}"
    if draw.random() < 0.3:
        text = f"The prediction says {block(json.dumps(dict.fromkeys(DIMENSIONS, 5)))}, which I ignore.\n{text}"
    return text


def test_whatever_way_the_scores_are_written_they_are_read() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        scores = {name: draw.choice([1, 2, 3, 4, 5, 1.5, 4.25]) for name in DIMENSIONS}
        text = spelled(scores, draw)
        assert parse_reply(text) == RubricScores(**scores), text


def test_one_damage_to_any_spelling_is_refused() -> None:
    draw = random.Random(1)
    wrong = [0, 6, -1, 5.01, 0.99, 1e308, "4", "high", None, True, [4], {}, {"score": 9}, {"score": "4"}, {"value": 4}]
    for _ in range(2000):
        scores = {name: draw.randint(1, 5) for name in DIMENSIONS}
        name = draw.choice(DIMENSIONS)
        if draw.random() < 0.3:
            del scores[name]
        else:
            scores[name] = draw.choice(wrong)
        text = block(draw.choice([json.dumps, repr])(scores))
        with pytest.raises(ReplyError):
            parse_reply(text)


def test_a_random_cut_never_changes_a_score() -> None:
    """A reply that breaks off gives the scores of the whole or none."""
    draw = random.Random(2)
    text = "Words first. " + block(json.dumps(GOOD))
    for _ in range(500):
        cut = text[: draw.randrange(len(text))]
        try:
            assert parse_reply(cut) == SCORES, cut
        except ReplyError:
            assert "}" not in cut, cut


@pytest.mark.parametrize(
    "reply",
    [
        json.dumps(GOOD),
        f"```\n{json.dumps(GOOD)}\n```",
        f"thoughts without their start</think>{json.dumps(GOOD)}",
        f"<final_evaluation>Here: {json.dumps(GOOD)} as asked.",
        f"{block('{}')}{block(json.dumps(GOOD))}",
    ],
)
def test_forms_around_the_object(reply: str) -> None:
    assert parse_reply(reply) == SCORES


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "no evaluation"),
        (block(""), "no evaluation"),
        ("I give it 4 of 5.", "neither JSON"),
        (f"Judged: {json.dumps(GOOD)}", "neither JSON"),  # an object among words may be a quotation
        (f"<think>{block(json.dumps(GOOD))}", "no evaluation"),  # only thought
        (f"{block(json.dumps(GOOD))}{block('unsure')}", "neither JSON"),  # the last block counts
        (block("[1, 2, 3, 4, 5]"), "no object"),
        (block(json.dumps(GOOD) + json.dumps(GOOD)), "neither JSON"),
        (block(json.dumps(GOOD)[:-1] + ', "format": 1}'), "twice"),
        (block(repr(GOOD)[:-1] + ", 'format': 1}"), "twice"),
        (block(json.dumps(GOOD)[:-1] + ', "Format": 1}'), "twice"),
        (block(json.dumps(GOOD | {"format": float("nan")})), "not from 1 to 5"),
        (block("{" * 5000 + "}"), "neither JSON"),
        (block(json.dumps(GOOD | {"x": "y" * 30_000})), "30"),
        (block("__import__('os').getcwd()"), "neither JSON"),
    ],
)
def test_what_is_refused_says_why(reply: str, reason: str) -> None:
    with pytest.raises(ReplyError, match=reason):
        parse_reply(reply)


CHOSEN = [
    (r"\boxed{A}", "A"),
    (r"First \boxed{A}, but on reflection \boxed{B}.", "B"),
    (r"$\boxed{\text{B}}$", "B"),
    (r"\boxed{Candidate A}", "A"),
    (r"\boxed{tie}", "tie"),
    (r"<think>\boxed{A}</think>\boxed{b}", "B"),
    (r"\boxed{A} stands in the answer. " + block('{"winner": "B"}'), "B"),
    (block('{"winner": "B"}') + r" so \boxed{A}", "A"),
    (r"<final_evaluation>\boxed{A}</final_evaluation>", "A"),
    (block('{"winner": "A"}'), "A"),
    (block("{'Winner': 'the answer b',}"), "B"),
    (block('```json\n{"reason": "B lacks {x}", "winner": "A"}\n```'), "A"),
    (block("B"), "B"),
    (f"<final_evaluation>Here: {json.dumps({'winner': 'Tie'})} as asked.", "tie"),
    ('{"winner": "A"}', "A"),
    ("**B**", "B"),
    ("thoughts without their start</think>A.", "A"),
]


@pytest.mark.parametrize(("reply", "choice"), CHOSEN)
def test_a_choice_is_read_however_it_is_written(reply: str, choice: str) -> None:
    assert parse_choice(reply) == choice


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "none of A, B, tie"),
        ("A is better", "none of"),
        ("Both A and B are good.", "none of"),
        (r"\boxed{C}", "none of"),
        (r"\boxed{A or B}", "none of"),
        (r"\boxed{}", "none of"),
        (r"\boxed{A", "not closed"),
        (r"\boxed{A} then \boxed{B", "not closed"),
        (r"<think>\boxed{A}", "none of"),
        ("<final_evaluation>A", "not closed"),
        (f"{block('A')}{block('unsure')}", "none of"),
        (block('{"best": "A"}'), "has no winner"),
        (block('{"winner": 1}'), "no text"),
        (block('{"winner": ["A"]}'), "no text"),
        (block('{"winner": "A", "winner": "B"}'), "twice"),
        (block('{"winner": "A"'), "neither JSON"),
        (f"So {json.dumps({'winner': 'A'})}, as I said", "neither JSON"),
        (block("x" * 30_000), "30000"),
        (block("{" * 5000 + "}"), "neither JSON"),
    ],
)
def test_any_other_choice_is_refused(reply: str, reason: str) -> None:
    with pytest.raises(ReplyError, match=reason):
        parse_choice(reply)


@pytest.mark.parametrize("text", [r"Words first. \boxed{A}", "Words first. " + block('{"winner": "A"}')])
def test_a_cut_never_changes_a_choice(text: str) -> None:
    for length in range(len(text)):
        try:
            assert parse_choice(text[:length]) == "A", text[:length]
        except ReplyError:
            assert "}" not in text[:length]
