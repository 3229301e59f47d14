"""World-model triples: history, one more action, and what it really did (github.com/MKRWW, tasks/*/triples/*.json).

A record is {domain, history [{action, observation}], action, truth {stdout, stderr, exit_code, cwd, fs_delta}}. The
history keeps standard output only, so the observation of the last turn is `truth.stdout` as well: a command that failed
with a message on standard error has an empty observation throughout, and the action space says so.

One session makes several files, each with the history one turn longer: all have the first action in common, and that
is their split group. The last file holds every turn of the others.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from agentworld.data.formats.format import Format, Head, Origin, UnusableError
from agentworld.data.schema import DOMAINS, System, Trajectory, Turn

SOURCE = "wm-triples"
_TASK = (
    "A bash session in a temporary directory on a Linux machine; it keeps its working directory, variables and files."
)
_ACTIONS = (
    "Each action is one command line. The observation is what it wrote to standard output, without the newlines at its "
    "end; standard error and the exit status are not shown."
)
_START = re.compile(r"/tmp/tmp\.\w{6,}(?=/|$)")  # `mktemp -d`: where each session begins


def matches(head: Head) -> bool:
    record = head.first
    if not isinstance(record, dict) or not {"history", "action", "truth"} <= record.keys():
        return False
    history, truth = record["history"], record["truth"]
    turns = isinstance(history, list) and all(isinstance(t, dict) and "action" in t for t in history[:1])
    return turns and isinstance(truth, dict) and "stdout" in truth


def convert(record: Any, origin: Origin) -> Iterator[Trajectory]:
    if not isinstance(record, dict):
        raise UnusableError(f"a triple is an object; found {type(record).__name__}")
    domain, history, truth = record.get("domain"), record.get("history"), record.get("truth")
    if domain not in DOMAINS:
        raise UnusableError(f"domain is {domain!r}; known: {', '.join(DOMAINS)}")
    if not isinstance(history, list) or not isinstance(truth, dict):
        raise UnusableError("a triple has a list as history and an object as truth")
    pairs = [(t.get("action"), t.get("observation")) if isinstance(t, dict) else (None, None) for t in history]
    pairs.append((record.get("action"), truth.get("stdout")))
    for index, pair in enumerate(pairs):
        if not all(isinstance(text, str) for text in pair):
            raise UnusableError(f"turn {index} has no text as action and observation (stdout)")
    cwd = truth.get("cwd")
    start = _START.match(cwd) if isinstance(cwd, str) else None
    yield Trajectory(
        id=f"{SOURCE}:{origin.file}{origin.where}",
        domain=domain,
        source=SOURCE,
        split_group=f"{SOURCE}:{hashlib.sha256(pairs[0][0].encode('utf-8', 'replace')).hexdigest()[:12]}",
        system=System(_TASK, _ACTIONS, initial_state=f"Working directory: {start[0]}" if start else None),
        turns=[Turn(action, observation) for action, observation in pairs],
    )


FORMAT = Format("wm-triples", "world-model triples: history, action, truth", matches, convert)
