"""Verifiers of a terminal: output, exit status, kind of error, working directory."""

from agentworld.rewards.shell_text import error_classes, exit_status, screen, true_screen
from agentworld.rewards.verdicts import Item, Verdict, compared


def output(item: Item) -> Verdict | None:
    """What the command printed, apart from echo and prompt, on deterministic turns, after normalisation."""
    if item.deterministic is not True:
        return None
    truth, found = true_screen(item.reference, item.action), screen(item.prediction, item.action)
    # An answer keeps what it has of echo and prompt only where the truth has them, so that neither is invented.
    body = found.body if truth.echo or not found.echo else "\n".join(filter(None, (found.echo, found.body)))
    if truth.prompt is None and found.prompt is not None:
        body += "\n" + found.prompt
    return compared("output", "output", body, truth.body)


def status(item: Item) -> Verdict | None:
    """The exit status, where the truth shows one."""
    expected = exit_status(item.reference, item.action)
    if expected is None:
        return None
    return compared("exit_status", "exit status", exit_status(item.prediction, item.action), expected)


def error_class(item: Item) -> Verdict | None:
    """The kinds of error: where the truth names one, and on deterministic turns also where it names none."""
    expected = error_classes(item.reference)
    if not expected and item.deterministic is not True:
        return None
    found = error_classes(item.prediction)
    return compared("error_class", "errors", sorted(found), sorted(expected))


def directory(item: Item) -> Verdict | None:
    """The working directory of the prompt, where the truth ends in a prompt that shows one; on turns that are not
    deterministic only where it changes, since what stays is too easy to say."""
    expected = true_screen(item.reference, item.action).directory
    if expected is None:
        return None
    if item.deterministic is not True and screen(item.context.last or "", "").directory in (None, expected):
        return None
    return compared("directory", "working directory", screen(item.prediction, item.action).directory, expected)


VERIFIERS = (output, status, error_class, directory)
