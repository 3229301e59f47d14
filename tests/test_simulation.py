"""Simulation instructions: search tells its query and keeps its answer; the others say less than the observation."""

import json
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from recorded import needs_corpora, recorded
from renderers import TOKENIZERS
from sessions import session

from agentworld.data.examples import example
from agentworld.data.outcomes import QUOTED, outcome
from agentworld.data.render import Renderer
from agentworld.data.rows import rl_prompt
from agentworld.data.schema import DOMAINS, System, Trajectory, Turn
from agentworld.data.simulation import (
    CONTROLLED_DOMAINS,
    CONTROLLED_SHARE,
    InstructionCount,
    instructed,
    search_instruction,
)
from agentworld.data.system_prompts import EVALUATION_VERSION, VERSIONS, system_prompt
from agentworld.train import evaluate
from agentworld.train.config import Config

PROMPT = "me@box:~$ "


def simulation_instruction(
    trajectory: Trajectory, index: int, seed: int, share: float = CONTROLLED_SHARE
) -> str | None:
    return instructed(trajectory, index, seed, share)[0].system.simulation_instruction


def count_instructions(targets: list[tuple[Trajectory, int]], seed: int, share: float) -> InstructionCount:
    count = InstructionCount()
    for trajectory, index in targets:
        count.add(instructed(trajectory, index, seed, share)[1])
    return count


def made(domain: str, *turns: tuple, start: str | None = None, own: str | None = None, name: str = "t") -> Trajectory:
    system = System("TASK", "ACTIONS", initial_state=start, simulation_instruction=own)
    return Trajectory(name, domain, "test", "g", system, [Turn(*turn) for turn in turns])


def said(domain: str, action: str, observation: str, before: str | None = None) -> str | None:
    return outcome(made(domain, (action, observation), start=before), 0)


def keys(text: str) -> str:
    return json.dumps([{"keystrokes": text, "duration": 0.1}])


NOTHING = "the command prints nothing."
SHELL = [
    ("cat a", "cat: a: Permission denied\n", "an error is reported: permission is denied."),
    ("cat a", "cat: open 'a': No such file or directory", "an error is reported: a file or directory does not exist."),
    ("x1", "bash: x1: command not found\n", "an error is reported: the command is not found."),
    (
        "file x",
        "x: cannot open `x' (No such file or directory)",
        "an error is reported: a file or directory does not exist.",
    ),
    ("cat notes", "Permission denied is what it said\n", "the command prints 1 line, not counting blank ones."),
    ("ls", "a.txt\nb.txt\nc.txt\n", "the listing shows 3 entries."),
    (
        "ls -la /srv",
        "total 8\ndrwxr-xr-x 2 a b 4 May 1 .\n-rw-r--r--. 1 a b 4 May 1 x y\n",
        "the listing shows 2 entries.",
    ),
    ("ls a b | wc -l", "2\n", "the command prints one whole number."),
    ("find . -name x", "./x\n", "the listing shows 1 entry."),
    ("grep -n max f.py", "1:max\n9:max\n", "the search finds 2 lines."),
    ("grep -c max f.py", "2\n", "the command prints one whole number."),
    ("touch a", "", NOTHING),
    ("cat a", "one\n\ntwo\n", "the command prints 2 lines, not counting blank ones."),
    ("[ -f a ] && echo yes", "yes\n", "the command prints 1 line, not counting blank ones."),
    (
        "python x.py",
        'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    1/0\nZeroDivisionError: by zero',
        "the output holds a Python traceback, of type ZeroDivisionError.",
    ),
    ("pytest", "..F\n=== 1 failed, 2 passed in 0.03s ===\n", "the test run ends with 1 failed, 2 passed."),
    ("python -m unittest", "...\nRan 3 tests in 0.1s\n\nOK\n", "3 tests are run, and the run passes."),
    ("make", "<returncode>2</returncode>\n<output>\nstop\n</output>", "the command ends with exit status 2."),
    ("true", "<returncode>0</returncode>\n<output>\n</output>", "the command prints nothing."),
    ("<function=execute_bash>", "Exit code: Error: Exit code 1\nx", "the command ends with exit status 1."),
    ("<function=execute_bash>", "Exit code: 0\nExecution output of [b]:\n[STDOUT]\n\n \n[STDERR]\n\n", NOTHING),
    (
        "<function=execute_bash>",
        "Exit code: 0\nExecution output of [b]:\n[STDOUT]\n\na\n\n[STDERR]\n\nb\n",
        "the command prints 2 lines, not counting blank ones.",
    ),
    ("<function=edit>", "Done.\n\n 1 x\n", "the tool answers with 2 lines, not counting blank ones."),
    ("make", "Exit code: 0\nx", None),
]


@pytest.mark.parametrize("domain", ["terminal", "swe"])
@pytest.mark.parametrize(("action", "observation", "expected"), SHELL)
def test_what_is_said_of_a_command(domain, action, observation, expected):
    assert said(domain, action, observation) == expected


def test_keystrokes_are_read_between_echo_and_prompt():
    assert said("terminal", keys("ls\n"), f"ls\na\nb\n{PROMPT}", PROMPT) == "the listing shows 2 entries."
    assert said("terminal", keys("touch a\n"), f"touch a\n{PROMPT}", f"x\n{PROMPT}") == "the command prints nothing."
    assert said("terminal", keys("pwd\n"), f"{PROMPT}pwd\n/srv\n{PROMPT}", PROMPT) == (
        "the command prints 1 line, not counting blank ones."
    )
    error = f"cat b\ncat: b: Permission denied\n{PROMPT}"
    assert said("terminal", keys("cat b\n"), error) == "an error is reported: permission is denied."
    unknown = [
        (keys("cd lab\n"), "cd lab\nme@box:~/lab$ ", PROMPT),  # a new prompt: where the output ends is not known
        (keys("ls\n"), f"ls\na\n{PROMPT}", None),
        (keys("ls"), "ls", PROMPT),  # nothing was sent
        (keys("cat <<E\nx\nE\n"), f"cat <<E\n> x\n> E\nx\n{PROMPT}", PROMPT),
        (keys("\u0003"), f"^C\n{PROMPT}", PROMPT),
    ]
    assert [said("terminal", *case) for case in unknown] == [None] * len(unknown)


def envelope(text: str, failed: bool) -> str:
    return json.dumps({"_meta": None, "content": [{"type": "text", "text": text}], "isError": failed}, indent=2)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (envelope("no such id", True), "the call fails, and the result is marked as an error."),
        (envelope('{"error": "x"}', False), "the call succeeds, and the result is an object with the members error."),
        (envelope("[1, 2]", False), "the call succeeds, and the result is a list of 2 items."),
        ("Error: seats are sold out", "the call fails with an error message."),
        ('{"a": 1, "b c": 2, "d": {}}', "the result is an object with the members a, d, among others."),
        ("[]", "the result is a list of 0 items."),
        ("-12.5", "the result is one number."),
        ("", "the result is empty."),
        ("Fine. Which day is it?", "the answer ends with a question."),
        ("word " * 34, "the answer is a text of about 30 words."),
        ("Yes, please.", None),  # nothing can be said that is not the answer
        ("true", None),
    ],
)
def test_what_is_said_of_a_call(observation, expected):
    assert said("mcp", '{"name": "t", "arguments": {}}', observation) == expected


def test_what_is_said_of_screens():
    def row(number: int, text: str) -> str:
        return f'[{number:>3}] | android.widget.TextView | text="{text}" desc="d" | bounds=[0,0][9,9]'

    before, long = row(0, "Home"), row(2, "x" * QUOTED)
    assert said("android", "{}", before, before) == "the screen stays as it is."
    assert said("android", "{}", f"{before}\n{long}\n{row(2, 'Wi-Fi')}", before) == (
        'the screen has 3 elements, among them "Wi-Fi", which was not there before.'
    )
    assert said("android", "{}", row(0, r"a \"b\""), before) == (
        r'the screen has 1 element, among them "a \"b\"", which was not there before.'
    )
    assert said("android", "{}", f"{before}\n{before}", before) == "the screen has 2 elements."
    head = "tag\tname\ttext\nframe\tDesk\t\n"
    assert said("os", "WAIT", f"{head}menu-item\tCopy\tCopy\n", head) == (
        'the screen has 2 elements, among them the menu-item "Copy", which was not there before.'
    )
    page = (
        "Open tabs:\n- Tab 0 (active)\n  - Title: {}\n  - URL: u\n{}\nAccessibility tree:\nRootWebArea 'x'\n\t[1] a\n"
    )
    assert said("web", "go_back()", page.format("Shop", ""), page.format("Cart", "")) == (
        'the active page is then titled "Shop".'
    )
    assert said("web", "noop()", page.format("Shop", ""), page.format("Shop", "")) == (
        "the tree of the active page has 1 node below its root."
    )
    failed = page.format("Shop", "\nError of the last action:\nError: TimeoutError: Locator.click\n")
    assert (
        said("web", "click('1')", failed, page.format("Cart", ""))
        == "the call fails with an error of type TimeoutError."
    )


def test_less_is_said_than_the_observation_holds():
    secret = "q" * (QUOTED + 1)
    for domain in DOMAINS[:1] + DOMAINS[2:]:
        for text in (
            secret,
            f'{{"{secret}": 1}}',
            f"- Tab 0 (active)\n  - Title: {secret}",
            f"tag\tname\nmenu\t{secret}",
        ):
            assert secret not in (said(domain, "a", text, "b") or ""), (domain, text)
        for text in ("7", "ok", "Desk", "Error", '{"a": 1}', "a\tb"):
            assert f'"{text}"' not in (said(domain, "a", text) or "")


def test_search_tells_query_and_answer_and_forbids_to_give_it_away():
    fields = {"query": "Which lake holds the isle of Orta?", "reference_answer": "Lake Orta"}
    turns = (("Search[Orta]", "No Results"), ("Lookup[x]", "No Results"))
    expected = search_instruction(**{"query": fields["query"], "answer": fields["reference_answer"]})
    assert expected.startswith(
        "The agent works on this query: Which lake holds the isle of Orta?\n"
        "The reference answer in the simulated world: Lake Orta\nThis answer is for you alone."
    )
    assert "never give it away" in expected and expected.count("Lake Orta") == 1
    by_text = made("search", *turns, own=json.dumps(fields))
    by_meta = made("search", (*turns[0], fields), turns[1])
    for share in (0.0, 1.0):  # every search trajectory that names both has one
        assert [simulation_instruction(t, 1, 0, share) for t in (by_text, by_meta)] == [expected] * 2
    for own in (
        "Simulate a library.",
        "{not JSON",
        '{"query": "only"}',
        json.dumps(fields | {"reference_answer": " "}),
    ):
        assert simulation_instruction(made("search", *turns, own=own), 0, 0, 1.0) == own
        assert (
            simulation_instruction(made("search", (*turns[0], fields), own=own), 0, 0, 1.0) == own
        )  # the source's word
    for meta in ({}, {"query": "q"}, {"query": 1, "reference_answer": "a"}, {"query": "q", "reference_answer": ""}):
        assert simulation_instruction(made("search", (*turns[0], meta)), 0, 0, 1.0) is None
    for version in VERSIONS:
        assert expected in system_prompt(instructed(by_meta, 1, 0)[0], version, "domains")


def test_the_draw_knows_seed_and_id_alone_and_a_larger_share_keeps_the_smaller_one():
    many = [made("terminal", ("touch a", ""), ("ls", "a\nb\n"), name=f"t{i}") for i in range(4000)]
    drawn = {share: {t.id for t in many if simulation_instruction(t, 0, 3, share)} for share in (0.0, 0.2, 0.5, 1.0)}
    assert drawn[0.0] == set() and drawn[0.2] < drawn[0.5] < drawn[1.0] and len(drawn[1.0]) == 4000
    assert abs(len(drawn[0.2]) - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5 and CONTROLLED_SHARE == 0.2
    assert drawn[0.2] == {t.id for t in reversed(many) if simulation_instruction(replace(t, source="z"), 1, 3)}
    assert drawn[0.2] != {t.id for t in many if simulation_instruction(t, 0, 4)}
    assert (
        simulation_instruction(many[0], 1, 3, 1.0)
        == "Turn 2, counted from the first action: the listing shows 2 entries."
    )


def test_only_the_instruction_changes_and_all_are_counted():
    free = made("terminal", ("ls", "a\nb\n"))
    harness = made("terminal", ("ls", "a\n", {"context_only": "time-out"}))
    mute = made("mcp", ("{}", "Yes, please."))
    own = made("os", ("WAIT", "tag\tname\n"), own="Be slow.")
    search = made("search", ("Search[a]", "b", {"query": "q", "reference_answer": "r"}))
    targets = [(t, 0) for t in (free, harness, mute, own, search, made("search", ("Search[a]", "b")))]
    assert count_instructions(targets, 0, 1.0) == InstructionCount(own=1, search=1, controlled=1, no_rule=1, none=2)
    assert count_instructions(targets, 0, 0.0) == InstructionCount(own=1, search=1, none=4)
    assert count_instructions(targets, 0, 1.0).to_dict().keys() == {"own", "search", "controlled", "no_rule", "none"}
    got, _ = instructed(free, 0, 0, 1.0)
    assert got.system.simulation_instruction == "Turn 1, counted from the first action: the listing shows 2 entries."
    assert replace(got, system=free.system) == free and replace(got.system, simulation_instruction=None) == free.system
    assert instructed(own, 0, 0, 1.0) == (own, "own") and instructed(harness, 0, 0, 1.0) == (harness, "none")
    assert simulation_instruction(session(1), 2, 0, 1.0) == (
        "Turn 3, counted from the first action: the command prints 1 line, not counting blank ones."
    )


HOSTILE = [
    "a: " * 300_000,
    "=" * 900_000,
    "[" * 900_000,
    ' | text="' * 100_000,
    "Traceback (most recent call last):\n" * 30_000,
    "1 a, " * 200_000,
    "Ran 1 tests in 1s\n" + "\n" * 900_000,
    "</output>" * 100_000,
    "\t" * 900_000,
]


def test_hostile_text_is_read_in_linear_time():
    started = time.process_time()
    for text in HOSTILE:
        for domain in CONTROLLED_DOMAINS:
            said(domain, text[:1000], "<returncode>0</returncode>\n<output>\n" + text, text)
            said(domain, text, text)
    assert time.process_time() - started < 15  # 3 s; quadratic rules need minutes


@needs_corpora
def test_no_recorded_observation_is_given_away():
    told = Counter()
    for trajectory in recorded():
        if trajectory.domain in CONTROLLED_DOMAINS:
            for index, turn in enumerate(trajectory.turns):
                sentence = outcome(trajectory, index)
                told[trajectory.domain, sentence is not None] += 1
                windows = range(max(0, len(sentence or "") - QUOTED))
                assert not any(sentence[i : i + QUOTED + 1] in turn.observation for i in windows), (
                    trajectory.id,
                    index,
                )
                assert len(turn.observation.strip()) < 12 or turn.observation.strip() not in (sentence or "")
    for domain in CONTROLLED_DOMAINS:  # rules that say nothing of a domain would teach nothing there
        assert told[domain, True] > 0.6 * (told[domain, True] + told[domain, False]), (domain, told)


def test_evaluation_asks_search_as_rl_does() -> None:
    """With the query that training is told, also where the source keeps it in the first turn's meta."""
    meta = {"query": "Which lake holds the isle of Orta?", "reference_answer": "Lake Orta"}
    item = made("search", ("Search[a]", "b", meta), ("Search[c]", "d"))
    config, renderer = Config(), Renderer(TOKENIZERS["trained"]())
    expected = rl_prompt(item, renderer, config.data, config.seed)
    generator = SimpleNamespace(config=config, renderer=renderer)
    asked = example(item, int(expected.key.rpartition("#")[2]))
    assert evaluate._prompt(generator, asked, EVALUATION_VERSION["rl"]) == list(expected.ids)
    assert "isle of Orta" in evaluate.told(asked, config.seed).system.simulation_instruction
