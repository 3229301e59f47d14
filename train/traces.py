"""The scripted teacher: reasoning traces for terminal turns whose answer the session itself determines.

It takes what a model would see, the history and the action, and never the observation to be predicted. It covers
simple commands of an interactive bash (cd, pwd, echo, variables, files written or read earlier, exit status, silent
commands and some errors) and abstains elsewhere. It follows the session turn by turn and checks itself against each
observation of the history: where it would have been wrong, it forgets what that turn may have changed
(`shell_learning.py`).

    asks: print x. history: x is red fox. form: echo, output, prompt ~/docs.

A thought says what the action asks, what the history says of it, and which form the answer has (arXiv:2606.24597
section 3.3); few and fixed words, because every token counts for a small model. The first turn of a session is answered
as the recorder starts one: in HOME, with its prompt, nothing set.
"""

import copy
from collections.abc import Sequence

from agentworld.data.schema import Trace, Turn
from agentworld.train.shell_commands import run
from agentworld.train.shell_files import NOT_NEEDED, Answer
from agentworld.train.shell_learning import learn
from agentworld.train.shell_session import Session, Unsure
from agentworld.train.shell_syntax import Command, keystrokes, parse


def scripted_teacher(history: Sequence[Turn], action: str) -> Trace | None:
    """Think about one turn and predict its observation.

    Args:
        history: the turns before this one, from the start of the session.
        action: Terminus JSON, `[{"keystrokes": "...\\n", "duration": 0.1}]`.

    Returns:
        The trace with the whole predicted observation (echo, output, prompt), or None where the teacher abstains.
    """
    typed = keystrokes(action)
    commands = None if typed is None else parse(typed)
    session = None if commands is None else _follow(history)
    answers = None if session is None else _run_line(session, commands)
    if answers is None:
        return None
    output = "".join(answer.output for answer in answers)
    return Trace(_family(answers), _thought(session, answers, output), f"{typed}\n{output}{session.prompt}")


def _follow(history: Sequence[Turn]) -> Session | None:
    """The session after its history; None where the last turn left no prompt, so that a program may still read."""
    session = Session()
    if history:
        session.adopt_prompt(history[0].observation)
    at_prompt = True
    for turn in history:
        typed = keystrokes(turn.action)
        seen = None if typed is None else session.split(typed, turn.observation)
        at_prompt = seen is not None
        foreseen = copy.deepcopy(session)
        commands = None if seen is None else parse(typed)
        answers = None if commands is None else _run_line(foreseen, commands)
        if answers is not None and ("".join(answer.output for answer in answers), foreseen.prompt) == seen:
            session = foreseen
        else:
            learn(session, typed, seen)
    return session if at_prompt else None


def _run_line(session: Session, commands: Sequence[Command]) -> list[Answer] | None:
    """Run the commands of a line on the session: the answers of those that `;`, `&&` and `||` let run.

    None where the history does not determine what one of them does; the session may then be half changed.
    """
    answers: list[Answer] = []
    for command in commands:
        if (command.connector == "&&" and session.status != 0) or (command.connector == "||" and session.status == 0):
            continue
        try:
            answers.append(run(session, command))
        except Unsure:
            return None
        session.status = answers[-1].status
    return answers


def _family(answers: Sequence[Answer]) -> str:
    """The family of a line: an error if anything in it fails with a message, else that of its first command."""
    return "error" if any(answer.family == "error" for answer in answers) else answers[0].family


def _thought(session: Session, answers: Sequence[Answer], output: str) -> str:
    """What the line asks, what is known of it, and the form of its answer; paths below HOME as `~/...`."""
    asks = ", ".join(answer.asks for answer in answers)
    knows = ", ".join(answer.knows for answer in answers if answer.knows != NOT_NEEDED) or NOT_NEEDED
    shown = "error, " if _family(answers) == "error" else "output, " if output else ""
    content = f"asks: {asks}. history: {knows}".replace(f"{session.home}/", "~/")
    return f"{content}. form: echo, {shown}prompt {session.folder}."
