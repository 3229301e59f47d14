"""SWE-agent, mini-swe-agent, R2E-Gym and world-model triples: small inputs by hand, and the recorded corpora."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentworld.data.formats import mini_swe_agent, native, r2e_gym, swe_agent, wm_triples
from agentworld.data.formats.container import look, records
from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.formats.issue_text import issue_key
from agentworld.data.schema import Trajectory, Turn, from_dict, to_dict

FORMATS = (swe_agent.FORMAT, mini_swe_agent.FORMAT, r2e_gym.FORMAT, wm_triples.FORMAT, native.FORMAT)
ORIGIN = Origin("logs/a.json", "")
CORPORA = os.environ.get("AGENTWORLD_CORPORA", "")
needs_corpora = pytest.mark.skipif(not CORPORA, reason="AGENTWORLD_CORPORA is not set: no recorded corpora here")

SHELL_PROMPT = "(Open file: n/a)\n(Current directory: /repo)\nbash-$"
ISSUE = f"Solve this.\nISSUE:\nIt breaks\r\nbadly.\n\nINSTRUCTIONS:\nBe good.\n\n{SHELL_PROMPT}"
SYSTEM = "SETTING: x\n\nCOMMANDS:\nopen:\n  signature: open <path>\n\n\nPlease note that y.\n\nRESPONSE FORMAT:\nz"


def step(action: str, observation: str, **more: Any) -> dict[str, Any]:
    return {"action": action, "observation": observation, "response": "THINKING", "thought": "THINKING", **more}


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def traj(steps: list[dict[str, Any]], system: str = SYSTEM, task: str = ISSUE, **more: Any) -> dict[str, Any]:
    chat = [
        message("system", system, agent="primary"),
        message("user", "--- DEMONSTRATION ---\nISSUE:\nother\n\nINSTRUCTIONS:", agent="primary", is_demo=True),
        message("user", task, agent="primary"),
    ]
    return {
        "environment": "swe_main",
        "trajectory": steps,
        "history": chat,
        "info": {"exit_status": "submitted"},
        **more,
    }


def called(name: str, arguments: str, call_id: str = "1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


HISTORY_ONLY = {
    "history": [
        message("system", "SETTING", agent="main", message_type="system_prompt"),
        message("user", ISSUE, agent="main"),
        message("assistant", "THINKING", agent="main", action="ls", tool_calls=[called("bash", '{"command": "ls"}')]),
        message("tool", f"a\nb\n{SHELL_PROMPT}", agent="main", tool_call_ids=["1"]),
        message("assistant", "THINKING", agent="main", action="submit", tool_calls=[called("submit", "{}", "2")]),
        message("tool", f"\ndiff\n\n{SHELL_PROMPT}", agent="main", tool_call_ids=["2"]),
        message("assistant", "THINKING", agent="main", action="lost", tool_calls=[called("bash", "{}", "3")]),
    ]
}
MINI = {
    "info": {"config": {"environment": {"cwd": "/testbed", "image": "img"}}, "exit_status": "Submitted"},
    "messages": [
        message("system", "RULES"),
        message("user", "<pr_description>\nConsider the following PR description:\nFix it\n</pr_description>"),
        message(
            "assistant",
            "THINKING",
            tool_calls=[called("bash", '{"command": "ls"}', "a"), called("bash", '{"command": "pwd"}', "b")],
            extra={"actions": [{"command": "ls", "tool_call_id": "a"}, {"command": "pwd", "tool_call_id": "b"}]},
        ),
        message("tool", "<returncode>0</returncode>\n<output>\n/\n</output>", tool_call_id="b"),
        message("tool", "<returncode>1</returncode>\n<output>\nx\n</output>", tool_call_id="a"),
        message(
            "assistant", "", tool_calls=[called("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')]
        ),
        message("exit", "diff", extra={"exit_status": "Submitted", "submission": "diff"}),
    ],
    "trajectory_format": "mini-swe-agent-1.1",
    "instance_id": "org__repo-1",
}
BARE = [
    message("system", "Use\n```mswea_bash_command\nls\n```\nand `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`"),
    message("user", "Please solve this issue: Fix it\n\nYou can execute bash commands and so on"),
    message("assistant", "THINKING\n\n```mswea_bash_command\nls\npwd\n```"),
    message("user", "<returncode>0</returncode>\n<output>\nx\n</output>"),
    message("assistant", "THINKING, no command"),
    message("user", "Please always provide EXACTLY ONE action in triple backticks, found 0 actions."),
    message(
        "assistant", "THINKING\n```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff\n```"
    ),
    message("user", "diff"),
]
R2E = {
    "trajectory_steps": [
        {
            "thought": "THINKING",
            "action": "Now I look.\n<function=execute_bash>\n  <parameter=command>ls</parameter>\n</function>",
            "observation": "Exit code: 0\n[STDOUT]\n\na\n\nThis is step 0 of a maximum of 100. Steps Remaining: 100.",
        },
        {"thought": "THINKING", "action": "THINKING", "observation": "Call a tool."},
        {
            "thought": "THINKING",
            "action": "<function=submit>\n</function>",
            "observation": "<<< Finished >>>\nThis is step 2 of a maximum of 100. Steps Remaining: 98.",
        },
    ],
    "problem_statement": "It breaks",
    "agent_args": {"system_prompt": "RULES", "command_files": ["./tools/str_replace_editor.py", "./tools/submit.py"]},
    "ds": {
        "instance_id": "org__repo-2",
        "repo": "org/repo",
        "base_commit": "abc",
        "patch": "GOLD",
        "test_patch": "GOLD",
    },
    "env_args": {"ds": {"patch": "GOLD"}},
    "output_patch": "OWN",
    "reward": 1.0,
    "test_output": "GRADED",
}
TRIPLE = {
    "domain": "terminal",
    "history": [{"action": "mkdir w", "observation": ""}, {"action": "cat no", "observation": ""}],
    "action": "cd w && pwd",
    "truth": {
        "stdout": "/tmp/tmp.AbCdEf1234/w",
        "stderr": "",
        "exit_code": 0,
        "cwd": "/tmp/tmp.AbCdEf1234/w",
        "fs_delta": [],
    },
    "format_schema": None,
}


def head(value: Any) -> Head:
    """What detection would see of a file with this value."""
    if isinstance(value, list):
        return Head("array", value[0], json.dumps(value)[:65_536])
    return Head("object", value, json.dumps(value)[:65_536])


def one(known: Format, value: Any) -> Trajectory:
    (found,) = known.convert(value, ORIGIN)
    assert isinstance(found, Trajectory)
    assert from_dict(json.loads(json.dumps(to_dict(found)))) == found
    assert "THINKING" not in json.dumps(to_dict(found)) and "RULES" not in json.dumps(to_dict(found))
    return found


# --- detection


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("swe-agent", traj([step("ls", "a")])),
        ("swe-agent", traj([])),
        ("swe-agent", HISTORY_ONLY),
        ("mini-swe-agent", MINI),
        ("mini-swe-agent", BARE),
        ("mini-swe-agent", [MINI]),
        ("mini-swe-agent", {"messages": [], "info": {"mini_version": "2.2.7"}}),
        ("r2e-gym", R2E),
        ("wm-triples", TRIPLE),
        ("wm-triples", {**TRIPLE, "history": []}),
    ],
)
def test_each_is_recognised_by_one_format_only(name: str, value: Any) -> None:
    assert [known.name for known in FORMATS if known.matches(head(value))] == [name]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, "text", [], [1], {}, {"messages": []}, {"messages": [{"role": "user", "content": "x"}]}),
        [message("system", "a chat"), message("user", "how do I write a ```mswea_bash_command block?")],
        {"trajectory": [{"action": "tap", "observation": {}}]},
        {"trajectory": "x", "history": [{"role": "user"}]},
        {"history": [{"role": "user", "content": "a chat"}]},
        {"history": [{"action": "a", "observation": "b"}]},
        {"history": [3], "action": "a", "truth": {"stdout": ""}},
        {"trajectory_steps": [3]},
        {"trajectory_format": {"a": 1}, "messages": [], "info": 3},
    ],
)
def test_other_values_are_left_alone(value: Any) -> None:
    for layout in ("object", "array", "lines", "text"):
        assert not any(known.matches(Head(layout, value, json.dumps(value))) for known in FORMATS)


# --- SWE-agent


def test_swe_agent_old_schema() -> None:
    state = json.dumps({"open_file": "n/a", "working_dir": "/repo"}) + "\n"
    found = one(
        swe_agent.FORMAT, traj([step("open a.py\n", "[File: a.py]\n", state=state), step("submit\n", "\ndiff\n")])
    )
    assert found.turns == [Turn("open a.py\n", "[File: a.py]\n"), Turn("submit\n", "\ndiff\n")]
    assert (found.id, found.domain, found.source) == ("swe-agent:logs/a.json", "swe", "swe-agent")
    assert found.system.action_space.endswith("\n\nopen:\n  signature: open <path>")
    assert found.system.initial_state == "Working directory: /repo\nOpen file: n/a"
    assert found.split_group == "swe-agent:" + issue_key("It breaks\nbadly.")


def test_swe_agent_new_schema_takes_the_command_documents_of_the_run() -> None:
    replay = {"agent": {"tools": {"command_docs": "bash:\n  signature: <command>\n\n"}}}
    steps = [
        step("str_replace_editor view /repo", "x", state={"working_dir": "/repo"}, execution_time=0.2, messages=[])
    ]
    for configuration in (replay, json.dumps(replay)):
        found = one(swe_agent.FORMAT, traj(steps, system="SETTING", replay_config=configuration))
        assert found.turns == [Turn("str_replace_editor view /repo", "x")]
        assert found.system.action_space.endswith("\n\nbash:\n  signature: <command>")


def test_swe_agent_history_only_takes_off_the_prompt_that_the_agent_appends() -> None:
    found = one(swe_agent.FORMAT, HISTORY_ONLY)
    assert found.turns == [Turn("ls", "a\nb"), Turn("submit", "\ndiff\n")]  # the last action has no answer
    assert found.system.action_space.endswith("\n\nbash: command\nsubmit: no arguments")


def test_swe_agent_history_never_pairs_an_action_with_the_answer_of_another() -> None:
    history = [dict(m) for m in HISTORY_ONLY["history"]]
    history[5]["tool_call_ids"] = ["9"]
    assert one(swe_agent.FORMAT, {"history": history}).turns == [Turn("ls", "a\nb")]
    history[3]["content"] = [{"type": "text", "text": "OBSERVATION:\na"}]
    assert one(swe_agent.FORMAT, {"history": history}).turns == [Turn("ls", "a")]


@pytest.mark.parametrize(
    ("action", "observation", "reason"),
    [
        ("./rock", "\nEXECUTION TIMED OUT", "time-out of the harness"),
        ("x", "out\nEXECUTION TIMED OUT BECAUSE NO OUTPUT WAS PRODUCED FOR MORE THAN", "time-out of the harness"),
        ("x", "The command 'x\ny' was cancelled because it took more than 30 seconds.", "time-out of the harness"),
        ("vim a", "Interactive operation 'vim a' is not supported by this environment.", "refused by the harness"),
        (
            "cat a",
            "a<response clipped><NOTE>Observations should not exceeded 9 characters",
            "output truncated by the harness",
        ),
        ("ls", "Old environment output: (3 lines omitted)", "output masked by the harness"),
        ("exit_cost", "", "the harness ends the run"),
        ("grep T a", "a: EXECUTION TIMED OUT", None),
        ("submit", "diff", None),
        ("exit_forfeit", "bye", None),
    ],
)
def test_swe_agent_harness_text_is_context_only(action: str, observation: str, reason: str | None) -> None:
    (turn,) = one(swe_agent.FORMAT, traj([step(action, observation)])).turns
    assert turn == Turn(action, observation, {"context_only": reason} if reason else {})


def test_swe_agent_ctf_runs_are_terminal_and_their_verdicts_no_targets() -> None:
    task = (
        "We're currently solving the following CTF challenge. The CTF challenge is a cryptography problem named "
        "\"Eps\", worth 10 points.\nFiles included in the challenge: ['a.py']\n\n"
        "The challenge server is running on `h` port `1`."
        f"\n\nINSTRUCTIONS:\nGo.\n\n{SHELL_PROMPT}"
    )
    steps = [step("submit flag{no}\n", "Wrong flag!"), step("ls", "a.py"), step("submit 'flag{x}'\n", "")]
    verdict = {"context_only": "verdict of the grader"}
    for system in ("SETTING: You are a top CTF player.", "SETTING"):
        found = one(swe_agent.FORMAT, traj(steps, system=system, task=task))
        assert found.domain == "terminal"
        assert [turn.meta for turn in found.turns] == [verdict, {}, verdict]
        assert found.split_group.startswith("swe-agent:eps-")
        assert found.system.initial_state == (
            "Working directory: /repo\nOpen file: n/a\nFiles included in the challenge: ['a.py']\n"
            "The challenge server is running on `h` port `1`"
        )
    # An issue may say what it likes.
    about_ctf = ISSUE.replace("badly", "in the following CTF challenge, CTF")
    assert one(swe_agent.FORMAT, traj([step("ls", "a")], task=about_ctf)).domain == "swe"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (traj([]), "no steps .exit status submitted"),
        (traj([step("ls", "a"), {"action": "ls"}]), "step 1 has no text as observation"),
        (traj([step("ls", None)]), "step 0 has no text as observation"),
        ({"trajectory": [3]}, "step 0 is no object"),
        ({"trajectory": {}}, "no list of steps"),
        ({"history": []}, "no steps"),
        (3, "found int"),
    ],
)
def test_swe_agent_says_why_a_record_gives_nothing(record: Any, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        list(swe_agent.FORMAT.convert(record, ORIGIN))


def test_issue_key_is_of_the_issue_and_not_of_the_prompt_around_it() -> None:
    issue = "Title here\n\nText"
    keys = {
        issue_key(f"A\nISSUE:\n{issue}\n\nINSTRUCTIONS:\nB"),
        issue_key(f"Other\nISSUE:\n{issue.replace(chr(10), chr(13) + chr(10))}\n\n\nINSTRUCTIONS:\nC"),
        issue_key(f"<pr_description>\nConsider the following PR description:\n{issue}\n</pr_description> D"),
        issue_key(f"<issue_description>\n{issue}\n</issue_description>"),
    }
    assert len(keys) == 1 and keys.pop().startswith("title-here-")
    assert issue_key("Title here\n\nOther text") != issue_key(issue)


# --- mini-swe-agent


def test_mini_matches_parallel_calls_by_id_and_keeps_the_closing_turn_as_history() -> None:
    found = one(mini_swe_agent.FORMAT, MINI)
    assert found.turns == [
        Turn("ls", "<returncode>1</returncode>\n<output>\nx\n</output>"),
        Turn("pwd", "<returncode>0</returncode>\n<output>\n/\n</output>"),
        Turn("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "diff", {"context_only": "the harness ends the run"}),
    ]
    assert found.split_group == "mini-swe-agent:org__repo-1"
    assert found.system.initial_state == "Working directory: /testbed\nContainer image: img"


def test_mini_bare_messages() -> None:
    found = one(mini_swe_agent.FORMAT, BARE)
    assert found.turns == [
        Turn("ls\npwd", "<returncode>0</returncode>\n<output>\nx\n</output>"),
        Turn(
            "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff",
            "diff",
            {"context_only": "the harness ends the run"},
        ),
    ]
    assert found.split_group.startswith("mini-swe-agent:fix-it-")
    in_parts = [
        m if m["role"] == "system" else {**m, "content": [{"type": "text", "text": m["content"]}]} for m in BARE
    ]
    assert one(mini_swe_agent.FORMAT, in_parts).turns == found.turns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "<exception>Command '['docker']' timed out after 60 seconds</exception>\n<returncode>-1</returncode>",
            "time-out",
        ),
        ("<exception>no such container</exception>\n<returncode>-1</returncode>", "error of the harness"),
        ("The last command <command>x</command> timed out and has been killed.", "time-out"),
        ("<returncode>0</returncode>\n<warning>\nThe output of your last command was too long.", "output truncated"),
        ("<returncode>0</returncode>\n<output>\n<warning>\n<exception> timed out after\n</output>", None),
    ],
)
def test_mini_harness_text_is_context_only(text: str, reason: str | None) -> None:
    record = {"messages": [message("assistant", "```bash\nx\n```"), message("user", text)]}
    (turn,) = one(mini_swe_agent.FORMAT, record).turns
    assert (turn.action, turn.observation) == ("x", text)
    assert turn.meta.get("context_only", "").startswith(reason or "") and bool(turn.meta) == bool(reason)


def test_mini_a_command_without_an_answer_gets_no_other_answer() -> None:
    done = "<returncode>0</returncode>\n<output>\n</output>"
    record = {
        "messages": [
            message(
                "assistant",
                "",
                tool_calls=[called("bash", '{"command": "a"}', "1"), called("bash", '{"command": "b"}', "2")],
            ),
            message("tool", done, tool_call_id="2"),
            message(
                "assistant", "", tool_calls=[called("bash", "{broken", "3"), called("bash", '{"command": "c"}', "4")]
            ),
            message("exit", "died", extra={"exit_status": "Timeout"}),
        ]
    }
    assert one(mini_swe_agent.FORMAT, record).turns == [Turn("b", done, {"commands_without_answer": 1})]


def test_mini_list_of_runs_rejects_the_bad_one_only() -> None:
    found = list(mini_swe_agent.FORMAT.convert([MINI, {"messages": []}, 3], ORIGIN))
    assert isinstance(found[0], Trajectory) and found[0].id == "mini-swe-agent:logs/a.json#1"
    assert found[1:] == [
        Rejected("#2", "no command was run in this session"),
        Rejected("#3", "the record has no list of messages"),
    ]


# --- R2E-Gym


def test_r2e_gym() -> None:
    found = one(r2e_gym.FORMAT, {**R2E, "trajectory_steps": [R2E["trajectory_steps"][i] for i in (0, 1, 2)]})
    assert found.turns == [
        Turn(
            "<function=execute_bash>\n  <parameter=command>ls</parameter>\n</function>",
            "Exit code: 0\n[STDOUT]\n\na\n",
        ),
        Turn("", "Call a tool.", {"context_only": "no tool was called"}),
        Turn("<function=submit>\n</function>", "<<< Finished >>>", {"context_only": "the harness ends the run"}),
    ]
    assert found.split_group == "r2e-gym:org__repo-2"
    assert found.system.initial_state == "Repository: org/repo at commit abc"
    assert found.system.action_space.endswith(
        "\n\nstr_replace_editor: no arguments\nsubmit: no arguments\nexecute_bash: command"
    )
    assert not any(word in json.dumps(to_dict(found)) for word in ("GOLD", "OWN", "GRADED"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Exit code: -1\nThe command took too long to execute (>90s)", "time-out of the harness"),
        ("a\n----\n<Observation truncated in middle for saving context>\n----\nb", "output truncated by the harness"),
        ("a<response clipped><NOTE>To save on context", "output truncated by the tool"),
        ("a The command took too long to execute (>90s)", None),
    ],
)
def test_r2e_gym_harness_text_is_context_only(text: str, reason: str | None) -> None:
    (turn,) = one(
        r2e_gym.FORMAT, {"trajectory_steps": [{"action": "<function=a></function>", "observation": text}]}
    ).turns
    assert turn.meta == ({"context_only": reason} if reason else {})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"trajectory_steps": [], "exit_reason": "llm_query_error"}, "no steps .exit reason llm_query_error"),
        ({"trajectory_steps": [{"action": "a"}]}, "step 0 has no text"),
        ({"trajectory_steps": 3}, "no list"),
        (3, "no list"),
    ],
)
def test_r2e_gym_says_why_a_record_gives_nothing(record: Any, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        list(r2e_gym.FORMAT.convert(record, ORIGIN))


# --- world-model triples


def test_wm_triples() -> None:
    found = one(wm_triples.FORMAT, TRIPLE)
    assert found.turns == [Turn("mkdir w", ""), Turn("cat no", ""), Turn("cd w && pwd", "/tmp/tmp.AbCdEf1234/w")]
    assert found.domain == "terminal"
    assert found.system.initial_state == "Working directory: /tmp/tmp.AbCdEf1234"
    assert "standard error and the exit status are not shown" in found.system.action_space


def test_wm_triples_of_one_session_are_one_split_group() -> None:
    first = {**TRIPLE, "history": [], "action": "mkdir w"}
    other = {**first, "action": "mkdir v"}
    groups = [one(wm_triples.FORMAT, triple).split_group for triple in (TRIPLE, first, other)]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"domain": "cooking"}, "domain is 'cooking'"),
        ({"history": 3}, "a list as history"),
        ({"history": [3]}, "turn 0 has no text"),
        ({"truth": {"stdout": None}}, "turn 2 has no text"),
    ],
)
def test_wm_triples_say_why_a_record_gives_nothing(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        list(wm_triples.FORMAT.convert({**TRIPLE, **change}, ORIGIN))


# --- all


def test_hostile_text_is_carried_unchanged_and_costs_little() -> None:
    text = "\x1b[31m\x00\u2028<|im_end|>\r" + "\n" * 200_000 + "<parameter=" * 20_000
    for known, value in (
        (swe_agent.FORMAT, traj([step(text, text)], task="x\nISSUE:\n" + text, system="COMMANDS:\n" + text)),
        (
            mini_swe_agent.FORMAT,
            {"messages": [message("assistant", "", extra={"actions": [{"command": text}]}), message("user", text)]},
        ),
        (r2e_gym.FORMAT, {"trajectory_steps": [{"action": "<function=a>" + text, "observation": text}]}),
        (wm_triples.FORMAT, {**TRIPLE, "action": text, "truth": {"stdout": text}}),
    ):
        turn = one(known, value).turns[-1]
        assert turn.action.endswith(text) and turn.observation == text


# --- recorded corpora


def read(folder: str, pattern: str = "*") -> list[tuple[str, Any, Trajectory | Rejected]]:
    """(format, raw record, what it gives) of the files of a corpus; a file must be of exactly one format here."""
    found: list[tuple[str, Any, Trajectory | Rejected]] = []
    root = Path(CORPORA)
    for path in sorted((root / folder).glob(pattern)):
        if path.name == "SOURCE.md":
            continue
        seen = look(path)
        (known,) = (known for known in FORMATS if known.matches(seen))
        values = [(record.where, record.value) for record in records(path, seen)]
        if known.whole and seen.layout in ("array", "lines"):
            values = [("", [value for _, value in values])]
        for where, value in values:
            try:
                found += [
                    (known.name, value, item)
                    for item in known.convert(value, Origin(str(path.relative_to(root)), where))
                ]
            except UnusableError as error:
                found.append((known.name, value, Rejected(where, str(error))))
    return found


def thoughts(value: Any) -> set[str]:
    """Every text that the raw record calls reasoning, wherever it stands."""
    if isinstance(value, list):
        return set().union(*map(thoughts, value))
    if not isinstance(value, dict):
        return set()
    here = {value[key] for key in ("thought", "reasoning_content") if isinstance(value.get(key), str)}
    if value.get("role") == "assistant" and isinstance(value.get("content"), str):
        here.add(value["content"].split("```")[0])
    return here.union(*map(thoughts, value.values()))


@needs_corpora
@pytest.mark.parametrize(
    ("folder", "name", "domain", "trajectories", "turns"),
    [
        # SOURCE.md counts 122 turns: those of the 12 files with a "trajectory". function_calling_simple.traj, which it
        # counts as the 13th trajectory, has 5 more in its history.
        ("swe/swe-agent", "swe-agent", "swe", 13, 127),
        ("swe/mini-swe-agent", "mini-swe-agent", "swe", 14, 541),
        ("swe/swe-world-r2egym", "r2e-gym", "swe", 10, 413),
        ("swe/wm-triples-mkrww", "wm-triples", "swe", 1, 7),
        ("terminal/wm-triples-mkrww", "wm-triples", "terminal", 9, 61),
        ("terminal/swe-agent-ctf", "swe-agent", "terminal", 9, 105),
    ],
)
def test_corpora_give_the_counts_of_their_source(
    folder: str, name: str, domain: str, trajectories: int, turns: int
) -> None:
    found = read(folder)
    kept = [item for _, _, item in found if isinstance(item, Trajectory)]
    assert len(kept) == len(found) == trajectories == len({t.id for t in kept})
    assert sum(len(t.turns) for t in kept) == turns
    assert {n for n, _, _ in found} == {name} and {t.domain for t in kept} == {domain}
    compared = 0
    for _, raw, item in found:
        assert isinstance(item, Trajectory) and from_dict(to_dict(item)) == item
        # Two thoughts of eps are the command itself.
        commands = {turn.action.strip() for turn in item.turns}
        said = [text.strip() for text in thoughts(raw) if len(text.strip()) > 20 and text.strip() not in commands]
        compared += len(said)
        written = "\n".join(turn.action + "\n" + turn.observation for turn in item.turns)
        assert not [text for text in said if text in written]
    assert compared >= turns // 2 or name == "wm-triples"


@needs_corpora
def test_corpora_swe_agent_replays_of_one_issue_are_one_group() -> None:
    kept = [item for _, _, item in read("swe/swe-agent") if isinstance(item, Trajectory)]
    assert sorted(Counter(t.split_group for t in kept).values()) == [1, 1, 3, 8]
    assert all(t.system.initial_state for t in kept)
    assert sum(bool(turn.meta) for t in kept for turn in t.turns) == 0


@needs_corpora
def test_corpora_ctf_time_outs_and_verdicts_are_history() -> None:
    kept = [item for _, _, item in read("terminal/swe-agent-ctf") if isinstance(item, Trajectory)]
    reasons = Counter(turn.meta["context_only"] for t in kept for turn in t.turns if turn.meta)
    # 9 final submissions; and before them 5 wrong flags in eps, 1 in katy, 1 in rock.
    assert reasons == {"verdict of the grader": 16, "time-out of the harness": 3}
    assert len({t.split_group for t in kept}) == 9


@needs_corpora
def test_corpora_mini_swe_agent() -> None:
    found = [(raw, item) for _, raw, item in read("swe/mini-swe-agent") if isinstance(item, Trajectory)]
    reasons = Counter(turn.meta.get("context_only") for _, t in found for turn in t.turns)
    # 11 runs were submitted, 3 died of the API; all other turns answer with a return code.
    assert reasons == {
        None: 524,
        "the harness ends the run": 11,
        "time-out of the harness": 5,
        "output truncated by the harness": 1,
    }
    assert all(
        turn.observation.startswith("<returncode>")
        for _, t in found
        for turn in t.turns
        if "context_only" not in turn.meta
    )
    assert not any("commands_without_answer" in turn.meta for _, t in found for turn in t.turns)
    assert len({t.split_group for _, t in found}) == 13  # sqlfluff-2419 twice


@needs_corpora
def test_corpora_r2e_gym_leaks_neither_gold_patch_nor_step_counter() -> None:
    found = [(raw, item) for _, raw, item in read("swe/swe-world-r2egym") if isinstance(item, Trajectory)]
    reasons = Counter(turn.meta.get("context_only") for _, t in found for turn in t.turns)
    assert reasons == {
        None: 369,
        "the harness ends the run": 10,
        "time-out of the harness": 4,
        "output truncated by the harness": 20,
        "output truncated by the tool": 10,
    }
    for raw, item in found:
        system = json.dumps(to_dict(item)["system"])
        assert "Steps Remaining:" not in json.dumps([turn.observation for turn in item.turns])
        assert "diff --git" not in system and "@@" not in system
        assert all(raw["ds"][key] not in turn.observation for turn in item.turns for key in ("patch", "test_patch"))


@needs_corpora
def test_hard_files() -> None:
    ((name, raw, item),) = read("hard", "ansi_escapes.*")
    assert name == "swe-agent" and isinstance(item, Trajectory) and item.domain == "terminal"
    assert [turn.observation for turn in item.turns] == [s["observation"] for s in raw["trajectory"]]
    assert any("\x1b[33;21m" in turn.observation for turn in item.turns)

    ((name, _, item),) = read("hard", "no_turns_timeout.*")
    assert (name, item) == ("mini-swe-agent", Rejected("", "no command was run in this session; it ended with Timeout"))
