"""Hand-written terminal sessions as test input."""

import json
import random

from agentworld.data.schema import System, Trajectory, Turn

WORDS = ["apple", "river", "stone", "cloud", "lemon", "tiger", "piano", "robot"]


def session(index: int, turns: int = 4) -> Trajectory:
    """A made-up terminal session with silent, echoing and reading commands; equal for equal `index`."""
    draw = random.Random(index)
    prompt = "user@box:~$ "
    stored = draw.choice(WORDS)
    made = [f"echo {draw.choice(WORDS)} {draw.choice(WORDS)}", f"echo {stored} > a.txt", "cat a.txt", "pwd", "echo $?"]
    answers = {
        made[0]: made[0][5:] + "\n",
        made[1]: "",
        made[2]: stored + "\n",
        "pwd": "/home/user\n",
        "echo $?": "0\n",
    }
    return Trajectory(
        id=f"session-{index}",
        domain="terminal",
        source="made-up",
        split_group=f"group-{index}",
        system=System("Predict the terminal.", "JSON keystrokes.", initial_state="Home is /home/user."),
        turns=[
            Turn(
                json.dumps([{"keystrokes": command + "\n", "duration": 0.1}]),
                f"{command}\n{answers[command]}{prompt}",
                {"deterministic": True, "family": command.split()[0]},
            )
            for command in made[:turns]
        ],
    )
