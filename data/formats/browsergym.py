"""BrowserGym runs written as Markdown (experiment_analysis.md of ServiceNow/BrowserGym, WorkArena tasks).

Each "## InstanceStepNNN" holds the open tabs, the accessibility tree of the page, the past actions with their outcome,
and the model's answer with the next call. What a call leads to is the page of the next step.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "browsergym"
TASK = (
    "A web browser, driven through BrowserGym. After each call the environment answers the open tabs, the error of the "
    "call where it failed, and the accessibility tree of the active page, in which [id] marks an element that a call "
    "can name."
)
ACTION_SPACE = """\
One call: click(bid), dblclick(bid), hover(bid), focus(bid), fill(bid, text), clear(bid), press(bid, keys), \
select_option(bid, options), drag_and_drop(bid, bid), upload_file(bid, file), scroll(dx, dy), goto(url), go_back(), \
go_forward(), new_tab(), tab_close(), tab_focus(index), noop(wait_ms), send_msg_to_user(text), \
report_infeasible(reason)."""

REFUSED = "format-error reply of the harness"
CUT = "the file ends inside this page"

_STEP = re.compile(r"^## +InstanceStep(\d+)[ \t]*$", re.MULTILINE)
_TREE = "#### Current Page Accessibility Tree"
_TREE_LINE = re.compile(r"^\t+(?:\[\w+\] )?[A-Za-z]+ '", re.MULTILINE)
_PAST = re.compile(r"^#### PastAction(\d+)[ \t]*$", re.MULTILINE)
_GOAL = re.compile(r"^\* \*\*[\w ]*Goal\*\*:[ ]*\n?(.*?)(?=\n#|\n\* \*\*|\Z)", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"(?:\w+[ \t]*\n)?\s*(\w+\(.*\))\s*", re.DOTALL)
_NO_ERROR = "No errors reported"


@dataclass(frozen=True)
class Past:
    """What the environment ran, in the words it normalised it to, and what it says of it."""

    call: str
    error: str


@dataclass(frozen=True)
class Step:
    tabs: str
    tree: str
    complete: bool
    past: dict[int, Past]
    call: str


def matches(head: Head) -> bool:
    if head.layout != "text":
        return False
    return bool(_STEP.search(head.text) and _TREE in head.text) or _is_bare_tree(head.text)


def convert(record: str, origin: Origin) -> Iterator[Trajectory | Rejected]:
    """Raises UnusableError for a tree without steps, and where no call is followed by a page."""
    if not isinstance(record, str):
        raise UnusableError("a BrowserGym run is a Markdown text, this is JSON")
    heads = list(_STEP.finditer(record))
    if not heads:
        raise UnusableError(
            "a piece of an accessibility tree without a single action, so it holds no turn; "
            'the steps of a BrowserGym run begin with "## InstanceStep000"'
        )
    preamble, rest = record[: heads[0].start()], re.split(r"^# \d+ - Templates", record, maxsplit=1, flags=re.MULTILINE)
    ends = [*(head.start() for head in heads[1:]), len(rest[0])]
    steps = [_step(record[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    numbers = [int(head[1]) for head in heads]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise UnusableError(f"the steps are not numbered one after the other: {numbers}")
    turns = _turns(numbers, steps)
    if "### Next Action" in preamble or _TREE_LINE.search(preamble):
        yield Rejected(origin.where, "the file begins in the middle of a step; what stands before the next one is lost")
    if not turns:
        raise UnusableError("no call is followed by a page: the run has a single step, or its first step has no call")
    goal = _GOAL.search(preamble)
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain="web",
        source=SOURCE,
        split_group=f"{SOURCE}:{_task(goal[1]) if goal else origin.file + origin.where}",
        system=System(
            task_description=TASK,
            action_space=_action_space(rest[1]) if len(rest) == 2 else ACTION_SPACE,
            initial_state=_observation(steps[0], ""),
        ),
        turns=turns,
    )


def _is_bare_tree(text: str) -> bool:
    """Many lines, and most of them those of a tree."""
    lines = text.count("\n")
    return lines >= 10 and len(_TREE_LINE.findall(text)) >= 0.8 * lines


def _turns(numbers: list[int], steps: list[Step]) -> list[Turn]:
    """The call is the one that the next step's history says was run; the model's own words are used where the history
    lacks it. A step without either ends the run."""
    turns: list[Turn] = []
    for number, step, after in zip(numbers, steps, steps[1:], strict=False):
        past = after.past.get(number) or Past("", "")
        call = past.call or step.call
        if not call or not (after.tree or after.complete):
            break
        turn = Turn(call, _observation(after, past.error))
        if not after.complete:
            turn.meta["context_only"] = CUT
        elif "only single-actions are allowed" in past.error:
            turn.meta["context_only"] = REFUSED
        turns.append(turn)
    return turns


def _observation(step: Step, error: str) -> str:
    parts = [("Open tabs", step.tabs), ("Error of the last action", error), ("Accessibility tree", step.tree)]
    return "\n\n".join(f"{title}:\n{text}" for title, text in parts if text)


def _step(text: str) -> Step:
    state, _, history = text.partition("\n### History of Past Actions")
    before, _, after = state.partition(_TREE)
    history, _, answer = history.partition("\n### Next Action")
    tabs = before.partition("#### Currently Open Tabs")[2].strip("\n")
    fence = re.match(r"\s*```[^\n]*\n(.*?)(\n```[ \t]*\n*\Z|\Z)", after, re.DOTALL)
    tree = fence[1] if fence else ""
    past = {}
    heads = list(_PAST.finditer(history))
    for head, end in zip(heads, [*(h.start() for h in heads[1:]), len(history)], strict=False):
        past[int(head[1])] = _past(history[head.end() : end])
    return Step(tabs, tree, bool(fence and fence[2]), past, _call(answer))


def _past(text: str) -> Past:
    called, _, outcome = text.partition("##### Outcome including errors")
    call = re.search(r"##### Selected Action in the BrowserGym format\s*```[^\n]*\n(.*?)\n```", called, re.DOTALL)
    error = outcome.strip("\n").rstrip()
    return Past(call[1].strip() if call else "", "" if error == _NO_ERROR else error)


def _call(answer: str) -> str:
    """The last call between two fences of a model's answer; the answer stands in a fence itself, and the reasoning
    before the call is left."""
    for piece in reversed(answer.split("```")[1:-1]):
        call = _CALL.fullmatch(piece)
        if call:
            return call[1]
    return ""


def _task(goal: str) -> str:
    """A goal without its amounts and its configuration: runs of one task template share their pages."""
    return re.sub(r"\d+", "N", " ".join(goal.split()).partition(" with configuration ")[0]).casefold()


def _action_space(templates: str) -> str:
    """The description of the calls that the run's own file gives."""
    found = re.search(r"^## Action Space - Template\s*```\n(.*?)\n```", templates, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found and found[1].strip() else ACTION_SPACE


FORMAT = Format(SOURCE, "BrowserGym runs as Markdown: InstanceStep, accessibility tree, next action", matches, convert)
