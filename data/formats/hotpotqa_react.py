"""Plain-text ReAct logs of HotpotQA questions, as Reflexion writes them: one trajectory a question.

A question is followed by numbered Thought, Action and Observation lines; blocks of correct, incorrect and halted
agents, and several trials of the same questions, stand in one file (noahshinn/reflexion hotpotqa_runs/).
"""

import re
from collections.abc import Iterator

from agentworld.data.formats.format import Format, Head, Origin, Rejected, UnusableError
from agentworld.data.schema import System, Trajectory, Turn

SOURCE = "hotpotqa-react"
TASK = (
    "Search in an encyclopedia. The environment holds the articles of the English Wikipedia, answers one query at a "
    "time and remembers the article that it opened last."
)
ACTION_SPACE = """\
Search[title]: opens the article with this title and answers its opening paragraphs. Without such an article it \
answers "Could not find [title]. Similar: [...]" with at most ten titles.
Lookup[text]: the next passage of the open article that holds the text, after "(Result i/n)"; "No Results" where no \
passage holds it, "No More Results" after the last one.
Finish[answer]: ends the session."""

GRADER = "verdict of the grader"
INVALID = "format-error reply of the harness"
FAILED = "reply of the harness after the search raised an error"
CUT = "the log ends inside this observation"

_QUESTION = re.compile(r"^Question:[ ]?", re.MULTILINE)
_STEP = re.compile(r"^Action \d+:[^\n]*\b(?:Search|Lookup|Finish)\[", re.MULTILINE)
_LABEL = re.compile(r"^(Thought|Action|Observation) (\d{1,6}):[ ]?", re.MULTILINE)
_AGENTS = re.compile(r"^-{3,} ?BEGIN (?:CORRECT|INCORRECT|HALTED) AGENTS ?-{3,}", re.MULTILINE)
_ANSWER = re.compile(r"^Correct answer:", re.MULTILINE)
_HEADER = re.compile(r"#{5,}|-{3,} ?BEGIN |BEGIN TRIAL |Trial summary:")
# What ends an episode: the answer key, or the header of the next block or trial.
_FOOTER = re.compile(rf"^(?:Correct answer:|\(END PREVIOUS TRIAL\)|{_HEADER.pattern})", re.MULTILINE)
# Later trials repeat the question with this sentence and the agent's reflections.
_RETRY = re.compile(r"You have attempted to answer (?:the )?following question before and failed.*", re.DOTALL)


def matches(head: Head) -> bool:
    if head.layout != "text" or not _QUESTION.search(head.text):
        return False
    return bool(_AGENTS.search(head.text) or _STEP.search(head.text))


def convert(record: str, origin: Origin) -> Iterator[Trajectory | Rejected]:
    """Raises UnusableError for a log without a single question."""
    if not isinstance(record, str):
        raise UnusableError("a ReAct log is a text, this is JSON")
    starts = [match.start() for match in _QUESTION.finditer(record)]
    if not starts:
        raise UnusableError('no line begins with "Question:", so no episode begins in this log')
    before = record[: starts[0]].splitlines()
    if any(line.strip() and not _HEADER.match(line) for line in before):
        yield Rejected(
            origin.where, "the log begins in the middle of an episode; what stands before its first question is lost"
        )
    blocks = [record[a:b] for a, b in zip(starts, [*starts[1:], len(record)], strict=True)]
    answered = [bool(_ANSWER.search(block)) for block in blocks]
    for number, block in enumerate(blocks, start=1):
        last = number == len(blocks)
        # A whole episode ends with a newline and, in the logs that print the answer key, with the key.
        cut = last and (not block.endswith("\n") or (any(answered[:-1]) and not answered[-1]))
        yield _episode(block, f"{origin.where}#{number}", origin, cut)


def _episode(block: str, where: str, origin: Origin, cut: bool) -> Trajectory | Rejected:
    footer = _FOOTER.search(block)
    body = block[: footer.start()] if footer else block
    turns = _turns(body)
    if any(label[1] == "Action" and int(label[2]) > len(turns) + 1 for label in _LABEL.finditer(body)):
        return Rejected(where, "the steps of this question are not numbered one after the other: a part is missing")
    if not turns:
        if cut:
            return Rejected(where, "the log ends before the first observation of this question")
        return Rejected(
            where, "a question without steps (agents that had answered it in an earlier trial are only listed)"
        )
    inside = cut and not footer and body.rstrip("\r\n").endswith(turns[-1].observation)
    if inside and "context_only" not in turns[-1].meta:
        turns[-1].meta["context_only"] = CUT
    question = _RETRY.sub("", _QUESTION.sub("", body, count=1).split("\n", 1)[0])
    return Trajectory(
        id=f"{SOURCE}:{origin.file}{where}",
        domain="search",
        source=SOURCE,
        split_group=f"{SOURCE}:{' '.join(question.split()).casefold()}",
        system=System(task_description=TASK, action_space=ACTION_SPACE),
        turns=turns,
    )


def _turns(body: str) -> list[Turn]:
    """Labels count in their order only, so that a page that itself shows an "Observation 2:" does not end a step."""
    turns: list[Turn] = []
    number, action, observation = 1, None, None
    for label in _LABEL.finditer(body):
        if observation and label[1] != "Observation" and label[2] == str(number + 1):
            turns.append(_turn(body, action, observation, label.start()))
            number, action, observation = number + 1, None, None
        if label[2] != str(number):
            continue
        if label[1] == "Action" and not action:
            action = label
        elif label[1] == "Observation" and action and not observation:
            observation = label
    if observation:
        turns.append(_turn(body, action, observation, len(body)))
    return turns


def _turn(body: str, did: re.Match[str], saw: re.Match[str], end: int) -> Turn:
    action, observation = body[did.end() : saw.start()].strip(), body[saw.end() : end].rstrip("\r\n")
    reason = None
    if action.startswith("Finish["):
        reason = GRADER
    elif observation.startswith("Invalid Action."):
        reason = INVALID
    elif observation.startswith("Could not find that page, please try again"):
        reason = FAILED
    return Turn(action, observation, {"context_only": reason} if reason else {})


FORMAT = Format(SOURCE, "text logs of Reflexion on HotpotQA: numbered Thought, Action, Observation", matches, convert)
