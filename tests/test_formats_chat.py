"""Chat formats: which call each result answers, what is no answer of the environment, and what each corpus gives."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentworld.data.formats import agentworldbench, livemcpbench, openai_chat, tau_bench
from agentworld.data.formats.container import Record, look, records
from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.formats.openai_chat import MESSAGES_FORMAT
from agentworld.data.schema import Trajectory, Turn, from_dict, to_dict

ORIGIN = Origin("logs/a.jsonl", ":12")
FORMATS = (openai_chat.FORMAT, MESSAGES_FORMAT, livemcpbench.FORMAT, tau_bench.FORMAT, agentworldbench.FORMAT)


def one(known: Format, record: Any, origin: Origin = ORIGIN) -> Trajectory:
    """The one trajectory of a record, as valid rows of our own."""
    (trajectory,) = known.convert(record, origin)
    assert from_dict(json.loads(json.dumps(to_dict(trajectory)))) == trajectory
    return trajectory


def refused(known: Format, record: Any) -> str:
    with pytest.raises(UnusableError) as error:
        list(known.convert(record, ORIGIN))
    return str(error.value)


def head(first: Any, layout: str = "lines") -> Head:
    return Head(layout, first, json.dumps(first)[:65_536])


def calling(*calls: tuple, content: str | None = "THOUGHT") -> dict:
    """An assistant message with calls (id, name, arguments)."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls],
    }


def result(content: Any, **fields: Any) -> dict:
    return {"role": "tool", "content": content, **fields}


def call(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


ASK = [{"role": "system", "content": "SYSTEM PROMPT"}, {"role": "user", "content": "TASK"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {}}},
}
CHAT = {
    "tools": [WEATHER],
    "messages": [
        *ASK,
        calling(("a", "weather", '{"city": "Zürich"}'), ("b", "weather", {"city": "Bonn"})),
        result("rain", tool_call_id="b"),
        result([{"type": "text", "text": "sun"}, {"type": "text", "text": "wind"}], tool_call_id="a"),
        {"role": "assistant", "content": "FINAL ANSWER"},
        {"role": "user", "content": "AND NOW?"},
        calling(("a", "clock", "")),
        result({"hour": 7}, tool_call_id="a"),
        {"role": "assistant", "content": "FINAL ANSWER"},
    ],
}
REPR = "meta=None content=[TextContent(type='text', text={}, annotations=None)] isError=False"
LIVE = {
    "task_id": "t-1",
    "Question": "TASK",
    "answers": "ANSWER",
    "messages": [
        *ASK,
        calling(("a", "route", '{"query": "q"}')),
        result(REPR.format(repr('success: true\nit\'s "one" é\x00\\u0041')), tool_call_id="a"),
        calling(("b", "execute-tool", '{"server_name": "s", "tool_name": "t", "params": {}}')),
        result("Tool call timed out.", tool_call_id="b"),
        {"role": "assistant", "content": "FINAL ANSWER"},
    ],
}
TAU = {
    "task_id": 7,
    "reward": 0.5,
    "trial": 2,
    "info": {"task": {"instruction": "PERSONA"}},
    "traj": [
        {"role": "system", "content": "POLICY"},
        {"role": "user", "content": "Hi, cancel it."},
        {"role": "assistant", "content": "Which one?"},
        {"role": "user", "content": "ABC."},
        calling(("x", "cancel", '{"id":"ABC"}')),
        result("Error: not found", tool_call_id="x", name="cancel"),
        {"role": "assistant", "content": "It is not there."},
        {"role": "user", "content": "Bye ###STOP###"},
    ],
}
TAIL = (
    "\n\nPlease analyze the input above and predict the answer within <predicted_observation></predicted_observation>."
)
FIRST = (
    '### Turn 1\n**Current State:**\nroot@h:/#\n\n**Action:**\n```json\n[\n  {\n    "keystrokes": "ls\\n"\n  }\n]\n```'
)
SECOND = "### Turn 2\n**Action:**\n```python\nprint(1)\n```"
BENCH = {
    "task": "terminal",
    "id": 3,
    "prompt": [FIRST, SECOND + TAIL],
    "response": ["**Environment Observation:**\na\u2028b\n", "**Environment Observation:**\n\n  1"],
    "current_prompt": SECOND,
    "system_str": "WORLD MODEL PROMPT",
    "turn_idx": 2,
    "total_turns": 9,
}


def test_results_go_to_the_call_that_they_answer_whatever_their_order() -> None:
    trajectory = one(openai_chat.FORMAT, CHAT)
    assert trajectory.turns == [
        Turn('{"name": "weather", "arguments": {"city": "Zürich"}}', "sun\nwind"),
        Turn('{"name": "weather", "arguments": {"city": "Bonn"}}', "rain"),
        Turn('{"name": "clock", "arguments": ""}', '{"hour": 7}'),
    ]
    assert (trajectory.id, trajectory.domain, trajectory.source) == (
        "openai-chat:logs/a.jsonl:12",
        "mcp",
        "openai-chat",
    )
    assert trajectory.system.action_space.splitlines()[1:] == [
        '{"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {}}}'
    ]
    text = json.dumps(to_dict(trajectory))
    assert not any(word in text for word in ("THOUGHT", "SYSTEM PROMPT", "TASK", "FINAL ANSWER", "AND NOW"))


def test_without_definitions_the_names_that_occur_are_the_action_space() -> None:
    space = one(openai_chat.FORMAT, {"messages": CHAT["messages"]}).system.action_space
    assert space.splitlines()[1:] == ['{"name": "weather"}', '{"name": "clock"}']


def test_fields_of_the_record_name_domain_source_and_task() -> None:
    trajectory = one(openai_chat.FORMAT, CHAT | {"domain": "search", "source": "mine", "task_id": 0})
    assert (trajectory.domain, trajectory.source, trajectory.split_group) == ("search", "mine", "mine:0")


def test_runs_of_one_question_share_their_group_and_others_do_not() -> None:
    other = {"messages": [{"role": "user", "content": "OTHER"}, *CHAT["messages"][2:]]}
    groups = [one(openai_chat.FORMAT, record).split_group for record in (CHAT, {"messages": CHAT["messages"]}, other)]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize(
    "messages,expected",
    [
        # An unanswered call is dropped and told; the next one keeps its own result.
        (
            [calling(("a", "f", "{}"), ("b", "g", "{}")), result("B", tool_call_id="b")],
            [Turn(call("g", {}), "B", {"unanswered_before": 1})],
        ),
        (
            [calling(("a", "f", "{}")), result("A", tool_call_id="a"), calling(("b", "g", "{}"))],
            [Turn(call("f", {}), "A")],
        ),
        # A result of an unknown call is given to none.
        (
            [calling(("a", "f", "{}")), result("X", tool_call_id="x"), result("A", tool_call_id="a")],
            [Turn(call("f", {}), "A")],
        ),
        # The same id again and again: a result belongs to the message before it.
        (
            [
                calling(("0", "f", "{}")),
                result("1", tool_call_id="0"),
                calling(("0", "f", "{}")),
                result("2", tool_call_id="0"),
            ],
            [Turn(call("f", {}), "1"), Turn(call("f", {}), "2")],
        ),
        # Without ids: by name, then by order, and only where no result is missing.
        (
            [calling((None, "f", "{}"), (None, "g", "{}")), result("G", name="g"), result("F", name="f")],
            [Turn(call("f", {}), "F"), Turn(call("g", {}), "G")],
        ),
        (
            [calling((None, "f", "{}"), (None, "g", "{}")), result("1"), result("2")],
            [Turn(call("f", {}), "1"), Turn(call("g", {}), "2")],
        ),
        (
            [calling((None, "f", "{}"), (None, "g", "{}")), result("?"), calling((None, "h", "{}")), result("H")],
            [Turn(call("h", {}), "H", {"unanswered_before": 2})],
        ),
        # Two calls could be meant: given to neither.
        (
            [calling((None, "f", "1"), (None, "f", "2")), result("?", name="f")],
            None,
        ),
        ([calling(("0", "f", "1"), ("0", "f", "2")), result("?", tool_call_id="0")], None),
        # A second result of one call is left out.
        (
            [calling(("a", "f", "1"), ("b", "f", "2")), *(result(c, tool_call_id=i) for i, c in ("a1", "a2", "b3"))],
            [Turn(call("f", 1), "1"), Turn(call("f", 2), "3")],
        ),
        # The older function_call.
        (
            [
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
                {"role": "function", "name": "f", "content": None},
            ],
            [Turn(call("f", {"a": 1}), "")],
        ),
        # Blocks of the Anthropic API.
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "THOUGHT"},
                        {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "A"}]}
                    ],
                },
            ],
            [Turn(call("f", {"a": 1}), "A")],
        ),
    ],
)
def test_each_call_and_its_own_result(messages, expected) -> None:
    record = {"messages": [*ASK, *messages]}
    if expected is None:
        assert refused(openai_chat.FORMAT, record) == "no tool call is answered"
    else:
        assert one(openai_chat.FORMAT, record).turns == expected


@pytest.mark.parametrize(
    "arguments,kept",
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', '{"a": '),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=["json", "object", "cut", "nan", "deep"],
)
def test_arguments_are_parsed_where_they_are_json(arguments, kept) -> None:
    messages = [*ASK, calling(("a", "f", arguments)), result("A", tool_call_id="a")]
    assert one(openai_chat.FORMAT, {"messages": messages}).turns[0].action == call("f", kept)


def test_images_become_notes_and_no_targets() -> None:
    data = "data:image/png;base64," + "A" * 400
    image = {"type": "image_url", "image_url": {"url": data}}
    for content, expected in (
        ([{"type": "text", "text": "seen"}, image], "seen\n[image_url]"),
        (f'{{"shot": "{data}"}}', '{"shot": "data:image/png;base64,[400 base64 characters]"}'),
    ):
        (turn,) = one(
            openai_chat.FORMAT, {"messages": [calling(("a", "f", "{}")), result(content, tool_call_id="a")]}
        ).turns
        assert turn.observation == expected
        assert turn.meta == {"context_only": "base64 data is replaced by a note"}


@pytest.mark.parametrize(
    "record,reason",
    [
        ({"messages": ASK}, "there is no tool call: nothing in a plain chat tells what an environment answered"),
        ({"messages": [calling(("a", "f", "{}"))]}, "no tool call is answered"),
        ({"messages": []}, "there are no messages"),
        ({"messages": "x"}, "there is no list of messages"),
        ({"messages": ["x"]}, "message 0 is not an object with a role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "a tool call has no name"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "tool_calls is not a list"),
        (7, "there is no list of messages"),
    ],
)
def test_a_chat_that_gives_nothing_is_refused_for_a_stated_reason(record, reason) -> None:
    assert refused(openai_chat.FORMAT, record) == reason


@pytest.mark.parametrize("content", ["[{}]", "{}\n{}"], ids=["array", "lines"])
def test_bare_messages_are_one_trajectory(tmp_path, content) -> None:
    separator = "\n" if "\n" in content else ","
    joined = separator.join(map(json.dumps, CHAT["messages"]))
    path = tmp_path / "chat"
    path.write_text(f"[{joined}]" if separator == "," else joined)
    seen = look(path)
    assert [known for known in FORMATS if known.matches(seen)] == [MESSAGES_FORMAT]
    values = [record.value for record in records(path, seen)]
    assert one(MESSAGES_FORMAT, values, Origin("chat", "")).turns == one(openai_chat.FORMAT, CHAT).turns


def test_bare_messages_as_an_element_are_read() -> None:
    assert openai_chat.FORMAT.matches(head(CHAT["messages"], "array"))
    assert one(openai_chat.FORMAT, CHAT["messages"]).turns == one(openai_chat.FORMAT, CHAT).turns


def test_livemcpbench_unwraps_the_repr_and_flags_what_the_client_wrote() -> None:
    trajectory = one(livemcpbench.FORMAT, LIVE)
    assert trajectory.turns == [
        Turn(call("route", {"query": "q"}), 'success: true\nit\'s "one" é\x00\\u0041'),
        Turn(
            call("execute-tool", {"server_name": "s", "tool_name": "t", "params": {}}),
            "Tool call timed out.",
            {"context_only": "time-out of the harness"},
        ),
    ]
    assert trajectory.split_group == "livemcpbench:t-1"
    text = json.dumps(to_dict(trajectory))
    assert not any(word in text for word in ("THOUGHT", "SYSTEM PROMPT", "TASK", "ANSWER"))


@pytest.mark.parametrize(
    "content,observation,why",
    [
        (REPR.format('"it\'s"'), "it's", None),
        (REPR.format("'a\\\\nb'"), "a\\nb", None),
        # Newer clients print more fields; several parts are several lines.
        (
            "meta=None content=[TextContent(type='text', text='a]', annotations=None, meta=None), "
            "TextContent(type='text', text='b', annotations=None)] structuredContent={'x': [1]} isError=True",
            "a]\nb",
            None,
        ),
        (
            "meta=None content=[ImageContent(type='image', data='AAAA', mimeType='image/png', annotations=None)] "
            "isError=False",
            "[ImageContent]",
            "a part of the result is no text",
        ),
        ("meta=None content=[] isError=False", "", None),
        # Cut by the harness: in the text, inside an escape, after a backslash, behind the text.
        (REPR.format("'ab\\ncd'")[:-9], "ab\ncd", "cut by the harness"),
        (REPR.format("'ab\\x1b'")[: -len("b', annotations=None)] isError=False")], "ab", "cut by the harness"),
        ("meta=None content=[TextContent(type='text', text='ab\\", "ab", "cut by the harness"),
        ("meta=None content=[TextContent(type='text', text='a\\\\u12", "a\\u12", "cut by the harness"),
        (
            'meta=None content=[TextContent(type=\'text\', text=\'{"type": "image", "data": "' + "A" * 99,
            '{"type": "image", "data": "[99 base64 characters]',
            "cut by the harness",
        ),
        ("meta=None content=[Other(", "meta=None content=[Other(", "cut by the harness"),
        # What JSON can hold and Python cannot parse: half a surrogate pair, NUL.
        (REPR.format("'a\ud83db'"), "a\ud83db", None),
        (REPR.format("'a\ud83db'")[:-9], "a\ud83db", "cut by the harness"),
        (REPR.format("'\x00'"), REPR.format("'\x00'"), "the repr of the result cannot be read"),
        ("meta=None content=[1] + [2] isError=False",) * 2 + ("the repr of the result cannot be read",),
        ("Error: no session", "Error: no session", "written by the client of the harness, not by a server"),
        ("", "", "written by the client of the harness, not by a server"),
    ],
)
def test_livemcpbench_results(content, observation, why) -> None:
    assert livemcpbench.observation(content) == (observation, why)


def test_a_client_with_other_tools_that_prints_results_is_a_chat() -> None:
    messages = [*ASK, calling(("a", "weather", "{}")), result(REPR.format("'rain'"), tool_call_id="a")]
    assert [known for known in FORMATS if known.matches(head({"messages": messages}))] == [openai_chat.FORMAT]
    assert one(openai_chat.FORMAT, {"messages": messages}).turns == [Turn(call("weather", {}), "rain")]


def test_tau_bench_takes_the_customer_as_environment() -> None:
    trajectory = one(tau_bench.FORMAT, TAU)
    assert trajectory.turns == [
        Turn(call("respond", {"content": "Which one?"}), "ABC."),
        Turn(call("cancel", {"id": "ABC"}), "Error: not found"),
        Turn(call("respond", {"content": "It is not there."}), "Bye ###STOP###"),
    ]
    assert trajectory.system.initial_state == "The customer opens: Hi, cancel it."
    assert trajectory.split_group == "tau-bench:7"
    names = [json.loads(line)["name"] for line in trajectory.system.action_space.splitlines()[1:]]
    assert names == ["respond", "cancel"]
    assert not any(word in json.dumps(to_dict(trajectory)) for word in ("THOUGHT", "POLICY", "PERSONA"))


def test_tau_bench_react_dialect() -> None:
    traj = [
        {"role": "system", "content": "POLICY"},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": 'Thought:\nTHOUGHT\nAction:\n{"name": "find", "arguments": {"id": 1}}'},
        {"role": "user", "content": "API output: {}"},
        {"role": "assistant", "content": 'THOUGHT\nAction:\n{"name": "respond", "arguments": {"content": "Done."}}'},
        {"role": "user", "content": "API output: is that so?"},
        {"role": "assistant", "content": "THOUGHT\nAction:\nnot JSON"},
        {"role": "user", "content": "###STOP###"},
    ]
    assert one(tau_bench.FORMAT, TAU | {"traj": traj}).turns == [
        Turn(call("find", {"id": 1}), "{}"),
        Turn(call("respond", {"content": "Done."}), "API output: is that so?"),
        Turn(call("respond", {"content": "not JSON"}), "###STOP###"),
    ]


@pytest.mark.parametrize(
    "record,reason",
    [
        (
            {"messages_display": "user: a\nassistant: None\ntool: b"},
            'few-shot text, which does not hold the tool calls ("assistant: None" stands for them)',
        ),
        (TAU | {"traj": []}, "the run failed before its first message"),
        (TAU | {"traj": TAU["traj"][:3]}, "neither a tool nor the customer answers the agent"),
        ({"task_id": 1}, 'there is no list "traj"'),
        ([], "not a JSON object"),
    ],
)
def test_tau_bench_refuses(record, reason) -> None:
    assert refused(tau_bench.FORMAT, record) == reason


def test_agentworldbench_strips_the_wrapping_and_judges_the_last_turn() -> None:
    trajectory = one(agentworldbench.FORMAT, BENCH)
    history = {"context_only": "history of an evaluation row, which judges its last turn"}
    assert trajectory.turns == [
        Turn('[{"keystrokes": "ls\\n"}]', "a\u2028b\n", history),
        Turn("print(1)", "\n  1"),
    ]
    assert trajectory.system.initial_state == "root@h:/#"
    assert trajectory.system.task_description == "WORLD MODEL PROMPT"
    assert (trajectory.domain, trajectory.split_group) == ("terminal", "agentworldbench:terminal:3")


@pytest.mark.parametrize("current", [None, "another text"])
def test_agentworldbench_knows_the_instruction_without_current_prompt(current) -> None:
    assert one(agentworldbench.FORMAT, BENCH | {"current_prompt": current}).turns[-1].action == "print(1)"


@pytest.mark.parametrize(
    "prompt,action",
    [
        (
            '**Action:**\n```json\n{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n```',
            call("Bash", {"command": "ls"}),
        ),
        ('### Turn 2\n**Action:**\n<invoke name="phone">', '<invoke name="phone">'),
        ("### Turn 2\n**Action:**\n```json\n{broken\n```", "{broken"),
        ("### Turn 2\n**Action:**\n```python\nx = '''\n```\n'''\n```", "x = '''\n```\n'''"),
        ("### Turn 2\n**Current State:**\na\u2028b\n\n**Action:**\ntap", "tap"),
        ("### Turn 2\n**Current State:**\nother\n\n**Action:**\ntap", "**Current State:**\nother\n\n**Action:**\ntap"),
    ],
)
def test_agentworldbench_actions(prompt, action) -> None:
    record = BENCH | {"prompt": [FIRST, prompt + TAIL], "current_prompt": prompt}
    assert one(agentworldbench.FORMAT, record).turns[-1].action == action


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"response": BENCH["response"][:1]}, "2 prompts and 1 responses: a turn without its answer"),
        ({"prompt": [], "response": []}, "0 prompts and 0 responses: a turn without its answer"),
        ({"prompt": "x"}, "prompt is not a list of texts"),
        ({"response": [1, 2]}, "response is not a list of texts"),
        ({"turn_idx": 3}, "turn_idx is 3, but there are 2 turns"),
        ({"id": None}, "there is no id of the trajectory, by which splits keep its rows together"),
        ({"task": "chess"}, "task 'chess' is none of the domains mcp, search, terminal, swe, android, web, os"),
        ({"system_str": None}, "not a row of AgentWorldBench: there is no system_str"),
    ],
)
def test_agentworldbench_refuses(change, reason) -> None:
    assert refused(agentworldbench.FORMAT, BENCH | change) == reason


@pytest.mark.parametrize(
    "first,name",
    [
        (CHAT, "openai-chat"),
        ({"messages": ASK}, "openai-chat"),
        (LIVE, "livemcpbench"),
        ({"messages": LIVE["messages"]}, "livemcpbench"),
        ({"task_id": "t", "Question": "", "category": "", "Annotator Metadata": {}, "messages": ASK}, "livemcpbench"),
        (TAU, "tau-bench"),
        ({"messages_display": "user: a"}, "tau-bench"),
        (BENCH, "agentworldbench"),
        ({"messages": ASK, "trajectory_format": "mini-swe-agent-1.1"}, None),
        ({"id": "a", "domain": "mcp", "split_group": "b", "turns": []}, None),
        *((value, None) for value in (None, 1, "a", [], {}, [[]], {"messages": {}}, {"messages": [1]}, {"traj": 1})),
    ],
)
@pytest.mark.parametrize("layout", ["object", "array", "lines"])
def test_each_file_is_taken_by_one_format_at_most(first, name, layout) -> None:
    assert [known.name for known in FORMATS if known.matches(head(first, layout))] == ([name] if name else [])


def test_bare_messages_without_tool_calls_are_left_to_others() -> None:
    assert not any(known.matches(head(ASK[0], "array")) for known in FORMATS)


# The corpora.

FOLDER = os.environ.get("AGENTWORLD_CORPORA")
with_corpora = pytest.mark.skipif(not FOLDER, reason="AGENTWORLD_CORPORA is unset: no real recorded data to read")


def imported(file: str, known: Format) -> tuple[list[Trajectory], list[str], list[Any]]:
    """Trajectories, reasons and raw values of a corpus file; every record gives one of the first two."""
    path = Path(FOLDER) / file
    seen = look(path)
    assert [other for other in FORMATS if other.matches(seen)] == [known]
    kept, reasons, values = [], [], []
    for record in records(path, seen):
        if isinstance(record, Rejected):
            reasons.append(record.reason)
            continue
        assert isinstance(record, Record)
        values.append(record.value)
        try:
            kept.append(one(known, record.value, Origin(file, record.where)))
        except UnusableError as error:
            reasons.append(str(error))
    assert len({trajectory.id for trajectory in kept}) == len(kept)
    return kept, reasons, values


def why_context(trajectories: list[Trajectory]) -> Counter:
    return Counter(turn.meta.get("context_only") for trajectory in trajectories for turn in trajectory.turns)


def thoughts(messages: list[dict]) -> set[str]:
    """What the agent says beside its calls, where it is long enough not to occur by chance."""
    said = (message for message in messages if message["role"] == "assistant" and message.get("tool_calls"))
    return {message["content"] for message in said if message["content"] and len(message["content"]) > 40}


@with_corpora
def test_livemcpbench_corpus() -> None:
    kept, reasons, values = imported(
        "mcp/livemcpbench/baseline_output_claude-sonnet-4_Qwen3-Embedding-0.6B.json", livemcpbench.FORMAT
    )
    assert (len(kept), reasons, sum(len(t.turns) for t in kept)) == (95, [], 814)  # as SOURCE.md
    # 60 reprs do not end: cut by the harness. Their lengths differ from 10,000 where e-mails were redacted later.
    assert why_context(kept) == {None: 740, "cut by the harness": 60, "time-out of the harness": 14}
    assert len({t.split_group for t in kept}) == 95
    for trajectory, value in zip(kept, values, strict=True):
        results = [message["content"] for message in value["messages"] if message["role"] == "tool"]
        said = thoughts(value["messages"])
        for turn, raw in zip(trajectory.turns, results, strict=True):
            assert not turn.observation.startswith("meta=")
            assert not any(thought in turn.action or thought in turn.observation for thought in said)
            if "context_only" not in turn.meta:
                assert repr(turn.observation) in raw
            assert not re.search(r"[A-Za-z0-9+/]{2000}", turn.observation)
        calls = [c["function"] for m in value["messages"] for c in m.get("tool_calls") or []]
        assert [json.loads(turn.action) for turn in trajectory.turns] == [
            {"name": c["name"], "arguments": json.loads(c["arguments"])} for c in calls
        ]


@with_corpora
@pytest.mark.parametrize(
    "file,expected",
    [
        ("base64_image_in_tool_result.livemcpbench.json", {None: 4, "cut by the harness": 2}),
        ("tool_timeout_observations.livemcpbench.json", None),
    ],
)
def test_livemcpbench_hard(file, expected) -> None:
    kept, reasons, values = imported(f"hard/{file}", livemcpbench.FORMAT)
    assert (len(kept), reasons) == (1, [])
    assert max(len(turn.observation) for turn in kept[0].turns) < 10_000
    if expected is not None:
        assert why_context(kept) == expected
        notes = [turn.observation for turn in kept[0].turns if "context_only" in turn.meta]
        assert all(re.search(r'"data": "\[\d+ base64 characters\]$', note) for note in notes)
    else:
        raw = [m["content"] for m in values[0]["messages"] if m["role"] == "tool"]
        assert why_context(kept)["time-out of the harness"] == raw.count("Tool call timed out.") > 0


@with_corpora
def test_tau_bench_corpus() -> None:
    kept, reasons, values = imported("mcp/tau-bench/gpt-4o-airline.json", tau_bench.FORMAT)
    assert (len(kept), reasons) == (200, [])
    # SOURCE.md counts tool results only (1,164); the 1,290 replies of the customer are observations as well.
    replies = sum(json.loads(turn.action)["name"] == "respond" for t in kept for turn in t.turns)
    assert (sum(len(t.turns) for t in kept), replies) == (1164 + 1290, 1290)
    assert Counter(Counter(t.split_group for t in kept).values()) == {4: 50}  # 50 tasks, 4 trials each
    assert why_context(kept) == {None: 2454}
    for trajectory, value in zip(kept, values, strict=True):
        said = thoughts(value["traj"])
        assert not any(thought in turn.action + turn.observation for turn in trajectory.turns for thought in said)
        heard = [m["content"] for m in value["traj"] if m["role"] in ("user", "tool")]
        assert [trajectory.system.initial_state.removeprefix("The customer opens: ")] + [
            turn.observation for turn in trajectory.turns
        ] == heard


@with_corpora
@pytest.mark.parametrize(
    "file,rows,damaged",
    [
        # 288 trajectories in SOURCE.md = 200 runs + these 88 rows, which have lost their calls.
        ("mcp/tau-bench/MockAirlineDomainEnv-few_shot.jsonl", 19, 0),
        ("mcp/tau-bench/MockRetailDomainEnv-few_shot.jsonl", 69, 0),
        ("hard/SYNTHETIC_truncated_last_line.jsonl", 2, 1),
    ],
)
def test_few_shot_text_is_refused_row_by_row(file, rows, damaged) -> None:
    kept, reasons, _ = imported(file, tau_bench.FORMAT)
    assert (kept, len(reasons), sum(reason.startswith("not JSON") for reason in reasons)) == (
        [],
        rows + damaged,
        damaged,
    )
    assert sum("few-shot text" in reason for reason in reasons) == rows


@with_corpora
def test_agentworldbench_corpus() -> None:
    kept, reasons, _ = imported("agentworldbench-format/synthetic_terminal.jsonl", agentworldbench.FORMAT)
    assert reasons == []
    assert [len(t.turns) for t in kept] == [1, 2, 3]
    assert {t.split_group for t in kept} == {"agentworldbench:terminal:1"}
    assert [(turn.action, turn.observation) for turn in kept[2].turns] == [
        ('[{"keystrokes": "pwd\\n", "duration": 0.1}]', "root@host:/app# pwd\n/app\nroot@host:/app#"),
        ('[{"keystrokes": "cd tests\\n", "duration": 0.1}]', "root@host:/app# cd tests\nroot@host:/app/tests#"),
        ('[{"keystrokes": "pwd\\n", "duration": 0.1}]', "root@host:/app/tests# pwd\n/app/tests\nroot@host:/app/tests#"),
    ]
    assert {t.system.initial_state for t in kept} == {"root@host:/app#"}
    assert [["context_only" in turn.meta for turn in t.turns][-1] for t in kept] == [False] * 3


@with_corpora
def test_a_chat_without_an_observation_is_refused() -> None:
    kept, reasons, values = imported("hard/single_turn_no_observation.mdlm_alfworld.jsonl", openai_chat.FORMAT)
    assert (kept, len(reasons)) == ([], len(values))
    assert set(reasons) == {"there is no tool call: nothing in a plain chat tells what an environment answered"}


@with_corpora
def test_files_of_other_formats_are_left_alone() -> None:
    ours = ("livemcpbench", "tau-bench", "agentworldbench-format", "hard")
    for path in sorted(Path(FOLDER).rglob("*")):
        if path.is_file() and not any(part in ours for part in path.parts):
            assert [known.name for known in FORMATS if known.matches(look(path))] == [], path
