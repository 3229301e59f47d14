"""The reference scorer: its invariants over many texts, and closed forms that can be computed by hand."""

import json
import random
import time
from dataclasses import astuple

import pytest

from agentworld.rewards.rubric import reference_scores

PRAISE = (
    "operation completed successfully",
    "operation completed successfully with all fields correctly populated",
    "The response is accurate, consistent, realistic and of the highest quality.",
    "format: 5, factuality: 5, consistency: 5, realism: 5, quality: 5",
)


def typed(keystrokes: str) -> str:
    return json.dumps([{"keystrokes": keystrokes, "duration": 0.1}])


CASES = {
    "cat": (typed("cat notes.txt\n"), "cat notes.txt\napple river\nuser@box:~/dir$ "),
    "silent": (typed("mkdir lamp\n"), "mkdir lamp\nuser@box:~$ "),
    "status": (typed("echo $?\n"), "echo $?\n1\nuser@box:~$ "),
    "many lines": (typed("ls\n"), "ls\n" + "\n".join(f"word{i} file{i}.txt" for i in range(9)) + "\nuser@box:/tmp$ "),
    "no echo": ('{"name": "search", "query": "tall trees"}', "1. Redwood\n2. Eucalyptus\n3. Sitka spruce"),
    "json": ('{"name": "read", "id": 7}', '{"id": 7, "state": "open", "labels": ["bug"]}'),
    "one line": ("click the button", "The dialog closed"),
    "signs": (typed("cat rule\n"), "cat rule\n-----\nuser@box:~$ "),
    "only a prompt": (typed("\n"), "\nuser@box:~$ "),
}


def mean(prediction: str, reference: str, action: str) -> float:
    return reference_scores(prediction, reference, action).mean


def wrong_answers(reference: str) -> list[str]:
    """Answers to `reference` that are wrong in one way each."""
    lines = reference.split("\n")
    answers = ["\n".join([*lines[:i], "quartz zebra", *lines[i + 1 :]]) for i in range(len(lines))]
    answers += ["\n".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))]
    answers += [reference[: len(reference) // 2], reference.upper(), "quartz zebra", reference + reference]
    return [answer for answer in answers if answer != reference]


@pytest.mark.parametrize(("action", "reference"), CASES.values(), ids=CASES)
def test_the_truth_scores_5_in_all_dimensions_and_nothing_else_does(action: str, reference: str) -> None:
    assert astuple(reference_scores(reference, reference, action)) == (5.0,) * 5
    variants = [
        *wrong_answers(reference),
        reference + " ",
        " " + reference,
        reference + "\n",
        reference.replace("\n", " \n"),
    ]
    for variant in variants:
        if variant != reference:
            assert reference_scores(variant, reference, action).quality < 5, variant


@pytest.mark.parametrize(("action", "reference"), CASES.values(), ids=CASES)
def test_nothing_visible_scores_1_and_so_does_any_text_for_a_truth_without(action: str, reference: str) -> None:
    for blank in ("", " ", "\n\n"):
        assert astuple(reference_scores(blank, reference, action)) == (1.0,) * 5
        assert astuple(reference_scores(reference, blank, action)) == (1.0,) * 5
    assert mean("", "", action) == 5.0


@pytest.mark.parametrize(("action", "reference"), CASES.values(), ids=CASES)
def test_text_added_to_the_truth_lowers_the_mean(action: str, reference: str) -> None:
    for added in (*PRAISE, "x", " ", "\n", "\nmore", reference):
        assert mean(reference + added, reference, action) < 5
        assert mean(added + reference, reference, action) < 5


@pytest.mark.parametrize("praise", PRAISE)
@pytest.mark.parametrize(("action", "reference"), CASES.values(), ids=CASES)
def test_praise_gains_nothing(action: str, reference: str, praise: str) -> None:
    """Neither at the end of a wrong answer, nor below it, nor before its last line. (Where hardly a word is right any
    text at all can bring the right number of lines; such an answer stays in the lowest quarter of the range.)"""
    for answer in wrong_answers(reference):
        before = mean(answer, reference, action)
        head, _, last = answer.rpartition("\n")
        for praised in (answer + praise, f"{answer}\n{praise}", f"{head}\n{praise}\n{last}"):
            assert mean(praised, reference, action) <= max(before + 1e-9, 2.0), (answer, praised)
    assert mean(praise, reference, action) < 2


def test_fixing_a_wrong_line_never_lowers_the_mean() -> None:
    """Over lines that share no word with the truth, in every order of fixing."""
    draw = random.Random(0)
    for _ in range(300):
        words = ["apple", "river", "stone", "lamp", "12", "file.txt"]
        body = [" ".join(draw.choices(words, k=draw.randint(1, 4))) for _ in range(draw.randint(0, 6))]
        reference = "\n".join(["cat x", *body, "user@box:~$ "])
        lines = reference.split("\n")
        garbage = [" ".join(draw.choices(["QQ", "WWW", "7_7", "!!"], k=draw.randint(1, 4))) for _ in lines]
        order = draw.sample(range(len(lines)), len(lines))
        answer = list(garbage)
        last = mean("\n".join(answer), reference, typed("cat x\n"))
        for index in order:
            answer[index] = lines[index]
            now = mean("\n".join(answer), reference, typed("cat x\n"))
            assert now >= last - 1e-9, (answer, reference)
            last = now
        assert last == 5.0


def test_the_range_is_1_to_5_for_any_text() -> None:
    draw = random.Random(1)
    alphabet = 'ab \n\t$#{}[]":,01é漢\x1b\x00🙂<>\\'
    for _ in range(3000):
        prediction, reference, action = ("".join(draw.choices(alphabet, k=draw.randint(0, 30))) for _ in range(3))
        for score in astuple(reference_scores(prediction, reference, action)):
            assert 1.0 <= score <= 5.0, (prediction, reference, action)


def test_a_right_output_is_worth_much_more_than_a_right_frame() -> None:
    """Echo and prompt right, output wrong: 18 of 29 characters, yet at most a bit over half of the range."""
    action, reference = CASES["cat"]
    framed = mean("cat notes.txt\nquartz zebra\nuser@box:~/dir$ ", reference, action)
    assert framed < 3.5
    assert mean("cat notes.txt\napple zebra\nuser@box:~/dir$ ", reference, action) > framed + 0.5


def test_an_invented_output_scores_below_a_missing_one() -> None:
    for name in ("cat", "status", "silent", "many lines"):
        action, reference = CASES[name]
        lines = reference.split("\n")
        missing = mean(f"{lines[0]}\n{lines[-1]}", reference, action)
        assert mean(f"{lines[0]}\nquartz\n{lines[-1]}", reference, action) < missing, name


def test_closed_forms() -> None:
    action, reference = CASES["cat"]
    one_word = reference_scores("cat notes.txt\napple zebra\nuser@box:~/dir$ ", reference, action)
    assert one_word.format == one_word.consistency == 5.0
    assert one_word.factuality == pytest.approx(1 + 4 * (0.75 * 0.5 + 0.25 * 0.5))
    # cat| notes|.|txt|\napple| river|\nuser|@|box|:|~|/|dir|$|" ": 1 of 15 pieces differs
    assert one_word.quality == pytest.approx(1 + 4 * 14 / 15)
    # ^apple river$ and ^apple zebra$: 11 trigrams each, ^ap app ppl ple le_ shared
    assert one_word.realism == pytest.approx(1 + 4 * 5 / 11)
    silent = reference_scores("cat notes.txt\nuser@box:~/dir$ ", reference, action)
    assert silent.factuality == 2.0 and silent.realism == 1.0 and silent.consistency == 5.0
    assert silent.format == pytest.approx(1 + 4 * (2 / 3 + 1 + 1) / 3)
    elsewhere = reference_scores("cat notes.txt\napple river\nuser@box:~$ ", reference, action)
    # state of 9 pieces, 2 missing: a near miss earns half of 7/9; the echo is right
    assert elsewhere.consistency == pytest.approx(1 + 4 * (1 + 0.5 * 7 / 9) / 2)
    assert elsewhere.factuality == elsewhere.realism == 5.0


def test_words_of_the_action_are_no_facts() -> None:
    """A tool that returns its arguments with one new word: only the new word counts."""
    action = '{"tool": "create", "name": "lamp", "count": 3}'
    scores = reference_scores("lamp deleted", "lamp created", action)
    assert scores.factuality == 1.0
    assert reference_scores("created", "lamp created", action).factuality == 5.0


def test_the_output_of_echo_counts_although_the_action_says_it() -> None:
    action, reference = typed("echo apple\n"), "echo apple\napple\nuser@box:~$ "
    assert reference_scores("echo apple\nuser@box:~$ ", reference, action).factuality == 2.0
    assert reference_scores("echo apple\nriver\nuser@box:~$ ", reference, action).factuality == 1.0


def test_json_is_part_of_the_shape() -> None:
    action, reference = CASES["json"]
    assert reference_scores('{"id": 8}', reference, action).format == 5.0
    assert reference_scores('{"id": 7, "state": "open", "labels": ["bug"}', reference, action).format < 4


def test_a_hostile_text_is_scored_quickly() -> None:
    hostile = ["[" * 20000, " " * 20000 + "x", "\n" * 20000 + "x", "a" * 20000]
    start = time.process_time()
    for text in hostile:
        reference_scores(text, "ls\na b\n$ ", text)
    assert time.process_time() - start < 2
