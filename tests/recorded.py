"""The recorded trajectories of AGENTWORLD_CORPORA, as test input."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentworld.data.formats import detect
from agentworld.data.formats.container import DamagedError, look, records
from agentworld.data.formats.format import Origin, Rejected, UnusableError
from agentworld.data.schema import Trajectory

FOLDER = os.environ.get("AGENTWORLD_CORPORA")
needs_corpora = pytest.mark.skipif(not FOLDER, reason="AGENTWORLD_CORPORA is unset: no recorded corpora to read")


def recorded() -> Iterator[Trajectory]:
    """What each file that is not made to be hard gives, before filters; what gives nothing is passed over."""
    assert FOLDER
    for path in sorted(p for p in Path(FOLDER).rglob("*") if p.is_file() and "hard" not in p.parts):
        try:
            head = look(path)
        except DamagedError:
            continue
        known = detect(head)
        if known is None or known.whole:
            continue
        for record in records(path, head):
            if isinstance(record, Rejected):
                continue
            try:
                found = list(known.convert(record.value, Origin(path.name, record.where)))
            except UnusableError:
                continue
            yield from (trajectory for trajectory in found if isinstance(trajectory, Trajectory))
