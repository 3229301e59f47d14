"""Hand-made sessions with split groups, a teacher for them, and a preparation of them."""

import json
import random
from dataclasses import replace
from pathlib import Path

from agentworld.data.prepare import prepare
from agentworld.data.schema import System, Trace, Trajectory, Turn, write_jsonl
from agentworld.data.settings import DataSettings

WORDS = ("alpha", "beta", "gamma", "delta", "中文", "<|im_end|>", "{x}")


def trajectory(index: int, seed: int = 0) -> Trajectory:
    """A session of echo and ls commands; three sessions in a row share a split group."""
    rng = random.Random(f"{seed} {index}")
    turns = []
    for number in range(rng.randint(2, 6)):
        word = rng.choice(WORDS) + rng.choice(WORDS)
        if rng.random() < 0.7:
            command, output = f"echo {word}", f"{word}\n"
        else:
            command, output = f"ls {word}", f"ls: cannot access '{word}': No such file or directory\n"
        action = json.dumps([{"keystrokes": command + "\n", "duration": 0.1}], ensure_ascii=False)
        observation = f"{command}\n{output}u@box:~$ "
        turns.append(Turn(action, observation, {"deterministic": number % 2 == 0, "family": command[:4]}))
    system = System("Simulate a terminal.", "JSON keystrokes.", initial_state=f"user {index}")
    return Trajectory(f"t{index}", "terminal", "test", f"g{index // 3}", system, turns)


def teacher(history, action: str) -> Trace | None:
    """Right on echo, wrong on ls of two like words, silent elsewhere."""
    command = json.loads(action)[0]["keystrokes"].strip()
    name, word = command.split(" ", 1)
    if name == "echo":
        return Trace("echo", f"print {word} after {len(history)} turns", f"{command}\n{word}\nu@box:~$ ")
    return Trace("ls", "guess", "wrong") if "alpha" in word else None


def silent(line: str) -> None:
    pass


def settings_for(source: Path, **changes) -> DataSettings:
    return replace(DataSettings(trajectories=[str(source)], tokenizer_vocab_size=400), **changes)


def prepare_from(source: Path, out: Path, seed: int = 0, **changes) -> dict:
    return prepare(settings_for(source, **changes), seed, out, teacher, None, silent)


def siblings(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith("."))


def write_source(directory: Path) -> Path:
    """120 sessions in `in.jsonl`."""
    path = directory / "in.jsonl"
    write_jsonl(path, (trajectory(i) for i in range(120)))
    return path
