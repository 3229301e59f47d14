"""A model that writes verifiers, for `judge_server(answer=propose)`: what it writes is named by the initial state."""

import json
from typing import Any

from agentworld.data.schema import System, Trajectory, Turn

PROMPT = "user@box:~$ "
GOOD = """
import re

def verify(prediction: str) -> bool:
    lines = prediction.split("\\n")
    return len(lines) == 3 and lines[1] == {fact!r}
"""
PROGRAMS = {
    "good": GOOD,
    "fooled": "def verify(prediction):\n    return {fact!r} in prediction and '>' not in prediction\n",
    "always yes": "def verify(prediction):\n    return True\n",
    "always no": "def verify(prediction):\n    return False\n",
    "crashes": "def verify(prediction):\n    return json.loads(prediction)['x'] == 1\n",
    "crashes on the empty": "def verify(prediction):\n    return prediction.splitlines()[1] == {fact!r}\n",
    "loose": "def verify(prediction):\n    return len(prediction) > 4\n",
    "kills": "import os\ndef verify(prediction):\n    os.kill(os.getppid(), 9)\n    os.kill(1, 9)\n    return True\n",
    "hangs": "def verify(prediction):\n    while True: pass\n",
    "reads": "def verify(prediction):\n    return bool(open('/etc/hostname').read())\n",
    "invents": GOOD,
    "declines": "",
}


def trajectory(kind: str, word: str) -> Trajectory:
    """A session that stores a word, reads it again, and asks for the time."""
    commands = [
        (f"echo {word} > a.txt", "", None),
        ("cat a.txt", f"{word}\n", True),
        ("date +%s", "1790000000\n", False),
    ]
    return Trajectory(
        id=f"{kind} {word}",
        domain="terminal",
        source="made-up",
        split_group=kind,
        system=System("A terminal.", "JSON keystrokes.", initial_state=f"kind: {kind}"),
        turns=[
            Turn(
                json.dumps([{"keystrokes": command + "\n", "duration": 0.1}]),
                f"{command}\n{output}{PROMPT}",
                {} if known is None else {"deterministic": known},
            )
            for command, output, known in commands
        ],
    )


def propose(user: str) -> str:
    """The answer to either question."""
    material = json.loads(user)
    kind = material["world"]["initial_state"].removeprefix("kind: ")
    if kind == "talks":
        return "I would rather check that by hand."
    return _code(kind, material) if "truth" in material else _turns(kind, material["turns"])


def _turns(kind: str, turns: list[dict[str, Any]]) -> str:
    eligible = [turn["turn"] for turn in turns if turn["eligible"]]
    assert eligible == [0, 1], "the third turn is known to depend on the clock"
    chosen = {"nothing to see": [], "chooses the clock": [2]}.get(kind, [1])
    found = {
        "initial_state": "An empty home.",
        "constraints": ["a.txt holds one word."],
        "turns": [{"turn": number, "axis": "long_context", "why": "reads a.txt"} for number in chosen],
    }
    return f"<think>```json\n{{}}\n```</think>So:\n```json\n{json.dumps(found)}\n```"


def _code(kind: str, material: dict[str, Any]) -> str:
    assert material["constraints"] == ["a.txt holds one word."] and material["axis"] == "long_context"
    assert len(material["turns_before"]) == 1
    fact = material["truth"].split("\n")[1]
    facts = {"invents": ["no such word"], "declines": []}.get(kind, [fact])
    program = PROGRAMS[kind].format(fact=fact)
    return f"```json\n{json.dumps({'facts': facts})}\n```\nand\n```python\n{program}```\n"
