"""AgentWorldBench rows: evaluation data, one row for each judged turn of a trajectory.

A row holds the turns 1 to turn_idx and gives one trajectory. Only its last turn is judged, so the others are context;
rows of one trajectory share `split_group`. (The Android rows use some ids for two trajectories: those share one too.)

`system_str` describes the environment to the world model, tools included, and becomes the task description. Headings
("### Turn k", "**Action:**", "**Environment Observation:**"), the fence around an action and the instruction at the end
of the last prompt are the wrapping of the benchmark and go. "Current State" of the first turn is the initial state.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.formats.tool_calls import action
from agentworld.data.schema import DOMAINS, System, Trajectory, Turn

SOURCE = "agentworldbench"
HISTORY = "history of an evaluation row, which judges its last turn"
ACTION_SPACE = "The actions that the description above names, in the form that it gives."
OBSERVATION = "**Environment Observation:**"

_HEADING = re.compile(r"\s*### Turn \d+[^\n]*\n")
_STATE = re.compile(r"\s*\*\*Current State:\*\*\n(.*?)\n*(?=\*\*Action:\*\*)", re.DOTALL)
_ACTION = re.compile(r"\s*\*\*Action:\*\*[ \t]*\n?")
_FENCED = re.compile(r"\s*```(\w*)\n(.*?)\n?```\s*", re.DOTALL)
_INSTRUCTION = "\n\nPlease analyze the input above and predict"


def matches(head: Head) -> bool:
    first = head.first
    if not isinstance(first, dict):
        return False
    lists = isinstance(first.get("prompt"), list) and isinstance(first.get("response"), list)
    return lists and {"task", "turn_idx", "system_str"} <= first.keys()


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    prompts, responses, task = _checked(record)
    bare = [*prompts[:-1], _without_instruction(prompts[-1], record.get("current_prompt"))]
    turns: list[Turn] = []
    initial_state = None
    for prompt, response in zip(bare, responses, strict=True):
        state, act = _split(prompt)
        if not turns:
            initial_state = state
        elif state is not None and state.strip() != turns[-1].observation.strip():
            act = f"**Current State:**\n{state}\n\n**Action:**\n{act}"  # the environment moved on by itself
        meta = {"context_only": HISTORY} if len(turns) + 1 < len(bare) else {}
        turns.append(Turn(act, response.removeprefix(OBSERVATION).removeprefix("\n"), meta))
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain=task,
        source=SOURCE,
        split_group=f"{SOURCE}:{task}:{record.get('id')}",
        system=System(record["system_str"], ACTION_SPACE, initial_state=initial_state),
        turns=turns,
    )


def _checked(record: Any) -> tuple[list[str], list[str], str]:
    """Prompts, responses and domain of a row."""
    if not isinstance(record, dict) or not isinstance(record.get("system_str"), str):
        raise UnusableError("not a row of AgentWorldBench: there is no system_str")
    prompts, responses, task = record.get("prompt"), record.get("response"), record.get("task")
    for name, texts in (("prompt", prompts), ("response", responses)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UnusableError(f"{name} is not a list of texts")
    if task not in DOMAINS:
        raise UnusableError(f"task {task!r} is none of the domains {', '.join(DOMAINS)}")
    if not prompts or len(prompts) != len(responses):
        raise UnusableError(f"{len(prompts)} prompts and {len(responses)} responses: a turn without its answer")
    if record.get("turn_idx") != len(prompts):
        raise UnusableError(f"turn_idx is {record.get('turn_idx')!r}, but there are {len(prompts)} turns")
    if record.get("id") in (None, ""):
        raise UnusableError("there is no id of the trajectory, by which splits keep its rows together")
    return prompts, responses, task


def _without_instruction(prompt: str, current: Any) -> str:
    """The last prompt without the order to predict; `current_prompt` is that text where the row has it."""
    if isinstance(current, str) and current and prompt.startswith(current):
        return current
    return prompt.rpartition(_INSTRUCTION)[0] or prompt


def _split(prompt: str) -> tuple[str | None, str]:
    """State (None: not given) and action of one prompt."""
    text = prompt[match.end() :] if (match := _HEADING.match(prompt)) else prompt
    state = _STATE.match(text)
    text = text[state.end() :] if state else text
    text = text[match.end() :] if (match := _ACTION.match(text)) else text
    fenced = _FENCED.fullmatch(text)
    return (state[1] if state else None), (_compact(fenced[2], fenced[1]) if fenced else text)


def _compact(body: str, language: str) -> str:
    """JSON on one line, a call in the form of all calls; code as it stands."""
    if language.lower() != "json":
        return body
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if isinstance(value, dict) and value.keys() == {"name", "arguments"}:
        return action(value["name"], value["arguments"])
    return json.dumps(value, ensure_ascii=False)


FORMAT = Format("agentworldbench", "rows of AgentWorldBench, for evaluation", matches, convert)
