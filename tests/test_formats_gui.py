"""Search, Android, web and desktop logs become the turns that a person reads in them, or a stated refusal.

Small inputs are written by hand; the corpora of AGENTWORLD_CORPORA are read whole where that variable is set.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from agentworld.data.formats import alfworld, android_world, browsergym, container, hotpotqa_react, osworld
from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.schema import Trajectory, from_dict, to_dict

GROUP = [m.FORMAT for m in (hotpotqa_react, android_world, browsergym, osworld, alfworld)]
ORIGIN = Origin("logs/a", "")

# --- Inputs by hand ------------------------------------------------------------------------------------------------

REACT = """\

########################################
BEGIN TRIAL 6
Trial summary: Correct: 1, Incorrect: 1, Halted: 1
#######################################
------------- BEGIN CORRECT AGENTS -------------

Question: Which river is longer?
Correct answer: Nile

------------- BEGIN INCORRECT AGENTS -----------

Question: Which  River is longer? You have attempted to answer following question before and failed. Think.
Reflections:
- I looked at the wrong river.
Thought 1: SECRET I need the Rhine.
Action 1: Search[Rhine]
Observation 1: The Rhine is a river.

It is long.
Observation 2: is a line of the page.
Thought 2: SECRET now look up length.
Action 2: Lookup[length]
Observation 2: (Result 1/2) It is 1,230 km long.
Thought 3: SECRET I may think aloud.
Action 3: Think[hard]
Observation 3: Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>].
Thought 4: SECRET the Danube.
Action 4: Search[Danube]
Observation 4: Could not find that page, please try again.
Thought 5: SECRET so the Rhine.
Action 5: Finish[Rhine]
Observation 5: Answer is INCORRECT
Correct answer: Nile

------------- BEGIN HALTED AGENTS --------------

Question: Who wrote it?
Thought 1: SECRET search.
Action 1: Search[it]
Observation 1: Could not find [it]. Similar: ['It (novel)']
Correct answer: King

"""


def element(text: str | None = None, **fields: Any) -> dict:
    box = {"x_min": 0, "x_max": 90, "y_min": 10, "y_max": 40}
    return {
        "text": text,
        "class_name": "android.widget.TextView",
        "bbox_pixels": box,
        "is_enabled": True,
        "is_visible": True,
        **fields,
    }


def line(text: str, index: int = 0) -> str:
    return f'[{index:3d}] | android.widget.TextView | text="{text}" | bounds=[0,10][90,40]'


def episode(*steps: tuple, final: list | None = None) -> dict:
    """Steps of (text on the screen or None, action text, whether the harness carried it out)."""
    records = [
        {
            "state": {"ui_elements": [element(text)] if text else []},
            "action": action,
            "agent_data": {"after_element_list": [element("in motion")] if done else None, "summary": "SECRET"},
        }
        for text, action, done in steps
    ]
    return {"task_name": "Task", "goal": "g", "step_records": records, "final_state": {"ui_elements": final or []}}


OPEN = 'Reason: SECRET, e.g.\nAction: {open it}\nAction: {"action_type": "open_app", "app_name": "Äpp"}'
CLICK = 'Reason: SECRET\nAction: {"action_type": "click", "index": 0}'
DONE = 'Reason: SECRET\nAction: {"action_type": "status", "goal_status": "complete"}'

PAGE = """\
## InstanceStep{number:03d}


### State of the World

#### Currently Open Tabs

- Tab 0 (active)
  - Title: {title}


#### Current Page Accessibility Tree

```
RootWebArea '{title}', focused
\t[12] button 'has ``` and ### Next Action in it'
```

### History of Past Actions

{history}### Next Action

{answer}

"""
ERROR = 'Error: ValueError: Could not find element with bid "All"'


def answer(call: str) -> str:
    return f"```\nSECRET I see `a12` and think.\n\n```{call}```\n```"


def past(*calls: tuple[str, str]) -> str:
    return "".join(
        f"#### PastAction{i:03d}\n\n##### Selected Action in the BrowserGym format\n\n```\n{call}\n```\n\n"
        f"##### DOM Tree Breadcrumb\n\n```\n[12] button\n```\n\n##### Outcome including errors\n\n{outcome}\n\n"
        for i, (call, outcome) in enumerate(calls)
    )


def run(*pages: tuple[str, str, str]) -> str:
    steps = [PAGE.format(number=i, title=t, history=h, answer=a) for i, (t, h, a) in enumerate(pages)]
    goal = "## Task\n\n* **Derived Goal**:\n  Go and order 12 \"Bee\" with configuration {'Colour': 'Red'}\n"
    templates = (
        "# 3 - Templates\n\n\n## Action Space - Template\n\n```\n\nclick(bid: str)\n\n```\n## Next Action - Template\n"
    )
    return f"# 1 - Global Parameters\n\n\n{goal}## Run Parameters\n\n\n" + "".join(steps) + templates


def page(title: str, error: str = "") -> str:
    tree = f"RootWebArea '{title}', focused\n\t[12] button 'has ``` and ### Next Action in it'"
    shown = f"Error of the last action:\n{error}\n\n" if error else ""
    return f"Open tabs:\n- Tab 0 (active)\n  - Title: {title}\n\n{shown}Accessibility tree:\n{tree}"


FIRST = past(("click('12')", "No errors reported"))
SECOND = past(("click('12')", "No errors reported"), ("click('All')", ERROR))
WEB = run(
    ("A", "No previous actions\n\n", answer('click("12")')), ("B", FIRST, answer('click("All")')), ("C", SECOND, "")
)

TABLE = "tag\tname\ttext\tclass\tdescription\tposition (top-left x&y)\tsize (w&h)\n"
TASK_ID = "chrome/2ad9387a-65d8-4e33-ad5b-7580065a27ca"


def desktop(*steps: tuple[str, Any]) -> dict:
    shown = [{"observation": TABLE + name, "action": action, "action_note": "SECRET"} for name, action in steps]
    return {"task": f"OSWorld {TASK_ID} (part)", "steps": shown}


DESKTOP = desktop(("one", "pyautogui.click(1, 2)"), ("two", {"action_type": "WAIT"}), ("three", "DONE"), ("four", None))
GAME = {"messages": [{"role": "user", "content": "You see a bed 1."}], "game_file": "x", "init_admissible": ["look"]}
DEMONSTRATION = {
    "goal": "Add Ann",
    "observations": [
        {"ui_elements": [{"text": name, "content_desc": None, "class": "V", "bbox_pixels": [0, 1, 2, 3]}]}
        for name in ("a", "b", "c")
    ],
    "actions": [{"action_type": "click", "index": 0}, {"action_type": "status", "goal_status": "complete"}],
}

INPUTS: dict[str, tuple[Format, Any]] = {
    "react": (hotpotqa_react.FORMAT, REACT),
    "react from its middle": (hotpotqa_react.FORMAT, REACT[REACT.index("Question: Which  River") :]),
    "android": (android_world.FORMAT, episode(("a", CLICK, True), ("b", DONE, False))),
    "android demonstration": (android_world.FORMAT, DEMONSTRATION),
    "browsergym": (browsergym.FORMAT, WEB),
    "a bare tree": (browsergym.FORMAT, "\t\t[1] link 'a'\n\t\t\tStaticText 'b'\n" * 6),
    "osworld": (osworld.FORMAT, DESKTOP),
    "osworld traj.jsonl": (
        osworld.FORMAT,
        {"step_num": 1, "action_timestamp": "t", "action": "x", "screenshot_file": "step_1.png"},
    ),
    "osworld table": (osworld.FORMAT, TABLE + "frame\tChrome\t\t\t\t(1, 2)\t(3, 4)\n"),
    "alfworld": (alfworld.FORMAT, GAME),
}


def head(value: Any) -> Head:
    if isinstance(value, str):
        return Head("text", None, value[: container.HEAD_CHARACTERS])
    return Head("object", value, json.dumps(value))


def converted(known: Format, record: Any) -> list[Trajectory | Rejected]:
    return list(known.convert(record, ORIGIN))


def only(known: Format, record: Any) -> Trajectory:
    (trajectory,) = converted(known, record)
    assert isinstance(trajectory, Trajectory)
    assert from_dict(to_dict(trajectory)) == trajectory
    assert "SECRET" not in json.dumps(to_dict(trajectory))
    return trajectory


def told(trajectory: Trajectory) -> list[tuple[str, str, str | None]]:
    return [(turn.action, turn.observation, turn.meta.get("context_only")) for turn in trajectory.turns]


# --- Recognising ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INPUTS)
def test_exactly_one_format_of_the_group_takes_an_input(name) -> None:
    wanted, value = INPUTS[name]
    assert [known.name for known in GROUP if known.matches(head(value))] == [wanted.name]


@pytest.mark.parametrize("known", GROUP, ids=lambda known: known.name)
def test_other_files_are_left_alone(known) -> None:
    others: list[Any] = [None, 1, "x", [], {}, {"steps": []}, {"steps": [None]}, {"steps": 1, "observation": 2}]
    others += [{"step_records": None, "goal": 1}, {"step_records": [[]], "goal": 1}, {"step_records": [{"state": 1}]}]
    others += [{"goal": 1, "actions": 2, "observations": []}, {"goal": 1, "actions": 2, "observations": [None]}]
    others += [{"messages": [{"role": "user", "content": "Question: x"}]}, {"steps": [{"action": 1, "observation": 2}]}]
    others += [{"steps": [{"action": "ls", "observation": "a\tb"}]}, {"trajectory": [], "history": []}]
    assert not [
        value for value in others for layout in ("object", "lines", "array") if known.matches(Head(layout, value, ""))
    ]
    texts = ["", "Question: why?\nBecause.\n", "Observation 1: x\n", "## Steps\n\ttag\tname\n", "a\n\t\tb('c')\n" * 20]
    assert not [text for text in texts if known.matches(Head("text", None, text))]


# --- HotpotQA ------------------------------------------------------------------------------------------------------


def test_react_log() -> None:
    listed, wrong, halted = converted(hotpotqa_react.FORMAT, REACT)
    assert isinstance(listed, Rejected) and listed.where == "#1" and "without steps" in listed.reason
    assert told(wrong) == [
        ("Search[Rhine]", "The Rhine is a river.\n\nIt is long.\nObservation 2: is a line of the page.", None),
        ("Lookup[length]", "(Result 1/2) It is 1,230 km long.", None),
        (
            "Think[hard]",
            "Invalid Action. Valid Actions are Lookup[<topic>] Search[<topic>] and Finish[<answer>].",
            hotpotqa_react.INVALID,
        ),
        ("Search[Danube]", "Could not find that page, please try again.", hotpotqa_react.FAILED),
        ("Finish[Rhine]", "Answer is INCORRECT", hotpotqa_react.GRADER),
    ]
    assert told(halted) == [("Search[it]", "Could not find [it]. Similar: ['It (novel)']", None)]
    assert (wrong.id, wrong.domain) == ("hotpotqa-react:logs/a#2", "search")
    assert wrong.split_group == "hotpotqa-react:which river is longer?"
    assert not {"SECRET", "wrong river", "Nile", "King"} & set(
        re.findall("SECRET|wrong river|Nile|King", repr((wrong, halted)))
    )


def test_the_same_question_is_one_group_whatever_follows_it() -> None:
    plain = REACT.replace(" You have attempted to answer following question before and failed. Think.", "")
    groups = {t.split_group for log in (REACT, plain) for t in converted(hotpotqa_react.FORMAT, log)[1:2]}
    assert groups == {"hotpotqa-react:which river is longer?"}


def test_a_react_log_that_is_cut_at_both_ends() -> None:
    excerpt = "it was.\n\n" + REACT[REACT.index("------------- BEGIN INC") : REACT.index(" Similar:")]
    lost, whole, cut = converted(hotpotqa_react.FORMAT, excerpt)
    assert isinstance(lost, Rejected) and "middle of an episode" in lost.reason
    assert len(whole.turns) == 5 and whole.turns[1].meta == {}
    assert told(cut) == [("Search[it]", "Could not find [it].", hotpotqa_react.CUT)]
    # Cut in a thought: the observation before it is whole.
    *_, whole = converted(hotpotqa_react.FORMAT, REACT.partition("Correct answer: King")[0] + "Thought 2: SEC")
    assert whole.turns[-1].meta == {}
    *_, empty = converted(hotpotqa_react.FORMAT, REACT[: REACT.index("Observation 1: Could")])
    assert isinstance(empty, Rejected) and "ends before the first observation" in empty.reason


@pytest.mark.parametrize("missing", ["Action 2: Lookup[length]\n", "Observation 3: Invalid Action. "])
def test_a_react_log_with_a_missing_step_never_shows_thoughts_as_observations(missing) -> None:
    _, gap, whole = converted(hotpotqa_react.FORMAT, REACT.replace(missing, ""))
    assert isinstance(gap, Rejected) and (gap.where, "a part is missing" in gap.reason) == ("#2", True)
    assert isinstance(whole, Trajectory)


def test_a_react_log_without_answer_key_is_not_taken_for_a_cut_one() -> None:
    log = re.sub("(?m)^Correct answer:.*\n", "", REACT)
    assert [told(t)[-1][2] for t in converted(hotpotqa_react.FORMAT, log)[1:]] == [hotpotqa_react.GRADER, None]


# --- AndroidWorld --------------------------------------------------------------------------------------------------


def test_a_screen_is_one_line_an_element() -> None:
    field = element(
        'Ann "A"\nB\u2028',
        content_description="Näme",
        hint_text="First",
        resource_name="p:id/x",
        class_name="E",
        is_clickable=True,
        is_long_clickable=False,
        is_focused=True,
        is_enabled=False,
        is_visible=False,
    )
    assert android_world.render([element(), field]).split("\n") == [
        "[  0] | android.widget.TextView | bounds=[0,10][90,40]",
        '[  1] | E | text="Ann \\"A\\"\\nB\u2028" desc="Näme" hint="First" res="p:id/x" | bounds=[0,10][90,40]'
        " | clickable, focused, disabled, invisible",
    ]
    assert android_world.render([{"bbox_pixels": None}]) == "[  0] | unknown class"


def test_the_observation_is_the_screen_that_the_next_action_is_of() -> None:
    trajectory = only(
        android_world.FORMAT,
        episode(("home", OPEN, True), ("app", CLICK, True), ("end", DONE, False), final=[element("z")]),
    )
    assert told(trajectory) == [
        ('{"action_type": "open_app", "app_name": "Äpp"}', line("app"), None),
        ('{"action_type": "click", "index": 0}', line("end"), None),
    ]
    assert trajectory.system.initial_state == line("home")
    assert (trajectory.id, trajectory.domain) == ("android-world:logs/a", "android")
    assert trajectory.split_group == "android-world:Task"


def test_an_episode_that_stops_without_a_verdict() -> None:
    record = episode(("a", CLICK, True), ("b", CLICK, True), final=[element("settled")])
    assert [o for _, o, _ in told(only(android_world.FORMAT, record))] == [line("b"), line("settled")]
    del record["final_state"]
    assert [o for _, o, _ in told(only(android_world.FORMAT, record))] == [line("b"), line("in motion")]
    record["step_records"][1]["agent_data"] = {}
    assert [o for _, o, _ in told(only(android_world.FORMAT, record))] == [line("b")]


def test_steps_that_the_phone_never_saw() -> None:
    record = episode(
        ("a", CLICK, False), ("a", "Error calling the model", True), ("a", CLICK, True), (None, DONE, False)
    )
    trajectory = only(android_world.FORMAT, record)
    assert told(trajectory) == [
        ('{"action_type": "click", "index": 0}', line("a"), android_world.REFUSED),
        ('{"action_type": "click", "index": 0}', "", android_world.EMPTY),
    ]
    assert trajectory.turns[1].meta["steps_without_action_before"] == 1


def test_a_demonstration() -> None:
    trajectory = only(android_world.FORMAT, DEMONSTRATION)
    shown = '[  0] | V | text="{}" | bounds=[0,1][2,3]'
    assert told(trajectory) == [('{"action_type": "click", "index": 0}', shown.format("b"), None)]
    assert trajectory.system.initial_state == shown.format("a")
    assert trajectory.split_group == "android-world:027626e5b89a77f4"


# --- BrowserGym ----------------------------------------------------------------------------------------------------


def test_a_call_leads_to_the_page_of_the_next_step() -> None:
    trajectory = only(browsergym.FORMAT, WEB)
    # The history has the call as it was run; the model wrote other quotes.
    assert told(trajectory) == [("click('12')", page("B"), None), ("click('All')", page("C", ERROR), None)]
    assert trajectory.system.initial_state == page("A")
    assert trajectory.system.action_space == "click(bid: str)"
    assert trajectory.split_group == 'browsergym:go and order n "bee"'
    assert (trajectory.id, trajectory.domain) == ("browsergym:logs/a", "web")


@pytest.mark.parametrize(
    "wrote,call",
    [
        (answer("fill('12', 'two\nlines')"), "fill('12', 'two\nlines')"),
        ("```\nFirst ```click('1')``` is wrong, so\n\n```python\nclick('2')\n```\n```", "click('2')"),
        ("```click('3')```", "click('3')"),
    ],
)
def test_the_call_is_read_from_nested_fences_where_the_history_lacks_it(wrote, call) -> None:
    assert told(only(browsergym.FORMAT, run(("A", "", wrote), ("B", "", "")))) == [(call, page("B"), None)]


def test_a_run_ends_at_an_answer_without_a_call() -> None:
    log = run(("A", "", answer("click('1')")), ("B", "", "```\nSECRET I give up.\n```"), ("C", "", ""))
    assert told(only(browsergym.FORMAT, log)) == [("click('1')", page("B"), None)]


def test_several_calls_in_one_answer_are_refused_by_the_harness() -> None:
    error = "Error: ValueError: Received a multi-action, only single-actions are allowed."
    log = run(("A", "", answer("click('1')")), ("B", past(("click('1')", error)), ""))
    assert told(only(browsergym.FORMAT, log)) == [("click('1')", page("B", error), browsergym.REFUSED)]


def test_a_run_that_is_cut_at_both_ends() -> None:
    log = WEB[WEB.index("\t[12]") : WEB.rindex(" and ### Next Action in it")]
    lost, trajectory = converted(browsergym.FORMAT, log)
    assert isinstance(lost, Rejected) and "middle of a step" in lost.reason
    (turn,) = trajectory.turns
    assert (turn.action, turn.meta["context_only"]) == ('click("All")', browsergym.CUT)
    assert turn.observation.endswith("\t[12] button 'has ```")
    assert trajectory.system.action_space == browsergym.ACTION_SPACE


# --- OSWorld -------------------------------------------------------------------------------------------------------


def test_desktop_tables() -> None:
    trajectory = only(osworld.FORMAT, DESKTOP)
    assert told(trajectory) == [
        ("pyautogui.click(1, 2)", TABLE + "two", None),
        ('{"action_type": "WAIT"}', TABLE + "three", None),
    ]
    assert trajectory.system.initial_state == TABLE + "one"
    assert trajectory.split_group == f"osworld:{TASK_ID}"
    assert (trajectory.id, trajectory.domain) == ("osworld:logs/a", "os")


def test_a_desktop_without_a_table_is_history_only() -> None:
    record = desktop(("one", "x()"), ("", "y()"), ("three", None))
    record["steps"][1]["observation"] = ""
    assert [o[2] for o in told(only(osworld.FORMAT, record))] == [osworld.EMPTY, None]


# --- Refusals ------------------------------------------------------------------------------------------------------


def without(record: dict, step: int, **fields: Any) -> dict:
    record = json.loads(json.dumps(record))
    record["steps"][step].update(fields)
    return record


BROKEN: list[tuple[Format, Any, str]] = [
    (hotpotqa_react.FORMAT, "nothing", "no episode begins"),
    (hotpotqa_react.FORMAT, [], "this is JSON"),
    (android_world.FORMAT, [], "is a JSON object"),
    (android_world.FORMAT, {}, "neither"),
    (android_world.FORMAT, episode(), "no steps"),
    (android_world.FORMAT, episode(("a", DONE, False)), "only declared the task done"),
    (android_world.FORMAT, {"step_records": [{"state": None}]}, "step 1 has no list of screen elements"),
    (android_world.FORMAT, {"step_records": ["x"]}, "step 1 has no list of screen elements"),
    (
        android_world.FORMAT,
        episode(("a", CLICK, True)) | {"task_name": None, "goal": 1},
        "which episodes are of one task",
    ),
    (android_world.FORMAT, DEMONSTRATION | {"observations": [1]}, "has no list"),
    (android_world.FORMAT, DEMONSTRATION | {"actions": [None]}, 'action 1 has no "action_type"'),
    (android_world.FORMAT, DEMONSTRATION | {"observations": [{"ui_elements": [1]}]}, "element 0"),
    (browsergym.FORMAT, {}, "this is JSON"),
    (browsergym.FORMAT, INPUTS["a bare tree"][1], "holds no turn"),
    (browsergym.FORMAT, run(("A", "", answer("click('1')"))), "single step"),
    (browsergym.FORMAT, WEB.replace("Step001", "Step007"), "not numbered one after the other: [0, 7, 2]"),
    (osworld.FORMAT, TABLE, "holds no turn"),
    (osworld.FORMAT, INPUTS["osworld traj.jsonl"][1], "names a screenshot"),
    (osworld.FORMAT, {"steps": []}, "no steps"),
    (osworld.FORMAT, {"steps": ["x"]}, "step 1 is not an object"),
    (osworld.FORMAT, desktop(("one", "DONE"), ("two", None)), "no action with a table after it"),
    (osworld.FORMAT, without(DESKTOP, 1, observation=None, observation_file="b.txt"), r"by file \(b.txt\)"),
    (osworld.FORMAT, without(DESKTOP, 1, observation="hello"), "step 2: .* is not a table"),
    (osworld.FORMAT, without(DESKTOP, 0, action=None), "step 1 has no action"),
    (osworld.FORMAT, without(DESKTOP, 0, action=[1]), "step 1 is neither"),
    (alfworld.FORMAT, GAME, "ALFWorld .* no turn"),
]


@pytest.mark.parametrize("known,record,reason", BROKEN, ids=[f"{known.name}: {reason}" for known, _, reason in BROKEN])
def test_a_record_that_gives_nothing_says_why(known, record, reason) -> None:
    with pytest.raises(UnusableError, match=reason.replace("[", r"\[") if "[" in reason else reason):
        converted(known, record)


@pytest.mark.parametrize(
    "known,record",
    [
        (hotpotqa_react.FORMAT, "Question: " + " " * 1_000_000 + "\nAction 1: a\nObservation 1: b"),
        (
            hotpotqa_react.FORMAT,
            "Question: q\n" + "".join(f"Action {i}: a\nObservation {i}: b\n" for i in range(1, 20_000)),
        ),
        (hotpotqa_react.FORMAT, "Question: q\nAction 1: a\nObservation 1: b" + "\nObservation 1: x" * 100_000),
        (
            android_world.FORMAT,
            episode(("a", "Action:\n" * 200_000 + "{", True), ("a", CLICK, True), ("b", DONE, False)),
        ),
        (
            android_world.FORMAT,
            episode(("a", "Action: {" + '{"a":' * 100_000, True), ("a", CLICK, True), ("b", DONE, False)),
        ),
        (browsergym.FORMAT, run(("A", "", "```f(" * 200_000 + answer("click('1')")), ("B", "", ""))),
        (browsergym.FORMAT, run(("A\n```\n" * 100_000, "", answer("click('1')")), ("B", "```\n" * 100_000, ""))),
        (osworld.FORMAT, desktop(("\0" * 1_000_000, "x()"), (" " * 1_000_000, None))),
    ],
    ids=range(8),
)
def test_hostile_text_is_read_in_linear_time(known, record) -> None:
    start = time.process_time()
    assert len(converted(known, record)) == 1
    assert time.process_time() - start < 5


# --- Corpora -------------------------------------------------------------------------------------------------------


def corpora() -> Path:
    folder = os.environ.get("AGENTWORLD_CORPORA")
    if not folder:
        pytest.skip("AGENTWORLD_CORPORA is unset: it names the folder of recorded trajectories")
    return Path(folder)


def read(path: Path) -> tuple[list[Trajectory], list[str], Any]:
    """The trajectories of a file, the reasons of what it refuses, and its last record."""
    seen = container.look(path)
    (known,) = [known for known in GROUP if known.matches(seen)]
    kept, refused, value = [], [], None
    for record in container.records(path, seen):
        assert isinstance(record, container.Record)
        value = record.value
        try:
            for item in known.convert(value, Origin(f"{path.parent.name}/{path.name}", record.where)):
                (kept if isinstance(item, Trajectory) else refused).append(item)
        except UnusableError as error:
            refused.append(error)
    assert len({t.id for t in kept}) == len(kept)
    assert all(from_dict(to_dict(t)) == t for t in kept)
    return kept, [getattr(item, "reason", str(item)) for item in refused], value


def source(name: str, pattern: str) -> list[tuple[list[Trajectory], list[str], Any]]:
    paths = [path for path in sorted((corpora() / name).glob(pattern)) if path.name != "SOURCE.md"]
    assert paths
    return [read(path) for path in paths]


def flags(files: list[tuple[list[Trajectory], list[str], Any]]) -> dict[str, int]:
    reasons = [turn.meta.get("context_only", "target") for kept, _, _ in files for t in kept for turn in t.turns]
    return {reason: reasons.count(reason) for reason in set(reasons)}


def assert_absent(trajectories: list[Trajectory], thoughts: list[str]) -> None:
    """None of the thoughts stands in an action or an observation."""
    said = "\0".join(text for t in trajectories for turn in t.turns for text in (turn.action, turn.observation))
    assert thoughts and not [thought for thought in thoughts if thought in said]


def test_corpus_search() -> None:
    files = source("search/reflexion-hotpotqa", "*.txt")
    kept = [t for trajectories, _, _ in files for t in trajectories]
    refused = [reason for _, reasons, _ in files for reason in reasons]
    # SOURCE.md counts 828 trajectories: each "Question:". 102 of them are listed in trials 6 and 7 by their question
    # alone, because their agents had answered it before. Its 2,703 turns are all here: 650 are the grader's verdict.
    assert (len(kept), len(refused), len(set(refused))) == (828 - 102, 102, 1)
    assert flags(files) == {"target": 2028, hotpotqa_react.GRADER: 650, hotpotqa_react.FAILED: 25}
    assert len({t.split_group for t in kept}) == 100
    for trajectories, _, text in files:
        thoughts = re.findall(r"(?m)^Thought \d+: (.*)", text)
        assert_absent(trajectories, [thought for thought in thoughts if len(thought) > 40])
        assert_absent(trajectories, ["Correct answer:", "BEGIN ", "Reflections:"])


def test_corpus_android() -> None:
    files = source("android/android_world_agents", "*.json")
    kept = [t for trajectories, _, _ in files for t in trajectories]
    # SOURCE.md counts 15 files, and as turns their 93 step records and the 8 screens of demo.json. The last step of
    # each file is the agent's own verdict ("status"), which changes no screen and ends it: 93 - 14 and 7 - 1 turns.
    # Three episodes are that verdict alone.
    assert (len(files), len(kept), sum(len(reasons) for _, reasons, _ in files)) == (15, 12, 3)
    assert flags(files) == {"target": (93 - 14) + (7 - 1)}
    assert {t.split_group.partition(":")[2] for t in kept if "demo.json" not in t.id} == {
        "ContactsAddContact",
        "FilesDeleteFile",
        "MarkorMoveNote",
        "SaveCopyOfReceiptTaskEval",
        "SimpleCalendarDeleteEventsOnRelativeDay",
        "SystemBrightnessMin",
    }
    for trajectories, _, record in files:
        for trajectory in trajectories:
            for turn in trajectory.turns:
                assert set(json.loads(turn.action)) <= {"action_type", "index", "text", "direction", "app_name"}
                assert re.fullmatch(r"(\[ *\d+\] \| android[^\n]*\n?)+", turn.observation)
            if "step_records" in record:
                reasons = [step["action"].partition("\nAction:")[0][8:].strip() for step in record["step_records"]]
                assert_absent(
                    trajectories, [*reasons, *[step["agent_data"]["summary"] for step in record["step_records"]]]
                )


def test_corpus_android_actions_index_the_screen_before_them() -> None:
    for trajectories, _, _ in source("android/android_world_agents", "*.json"):
        for trajectory in trajectories:
            screens = [trajectory.system.initial_state, *[turn.observation for turn in trajectory.turns]]
            for turn, before in zip(trajectory.turns, screens, strict=False):
                index = json.loads(turn.action).get("index", 0)
                assert f"\n[{index:3d}] | " in "\n" + before


def test_corpus_web() -> None:
    files = source("web/browsergym-workarena", "*.md")
    kept = [t for trajectories, _, _ in files for t in trajectories]
    # SOURCE.md counts the 236 pages; the first page of each of the 31 runs is its initial state.
    assert (len(kept), [reasons for _, reasons, _ in files if reasons]) == (31, [])
    assert flags(files) == {"target": 236 - 31 - 1, browsergym.REFUSED: 1}
    assert len({t.split_group for t in kept}) == 11
    failed, unseen = 0, []
    for (trajectory,), _, text in files:
        thoughts = re.findall(r"(?s)### Next Action\n\n```\n(.{60})", text)
        assert_absent([trajectory], [*thoughts, "InstanceStep", "PastAction", "No errors reported"])
        assert all(re.fullmatch(r"\w+\(.*\)", turn.action, re.DOTALL) for turn in trajectory.turns)
        assert all("\nAccessibility tree:\nRootWebArea '" in turn.observation for turn in trajectory.turns)
        # An element that a call names stands on the page before it, unless the environment says that it does not:
        # so the pages are not shifted by a step. One call meets an element that the tree leaves out, one was refused.
        before = trajectory.system.initial_state
        for turn in trajectory.turns:
            failed += "\nError of the last action:\nError: " in turn.observation
            bid = re.match(r"(?:click|fill|select_option|focus|press|clear|hover)\('(\w+)'", turn.action)
            if bid and f"[{bid[1]}] " not in before and "Could not find element" not in turn.observation:
                unseen.append(turn.action)
            before = turn.observation
    assert (failed, unseen) == (29, ["click('123')", "click('a286')"])


def test_corpus_os() -> None:
    (run, refused, record), *tables = source("os/osworld-a11y-typesafe", "traj.json") + source(
        "os/osworld-a11y-typesafe", "*.linear.txt"
    )
    assert [turn.action for turn in run[0].turns] == ["pyautogui.click(1888, 142)", "pyautogui.click(1824, 241)"]
    assert (refused, flags([(run, [], None)])) == ([], {"target": 2})
    # The three tables are also files of their own: each alone holds no action.
    texts = [text for _, _, text in tables]
    assert sorted([run[0].system.initial_state, *[turn.observation for turn in run[0].turns]]) == sorted(texts)
    assert all(not kept and "holds no turn" in reasons[0] for kept, reasons, _ in tables)
    assert_absent(run, [step["action_note"] for step in record["steps"] if "action_note" in step])


@pytest.mark.parametrize(
    "name,turns,reasons",
    [
        ("halted_and_invalid_actions.reflexion_hotpotqa_excerpt.txt", [6, 6, 6, 6, 6, 3], ["middle of an episode"]),
        ("data_uri_in_axtree.browsergym_excerpt.txt", [], ["holds no turn"]),
        ("very_long_observation.browsergym_axtree.txt", [], ["holds no turn"]),
        ("single_turn_no_observation.mdlm_alfworld.jsonl", [], ["holds no turn", "holds no turn"]),
    ],
)
def test_corpus_hard(name, turns, reasons) -> None:
    kept, refused, _ = read(corpora() / "hard" / name)
    assert [len(t.turns) for t in kept] == turns
    assert len(refused) == len(reasons) and all(a in b for a, b in zip(reasons, refused, strict=True))
    if kept:
        assert flags([(kept, [], None)]) == {"target": sum(turns) - 1, hotpotqa_react.CUT: 1}


def test_corpus_hard_truncated_episode_is_damage() -> None:
    with pytest.raises(container.DamagedError, match="truncated"):
        container.look(corpora() / "hard" / "truncated_document.android_world.json")
