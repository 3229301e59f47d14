"""The paper's filters: each takes what it names, nothing that only looks like it, and counts."""

import json
import os
import time
from pathlib import Path

import pytest

from agentworld.data import cleaning, importing
from agentworld.data.environment_failures import environment_failure
from agentworld.data.schema import System, Trajectory, Turn

TOOLS = 'One call: {"name": ...}. The tools, one a line:\n{"name": "read"}\n{"name": "write", "parameters": {}}'
GARBAGE = "Unknown tool: reed"


def call(name: str, **arguments) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def given(domain: str, *pairs: tuple[str, str] | Turn, space: str = TOOLS, start: str | None = None) -> Trajectory:
    turns = [pair if isinstance(pair, Turn) else Turn(*pair) for pair in pairs]
    return Trajectory("t", domain, "s", "g", System("task", space, initial_state=start), turns)


def left(trajectory: Trajectory) -> list[str]:
    """The observations that are left."""
    return [turn.observation for turn in trajectory.turns]


def mcp_error(text: str, error: bool = True) -> str:
    return json.dumps({"_meta": None, "content": [{"type": "text", "text": text}], "isError": error}, indent=2)


def test_turns_with_a_blank_action_are_stripped() -> None:
    whole = given("terminal", ("ls", "a"), ("pwd", ""))
    assert cleaning.strip_empty_actions(whole) == (whole, 0)
    stripped, count = cleaning.strip_empty_actions(given("swe", ("", "a"), ("ls", "b"), (" \n\t", "c"), ("id", "d")))
    assert (left(stripped), count) == (["b", "d"], 2)


def test_garbage_before_a_call_that_was_understood_goes_and_the_history_stays_in_order() -> None:
    many = given("mcp", (call("read", p=1), "one"), (call("reed", p=2), GARBAGE), (call("raed", p=2), GARBAGE),
                 (call("read", p=2), "two"), (call("read", p=3), "three"))  # fmt: skip
    skipped, count = cleaning.skip_retry_cycles(many)
    assert (left(skipped), count) == (["one", "two", "three"], 2)
    assert [turn.action for turn in skipped.turns] == [call("read", p=1), call("read", p=2), call("read", p=3)]


def test_a_tool_whose_definition_holds_odd_line_ends_is_declared() -> None:
    space = json.dumps({"name": "read", "description": "a\u2028b\x0bc\x85d"}, ensure_ascii=False)
    assert cleaning.undeclared_tool(given("mcp", (call("read"), "one"), space=space)) is None
    assert "calls reed" in cleaning.undeclared_tool(given("mcp", (call("reed"), "one"), space=space))


def test_the_error_of_the_last_action_is_no_part_of_the_state_and_is_found_in_linear_time() -> None:
    head, tree = "Error of the last action:\n", "Accessibility tree:\nx"
    assert cleaning._state(f"URL: u\n{head}boom\n\nagain\n\n{tree}") == f"URL: u\n{tree}"
    assert cleaning._state(f"{head}\n\n{tree}\n{head}b\n\n{tree}") == f"{tree}\n{tree}"
    for text in (f"say {head}b\n\n{tree}", f"{head}without a tree", tree):
        assert cleaning._state(text) == text
    long = head * 40_000
    started = time.process_time()
    assert cleaning._state(long) == long and cleaning._state(tree + "\n" + long) == tree + "\n" + long
    assert time.process_time() - started < 1


def test_garbage_that_nothing_understood_follows_stays() -> None:
    trailing = given("mcp", (call("reed"), GARBAGE), (call("read"), "one"), (call("reed"), GARBAGE), ("{}", GARBAGE))
    skipped, count = cleaning.skip_retry_cycles(trailing)
    assert (left(skipped), count) == (["one", GARBAGE, GARBAGE], 1)
    only = given("mcp", (call("reed"), GARBAGE), (call("reed"), GARBAGE))
    assert cleaning.skip_retry_cycles(only) == (only, 0)


@pytest.mark.parametrize(
    "domain,action,observation",
    [
        ("mcp", call("x"), mcp_error("Unknown tool: excel_read")),
        ("mcp", call("x"), "Error executing tool execute-tool: MCP error -32601: Method not found"),
        ("mcp", call("x"), "MCP error -32700: Parse error: Expected ',' at position 12"),
        ("mcp", call("x"), "MCP error -32602: Tool get_wether not found"),
        ("mcp", call("x"), "Unknown action cancel_order"),
        ("swe", call("x"), "Error: foo is not a valid tool, try one of [bash, edit]."),
        ("swe", "<function=foo>\n</function>", "Error: Function foo not found."),
        (
            "search",
            "Find[x]",
            "Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>].",
        ),
        ("terminal", "[{}]", "Previous response had parsing errors:\nERROR: No valid JSON found"),
    ],
)
def test_answers_to_calls_that_were_not_understood(domain, action, observation) -> None:
    assert cleaning.is_not_understood(Turn(action, observation), domain)


@pytest.mark.parametrize(
    "domain,action,observation",
    [
        ("mcp", call("x"), "Input validation error: 'file_path' is a required property"),
        ("mcp", call("x"), "MCP error -32602: Invalid arguments for tool read: path: Required"),
        ("mcp", call("x"), "MCP error -32603: Failed to fetch"),
        ("mcp", call("x"), "Error: flight HAT030 not available on date 2024-05-17"),
        ("mcp", call("x"), "File report.csv not found."),
        ("mcp", call("x"), "The log says:\nUnknown tool: excel_read"),
        ("mcp", call("x"), "Unknown tool: excel_read\nKnown tools: read"),
        ("mcp", call("x"), mcp_error("Unknown tool: excel_read", error=False)),
        ("mcp", call("x"), mcp_error("Error: ENOENT: no such file or directory")),
        ("swe", "mytool foo", GARBAGE),
        ("terminal", "mytool foo", GARBAGE),
        ("terminal", "foo", "bash: foo: command not found"),
        ("swe", "python x.py", 'File "x.py", line 1\n    (\n    ^\nSyntaxError: invalid syntax'),
        ("terminal", "cat log", "x\nPrevious response had parsing errors:\ny"),
        ("search", "Search[x]", "Could not find x. Similar: ['y']"),
        ("web", "click('9')", 'Error of the last action:\nError: ValueError: Could not find element with bid "9"\n\n'),
    ],
)
def test_errors_that_the_environment_answers_are_none(domain, action, observation) -> None:
    assert not cleaning.is_not_understood(Turn(action, observation), domain)


def page(body: str, error: str = "") -> str:
    shown = f"Error of the last action:\n{error}\n\n" if error else ""
    return f"Open tabs:\n- Tab 0\n\n{shown}Accessibility tree:\n{body}"


def test_in_a_gui_garbage_goes_only_where_the_state_stayed() -> None:
    refused = "Error: ValueError: Received a multi-action, only single-actions are allowed."
    same = given("web", ("go()", page("A")), ("click(1)\nclick(2)", page("A", refused)), ("click(1)", page("B")))
    assert cleaning.skip_retry_cycles(same) == (given("web", ("go()", page("A")), ("click(1)", page("B"))), 1)
    moved = given("web", ("go()", page("A")), ("click(1)\nclick(2)", page("B", refused)), ("click(1)", page("C")))
    assert cleaning.skip_retry_cycles(moved) == (moved, 0)
    flagged = Turn("click(99)", "[0] | Home", {"context_only": "the harness did not carry out the action"})
    phone = given("android", flagged, ("click(0)", "[0] | Apps"), start="[0] | Home")
    assert cleaning.skip_retry_cycles(phone)[1] == 1


DECLARED = [
    ("mcp", TOOLS, call("read"), None),
    ("mcp", TOOLS, call("delete"), "calls delete, which is none of the 2 tools of its action space"),
    ("swe", '[{"type": "function", "function": {"name": "bash"}}]', call("bash"), None),
    ("swe", '[{"type": "function", "function": {"name": "bash"}}]', "<function=edit>\n</function>",
     "calls edit, which is none of the 1 tools of its action space"),
    ("swe", TOOLS, "rm -rf x", None),  # a command line is no call
    ("swe", "execute_bash: command", "<function=edit>\n</function>", None),  # prose declares nothing
    ("mcp", 'One call: {"name": ...}.', call("delete"), None),
    ("search", TOOLS, call("delete"), None),
]  # fmt: skip


@pytest.mark.parametrize("domain,space,action,reason", DECLARED)
def test_undeclared_tools(domain, space, action, reason) -> None:
    assert cleaning.undeclared_tool(given(domain, (call("read"), "a") if space == TOOLS else ("ls", "a"),
                                          (action, "b"), space=space)) == reason  # fmt: skip


FAILED = [
    ("web", "RootWebArea '404 Not Found', focused\n\theading '404 Not Found'", "an HTTP error page"),
    ("web", "RootWebArea 'Shop'\n\t[3] heading 'HTTP ERROR 500'", "an HTTP error page"),
    ("web", "RootWebArea '502 Bad Gateway | nginx'", "an HTTP error page"),
    ("web", "<html><head><title>503 Service Temporarily Unavailable</title>", "an HTTP error page"),
    ("os", "tag\tname\ttext\nheading\tError 403\t\"\"", "an HTTP error page"),
    ("android", '[ 3] | android.widget.TextView | text="504 Gateway Time-out"', "an HTTP error page"),
    ("web", "RootWebArea 'shop.test'\n\theading 'This site can\u2019t be reached'", "a network error page"),
    ("web", "heading \"This site can't be reached\"", "a network error page"),
    ("android", 'android.widget.TextView | text="Webpage not available"', "a network error page"),
    ("web", "StaticText 'ERR_CONNECTION_REFUSED'", "a network error page"),
    ("os", "tag\tname\ttext\ndocument-web\tProblem loading page\t\"\"", "a network error page"),
    ("web", "RootWebArea 'Just a moment...'", "a CAPTCHA"),
    ("web", "[12] checkbox \"I'm not a robot\", checked='false'", "a CAPTCHA"),
    ("android", 'android.widget.CheckBox | text="I\'m not a robot"', "a CAPTCHA"),
    ("web", "StaticText 'Verify you are human.'", "a CAPTCHA"),
    ("web", "StaticText 'Our systems have detected unusual traffic from your computer network. This'", "a CAPTCHA"),
    ("os", "  \n", "no state"),
]  # fmt: skip


@pytest.mark.parametrize("domain,state,failure", FAILED)
def test_environment_failures_of_a_gui(domain, state, failure) -> None:
    assert (
        environment_failure(given(domain, ("a", "page"), ("b", state)))
        == f"environment failure: {failure} after turn 2"
    )
    assert environment_failure(given(domain, ("a", "x"), start=state)) == f"environment failure: {failure} at the start"
    assert environment_failure(given("terminal", ("curl x", state))) is None


@pytest.mark.parametrize(
    "state",
    [
        "RootWebArea 'How to fix 404 Not Found'\n\tlink '404 Not Found'\n\tStaticText '404 Not Found'",
        "[401] link 'Service Desk'\n[403] heading 'Art. 9'\n[404] button 'Not Found'\n[500] heading 'Open incidents'",
        "heading 'Route 404'\nheading '500 Internal Combustion Engines'\nRootWebArea '404 Media'",
        "StaticText 'What does ERR_CONNECTION_REFUSED mean?'\nlink 'This site can\u2019t be reached: fixes'",
        "StaticText 'This site is protected by reCAPTCHA and the Google Privacy Policy apply.'\nIframe 'reCAPTCHA'",
        "heading 'I, Robot'\nlink 'Are you human?'\nStaticText 'We verify you are human resources staff'",
        "link \"How do I quit an application that isn't responding?\"\nheading 'Just a moment in time'",
        'android.widget.TextView | text="Unable to connect" | bounds=[400,404][500,503]',
        'android.widget.TextView | text="500 x 500 (0.3MP)" | text="Not available"',
    ],
)  # fmt: skip
def test_ordinary_pages_are_no_failures(state) -> None:
    for domain in ("web", "android", "os"):
        assert environment_failure(given(domain, ("a", state), ("b", state), start=state)) is None


def test_turns_without_change_go_in_guis_and_nowhere_else() -> None:
    turns = [("tap", "A"), ("tap", "B"), ("wait", "B"), ("tap", "B"), ("tap", "B "), ("back", "B")]
    assert [cleaning.drop_unchanged_states(given(d, *turns, start="A"))[1] for d in ("android", "web", "os")] == [
        3,
        3,
        3,
    ]
    changed, count = cleaning.drop_unchanged_states(given("os", *turns))
    assert (left(changed), count) == (["A", "B", "B ", "B"], 2)  # without an initial state the first turn stays
    shell = given("terminal", *turns, start="A")
    assert cleaning.drop_unchanged_states(shell) == (shell, 0)
    note = given("android", ("tap", "A"), Turn("tap", "A", {"context_only": "time-out of the harness"}))
    assert cleaning.drop_unchanged_states(note) == (note, 0)


def test_clean_goes_in_order_and_counts_every_turn() -> None:
    """An undeclared call that was refused and made again right, and an empty action, are not held against the rest."""
    mended = cleaning.clean(given("mcp", (call("reed"), GARBAGE), (call("read"), "a"), ("", "?"), (call("write"), "b")))
    assert (left(mended.trajectory), mended.reason, mended.dropped_by) == (["a", "b"], "", "")
    assert mended.turns == {"empty_action": 1, "retry_cycle": 1, "unchanged_state": 0}

    wrong = cleaning.clean(given("mcp", (call("read"), "a"), ("", "?"), (call("delete"), "done"), (call("read"), "b")))
    assert (wrong.trajectory, wrong.dropped_by) == (None, "undeclared_tool")
    assert wrong.turns == {"empty_action": 1, "retry_cycle": 0, "of_rejected_trajectories": 3}

    short = cleaning.clean(given("web", ("click", "A"), ("click", "B"), start="A"))
    assert (short.dropped_by, short.reason) == ("too_short", "fewer than 2 turns: 1 of 2 left")
    assert short.turns == {"empty_action": 0, "retry_cycle": 0, "unchanged_state": 1, "of_rejected_trajectories": 1}

    failed = cleaning.clean(given("web", ("click", "A"), ("click", "RootWebArea '404 Not Found'"), ("back", "A")))
    assert (failed.dropped_by, failed.turns["of_rejected_trajectories"]) == ("environment_failure", 3)

    kept = given("terminal", ("ls", "x"), Turn("sleep 99", "timed out", {"context_only": "time-out of the harness"}))
    assert cleaning.clean(kept).trajectory is kept


@pytest.mark.skipif(not os.environ.get("AGENTWORLD_CORPORA"), reason="AGENTWORLD_CORPORA names no folder of recordings")
def test_real_recordings(tmp_path) -> None:
    """Each read by hand. Retries: `searxng` asked for excel_read, `okppt` for a tool of another server. Unchanged: six
    taps on Android that led nowhere and a message of a web agent. Too short: two runs of one turn and one of two, of
    which one changed nothing; a row of AgentWorldBench with one turn stays."""
    report = importing.import_files([Path(os.environ["AGENTWORLD_CORPORA"])], tmp_path / "o", say=lambda _: None)
    assert report["totals"]["turns_removed"] == {
        "empty_action": 0, "retry_cycle": 2, "unchanged_state": 7, "of_rejected_trajectories": 3,
    }  # fmt: skip
    assert report["totals"]["filtered"] == {"undeclared_tool": 0, "environment_failure": 0, "too_short": 3}
