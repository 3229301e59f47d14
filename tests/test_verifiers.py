# ruff: noqa: E501 - one case a line
"""Rule verifiers: the truth passes wherever one applies, what a person would call wrong does not."""

import json
from collections import Counter

import pytest
from recorded import needs_corpora, recorded

from agentworld.data.render import Message
from agentworld.data.schema import System, Turn
from agentworld.data.simulation import search_instruction
from agentworld.rewards.gui_tree import tree
from agentworld.rewards.json_shape import parsed, shape, shape_validator
from agentworld.rewards.shell_text import error_classes, exit_status, normalised, screen
from agentworld.rewards.verdicts import Context, Item, Verdict, compared, context_of, context_of_messages, without
from agentworld.rewards.verifiers import DOMAIN_VERIFIERS, RULE_SCALE, domain_verdicts, exact_match

TRUTH = "echo $?\n1\nuser@box:~$ "


def keys(text: str) -> str:
    return json.dumps([{"keystrokes": text, "duration": 0.1}])


def verdicts(
    domain: str,
    action: str,
    truth: str,
    prediction: str,
    deterministic: bool | None = None,
    history: tuple[Turn, ...] = (),
    instruction: str = "",
    action_space: str = "",
) -> dict[str, bool]:
    item = Item(prediction, truth, action, deterministic, Context(domain, history, action_space, instruction))
    return {verdict.name: verdict.passed for verdict in domain_verdicts(item)}


@pytest.mark.parametrize(
    "prediction",
    ["", TRUTH.rstrip(), TRUTH + "\n", TRUTH.upper(), TRUTH.replace("\n", "\r\n"), TRUTH + "operation completed", "1"],
)
def test_exact_match_is_equality(prediction: str) -> None:
    assert exact_match(TRUTH, TRUTH) is True and exact_match("", "") is True
    assert exact_match(prediction, TRUTH) is False
    assert exact_match("caf\u00e9", "cafe\u0301") is False
    assert RULE_SCALE == 25.0


def test_a_context_is_what_came_before_the_turn_however_it_is_read() -> None:
    turns = (Turn("ls", "a"), Turn("cat a", "b"))
    found = context_of("terminal", turns, System("A world.", "keys", simulation_instruction="Be exact."))
    assert found == Context("terminal", turns, "keys", "Be exact.") and found.last == "b"
    first = context_of("terminal", (), System("A world.", "keys"))
    assert first == Context("terminal", (), "keys", "") and first.last is None
    said = ("W", "ls", "a", "cat a", "b", "pwd")
    roles = ("system", *("user", "assistant") * 2, "user")
    messages = [Message(role, text, 1) for role, text in zip(roles, said, strict=True)]
    assert context_of_messages("terminal", messages) == Context("terminal", turns, "W", "W")


def test_a_verdict_says_in_words_what_differs() -> None:
    assert compared("n", "status", 1, 1) == Verdict("n", True, "status 1 as in truth")
    assert compared("n", "status", 0, 1) == Verdict("n", False, "status 0, in truth 1")
    assert without("n", [], "words") == Verdict("n", True, "words: all as in truth")
    assert without("n", ["x"], "words").reason == "words: 'x' differ from the truth"
    several = without("n", ["x" * 99, "y", "z"], "words")
    assert not several.passed and several.reason == f"words: '{'x' * 56}... and 2 more differ from the truth"


def test_a_screen_is_taken_apart() -> None:
    got = screen("cat > a << EOF\r\n> x y\r\n> EOF\r\nuser@box:~/w$ ", keys("cat > a << EOF\nx y\nEOF\n"))
    assert (got.echo, got.body, got.directory) == ("cat > a << EOF\n> x y\n> EOF", "", "~/w")
    got = screen("root@host:/app# pwd\n/app\n\n\nroot@host:/app# ", keys("pwd\n"))
    assert (got.echo, got.body, got.directory) == ("root@host:/app# pwd", "/app", "/app")
    got = screen("100%", "progress")  # one line is output, whatever it ends with
    assert (got.echo, got.body, got.prompt) == ("", "100%", None)
    got = screen("a\n(env) user@box:~$ ", "python x.py")
    assert (got.body, got.directory) == ("a", "~")
    assert normalised("a  \r\n\n b\n\n") == "a\n\n b"


# domain, action, truth, prediction, deterministic -> the verdicts
CASES = [
    # the output apart from echo and prompt, on deterministic turns
    ("terminal", keys("echo $?\n"), TRUTH, TRUTH, True, {"output": 1, "exit_status": 1, "error_class": 1, "directory": 1}),
    ("terminal", keys("echo $?\n"), TRUTH, "1\nuser@box:~$ ", True, {"output": 1, "exit_status": 1, "error_class": 1, "directory": 1}),
    ("terminal", keys("echo $?\n"), TRUTH, TRUTH.replace("1", "0"), True, {"output": 0, "exit_status": 0, "error_class": 1, "directory": 1}),
    ("terminal", keys("echo $?\n"), TRUTH, TRUTH.replace("~", "/"), True, {"output": 1, "exit_status": 1, "error_class": 1, "directory": 0}),
    ("terminal", keys("echo $?\n"), TRUTH, TRUTH, False, {"exit_status": 1}),
    ("terminal", keys("ls\n"), "ls\na\nuser@box:~$ ", "ls\na\nb\nuser@box:~$ ", True, {"output": 0, "error_class": 1, "directory": 1}),
    ("terminal", keys("ls\n"), "ls\na\nuser@box:~$ ", "ls\na", True, {"output": 1, "error_class": 1, "directory": 0}),
    ("terminal", "ls x", "ls: x: No such file or directory", "ls: x: Permission denied", None, {"error_class": 0}),
    ("terminal", "ls x", "x", "ls: x: No such file or directory", None, {}),
    ("terminal", "ls x", "x", "ls: x: No such file or directory", True, {"output": 0, "error_class": 0}),
    # JSON of a tool: volatile fields only where the session has not shown them
    ("mcp", '{"name": "f"}', '{"a": 1, "created_at": "2024-01-01 10:00"}', '{"created_at": "2025-03-04 11:30", "a": 1.0}', True, {"json_equal": 1, "schema": 1}),
    ("mcp", '{"name": "f"}', '{"a": 1, "created_at": "2024-01-01 10:00"}', '{"created_at": "soon", "a": 1}', True, {"json_equal": 1, "schema": 0}),
    ("mcp", '{"name": "f", "order_id": "W7"}', '{"order_id": "W7", "n": 2}', '{"order_id": "W8", "n": 2}', True, {"json_equal": 0, "schema": 1}),
    ("mcp", '{"name": "f"}', '{"order_id": "W7", "n": 2}', '{"order_id": "W8", "n": 2}', True, {"json_equal": 1, "schema": 1}),
    ("mcp", '{"name": "f"}', '{"a": 1}', '{"b": 1}', None, {"schema": 0}),
    ("mcp", '{"name": "f"}', '{"a": 1}', "a is 1", None, {"schema": 0}),
    ("mcp", '{"name": "f"}', '{"a": true}', '{"a": 1}', True, {"json_equal": 0, "schema": 0}),
    ("mcp", '{"name": "f"}', "Error: user not found", "Error: user is missing", None, {"error_type": 1}),
    ("mcp", '{"name": "f"}', "Error: user not found", '{"user": 1}', None, {"error_type": 0}),
    ("mcp", '{"name": "f"}', '{"isError": true}', '{"isError": false}', None, {"schema": 1, "error_type": 0}),
    ("mcp", '{"name": "f"}', "Which one?", "Please cancel it.", None, {}),
    # software engineering
    ("swe", "pytest", "<returncode>1</returncode>\nE   ValueError: x", "<returncode>1</returncode>\nE   KeyError: x", None, {"error_type": 0, "exit_status": 1}),
    ("swe", "pytest", "<returncode>1</returncode>\nfailed", "<returncode>0</returncode>\npassed", None, {"exit_status": 0}),
    ("swe", "edit a.py 'x = 1' 'x = 2'\nx = 2\ny = 3", "1:import os\n2:x = 2\n3:y = 3", "1:import sys\n2:x = 2\n3:y = 3", None, {"edited_lines": 1}),
    ("swe", "edit a.py 'x = 1' 'x = 2'\nx = 2\ny = 3", "1:import os\n2:x = 2\n3:y = 3", "1:import os\n2:x = 1\n3:y = 3", None, {"edited_lines": 0}),
    ("swe", "cat a.py", "     1\tx = 2", "     1\tx = 2", True, {"text_equal": 1}),
    # search
    ("search", "Search[Orta]", "Could not find [Orta]. Similar: ['Lake Orta']", "Could not find [Orta]. Similar: ['Ort']", None, {"structure": 1}),
    ("search", "Search[Orta]", "Could not find [Orta]. Similar: ['Lake Orta']", "Could not find [Lake]. Similar: ['Ort']", None, {"structure": 0}),
    ("search", "Search[Orta]", "Could not find [Orta]. Similar: ['Lake Orta']", "Orta is a lake.", None, {"structure": 0}),
    ("search", "Lookup[a]", "(Result 1 / 2) a", "(Result 2 / 2) a", None, {"structure": 0}),
    ("search", "q", "1. A\nurl\n2. B\nurl", "1. C\n2. D\n3. E", None, {"structure": 0}),
    ("search", "Search[Orta]", "Orta is a lake.", "Could not find [Orta]. Similar: []", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "action", "truth", "prediction", "deterministic", "expected"), CASES)
def test_verdicts(domain, action, truth, prediction, deterministic, expected) -> None:
    assert verdicts(domain, action, truth, prediction, deterministic) == expected
    assert all(verdicts(domain, action, truth, truth, deterministic).values())


def test_the_working_directory_counts_where_it_is_decided() -> None:
    here, there = (Turn(keys("ls\n"), f"ls\nuser@box:{path}$ ") for path in ("~", "~/w"))
    truth, stale = "cd w\nuser@box:~/w$ ", "cd w\nuser@box:~$ "
    assert verdicts("terminal", keys("cd w\n"), truth, stale, False, (here,)) == {"directory": False}
    assert verdicts("terminal", keys("cd w\n"), truth, stale, False, (there,)) == {}  # it stays: too easy


def test_a_declared_output_schema_comes_before_the_shape_of_the_truth() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    space = "Tools:\n" + json.dumps({"name": "f", "outputSchema": schema})
    given = {"action_space": space}
    assert verdicts("mcp", '{"name": "f"}', '{"a": 1}', '{"a": 2, "more": 1}', **given) == {"schema": True}
    assert verdicts("mcp", '{"name": "g"}', '{"a": 1}', '{"a": 2, "more": 1}', **given) == {"schema": False}
    assert verdicts("mcp", '{"name": "f"}', '{"a": 1}', '{"a": 1.5}', **given) == {"schema": False}
    beyond = {"action_space": json.dumps({"name": "f", "outputSchema": {"$ref": "http://127.0.0.1:9/schema"}})}
    assert verdicts("mcp", '{"name": "f"}', '{"a": 1}', '{"a": 2}', **beyond) == {"schema": True}
    assert verdicts("mcp", '{"name": "f"}', '{"a": 1}', '{"b": 2}', **beyond) == {"schema": False}
    # the truth itself breaks what was declared (an error message does): then the truth is the measure
    assert verdicts("mcp", '{"name": "f"}', '{"message": "no"}', '{"message": "none"}', **given) == {"schema": True}


def test_a_shape_admits_its_value_and_other_identifiers() -> None:
    values = [
        {"W12": {"n": 1}, "W13": {"n": 2}}, [], {}, [[1, "a"], {"b": None}], {"at": "2024-05-06", "t": "10:30"},
        {"ok": True, "n": 1.5, "deep": [{"x": [1, 2]}]},
    ]  # fmt: skip
    for value in values:
        assert shape_validator(json.dumps(value)).is_valid(value)
    orders = shape_validator('{"W12": {"n": 1}}')
    assert orders.is_valid({"W77": {"n": 9}}) and not orders.is_valid({"W77": {"n": "9"}})
    assert not orders.is_valid({"name": {"n": 1}})
    assert shape(None) == {} and parsed("{broken") is not None and not shape_validator("[1]").is_valid(["a"])


def test_an_answer_is_not_given_away_before_it_was_found() -> None:
    told = search_instruction("Who built it?", "Ada Lovelace")
    leak, quiet = "It was built by Ada  LOVELACE.", "It was built in 1843."
    assert verdicts("search", "Search[it]", "A machine.", leak, instruction=told) == {"no_leakage": False}
    assert verdicts("search", "Search[it]", "A machine.", quiet, instruction=told) == {"no_leakage": True}
    assert verdicts("search", "Search[it]", "Ada Lovelace built it.", leak, instruction=told) == {}
    found = (Turn("Search[x]", "Ada Lovelace was a mathematician."),)
    assert verdicts("search", "Search[it]", "A machine.", leak, history=found, instruction=told) == {}
    named = verdicts("search", "Search[Ada Lovelace]", "A person.", leak, instruction=told)
    assert named == {}


def test_a_search_repeats_and_a_memory_remembers() -> None:
    before = (Turn("Search[Orta]", "Orta is a lake."), Turn("Search[x]", "y"))
    truth = "Orta is a lake."
    assert verdicts("search", "Search[Orta]", truth, "Orta is a town.", history=before) == {"repeated": False}
    assert verdicts("search", "Search[Orta]", truth, truth, history=before) == {"repeated": True}
    assert verdicts("search", "Search[Orta]", "changed", "other", history=before) == {}
    saved = (Turn('{"name": "memory_write", "arguments": {"key": "k1", "value": "born 1815"}}', "saved"),)
    read = '{"name": "memory_read", "arguments": {"key": "k1"}}'
    assert verdicts("search", read, "k1: born 1815", "k1: born 1816", history=saved) == {"memory": False}
    assert verdicts("search", read, "k1: born 1815", "born 1815", history=saved) == {"memory": True}


ANDROID = "\n".join(f'[ {i:2}] | android.widget.Button | text="{name}" | bounds=[0,{i}][9,9] | clickable' for i, name in enumerate(["A", "B", "Name", "OK"]))  # fmt: skip
WEB = (
    "Accessibility tree:\nRootWebArea 'S', focused\n\t[a1] textbox 'Q' value=''\n\t[a2] button 'Go', clickable, focused"
)
OS = "tag\tname\ttext\nframe\tMain\t\nentry\tSearch\t\npush-button\tOK\tOK"


@pytest.mark.parametrize(
    ("domain", "action", "last", "truth"),
    [
        ("android", '{"action_type": "input_text", "index": 2, "text": "Amir"}', ANDROID, ANDROID.replace('"Name"', '"Amir"')),
        ("web", "fill('a1', 'lake')", WEB, WEB.replace("value=''", "value='lake', focused").replace("clickable, focused", "clickable")),
        ("os", "pyautogui.write('lake')", OS, OS.replace("Search\t", "Search\tlake")),
    ],
)  # fmt: skip
def test_a_small_change_of_a_screen(domain: str, action: str, last: str, truth: str) -> None:
    """Each mistake fails the verifier that is named for it, and the truth passes all of them."""
    before = (Turn("a", last),)

    def found(prediction: str) -> dict[str, bool]:
        return verdicts(domain, action, truth, prediction, history=before)

    typed = "Amir" if domain == "android" else "lake"
    assert all(found(truth).values())
    assert set(found(truth)) >= {"tree", "untouched", "changed", "field_value"}
    assert ("focus" in found(truth)) == (domain == "web")
    stale = found(last)
    assert (stale["tree"], stale["untouched"], stale["changed"], stale["field_value"]) == (True, True, False, False)
    misspelt = found(truth.replace(typed, typed + "s"))
    assert (misspelt["changed"], misspelt["field_value"], misspelt["untouched"]) == (False, False, True)
    lost = "OK" if domain != "web" else "RootWebArea"
    shorter = found("\n".join(line for line in truth.split("\n") if lost not in line))
    assert not shorter["untouched"]
    assert not found("The page shows a form.")["tree"]
    if domain == "web":
        assert not found(truth.replace("value='lake', focused", "value='lake'"))["focus"]
    renumbered = truth.replace("[  0]", "[  7]")
    assert found(renumbered) == found(truth)


def test_a_new_page_is_asked_for_its_form_only() -> None:
    new = "Accessibility tree:\nRootWebArea 'T'\n" + "\n".join(f"\t[b{i}] link 'l{i}'" for i in range(9))
    assert verdicts("web", "click('a2')", new, new.replace("l3", "x"), history=(Turn("a", WEB),)) == {"tree": True}
    assert tree("just a text\nof two lines") is None


def test_status_and_errors_are_read_off() -> None:
    assert exit_status("Exit code: 2\nx", "ls") == 2
    assert exit_status("rc=1", "ls; echo rc=$?") == 1
    assert exit_status("echo $?\n127\nu@b:~$ ", keys("echo $?\n")) == 127
    assert exit_status("echo hi\nhi", keys("echo hi\n")) is None
    assert error_classes("a\nTraceback\nmod.MyError: bad\n") == {"mod.MyError"}
    assert error_classes("cat: x: Is a directory") == {"Is a directory"}
    assert error_classes("the error was small; an exception, too") == frozenset()


@needs_corpora
def test_the_truth_passes_everywhere_and_the_turn_before_does_not() -> None:
    """Of the recorded turns; that each verifier applies, and says no to some other observation, is checked as well."""
    applied, refused = Counter(), Counter()
    for trajectory in recorded():
        for index, turn in enumerate(trajectory.turns):
            context = context_of(trajectory.domain, trajectory.turns[:index], trajectory.system)
            other = trajectory.turns[index - 1].observation
            for verdict in domain_verdicts(Item(turn.observation, turn.observation, turn.action, True, context)):
                assert verdict.passed, (trajectory.id, index, verdict)
                applied[trajectory.domain, verdict.name] += 1
            for verdict in domain_verdicts(Item(other, turn.observation, turn.action, True, context)):
                refused[trajectory.domain, verdict.name] += not verdict.passed
    print("\n", {key: (count, refused[key]) for key, count in sorted(applied.items())})
    assert {domain for domain, _ in applied} == set(DOMAIN_VERIFIERS)
    expected = {"output", "exit_status", "schema", "json_equal", "error_type", "edited_lines", "structure", "changed", "field_value"}  # fmt: skip
    assert expected <= {name for _, name in refused if refused[_, name]}
