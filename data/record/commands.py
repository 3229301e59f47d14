"""The seeded generator: which command families exist, how often each comes up, and the commands of one session.

Commands follow from (seed, index, mix) and the programs that the sessions have, and from nothing else: not from the
number of workers, and not from what the shell answered.
"""

import hashlib
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from agentworld.data.record import commands_files as files
from agentworld.data.record import commands_programs as programs
from agentworld.data.record import commands_shell as shell
from agentworld.data.record import commands_text as text
from agentworld.data.record.world import DIRS, FILES, World

Family = Callable[[World], str | None]

FAMILIES: dict[str, Family] = {
    "echo": files.echo, "write": files.write, "append": files.append, "cat": files.cat, "cd": files.cd,
    "pwd": files.pwd, "ls": files.ls, "mkdir": files.mkdir, "rm": files.rm, "mv": files.mv, "cp": files.cp,
    "link": files.link, "chmod": files.chmod, "status": files.status, "error": files.error, "test": files.test,
    "find": files.find,
    "wc": text.wc, "grep": text.grep, "sed": text.sed, "awk": text.awk, "sort": text.sort, "cut": text.cut,
    "pipe": text.pipe, "head": text.head, "tr": text.tr, "tee": text.tee, "seq": text.seq, "xargs": text.xargs,
    "diff": text.diff, "heredoc": text.heredoc, "redirect": text.redirect,
    "variable": shell.variable, "arith": shell.arith, "loop": shell.loop, "function": shell.function,
    "case": shell.case, "if": shell.branch, "subst": shell.subst, "brace": shell.brace, "glob": shell.glob,
    "array": shell.array, "string": shell.string, "quote": shell.quote, "chain": shell.chain, "job": shell.job,
    "date": shell.date, "pid": shell.pid,
    "python": programs.python, "script": programs.script, "git": programs.git,
}  # fmt: skip

# Weights of a draw; a family that does not apply to the state of the session is drawn again, so shares differ a little.
LIGHT: dict[str, float] = {
    "echo": 10, "write": 12, "append": 6, "cat": 12, "cd": 10, "pwd": 6, "ls": 6, "mkdir": 5, "rm": 4, "mv": 2,
    "cp": 2, "wc": 3, "grep": 4, "variable": 10, "status": 8, "error": 6, "arith": 3, "loop": 2, "sed": 0.7,
    "awk": 0.7, "sort": 0.7, "cut": 0.7, "pipe": 0.7, "function": 1, "test": 1, "date": 1, "pid": 1,
}  # fmt: skip
FULL: dict[str, float] = {
    "echo": 6, "write": 9, "append": 4, "cat": 9, "cd": 6, "pwd": 3, "ls": 5, "mkdir": 4, "rm": 3, "mv": 2, "cp": 2,
    "link": 0.7, "chmod": 1, "wc": 3, "grep": 4, "variable": 6, "status": 4, "error": 5, "arith": 3, "loop": 3,
    "sed": 3, "awk": 3, "sort": 3, "cut": 2, "pipe": 3, "head": 1.5, "tr": 1, "tee": 1, "seq": 1, "xargs": 1,
    "diff": 1.5, "heredoc": 2, "redirect": 2, "find": 1, "function": 2.5, "test": 2, "case": 1, "if": 1.5,
    "subst": 1.5, "brace": 1, "glob": 1.5, "array": 1, "string": 1.5, "quote": 1, "chain": 1.5, "job": 0.7,
    "date": 1, "pid": 1.5, "python": 8.5, "script": 9, "git": 5,
}  # fmt: skip
MIXES = {"light": LIGHT, "full": FULL}
NEEDS = {"python": "python3", "git": "git"}  # families that are left out where the program is missing
_READERS = ("cat", "append", "rm", "mv", "cp", "wc", "grep", "sed", "awk", "sort", "head", "diff", "link", "chmod")
GIT_SESSIONS, GIT_URGE = 0.1, 30.0
INITIAL_FILES_SHARE = 0.25  # sessions that start with files


@dataclass(frozen=True)
class Command:
    family: str
    keystrokes: str  # without the last newline


@dataclass(frozen=True)
class Plan:
    """The commands of one session and the files that are there before it starts (name -> lines, in creation order)."""

    commands: list[Command]
    initial_files: dict[str, list[str]]

    @property
    def digest(self) -> str:
        """Equal for two sessions that type the same into the same start."""
        parts = [repr(sorted(self.initial_files.items())), *(command.keystrokes for command in self.commands)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def weights(mix: str, programs_found: Collection[str]) -> dict[str, float]:
    """The families of a mix that the found programs can serve."""
    return {name: weight for name, weight in MIXES[mix].items() if NEEDS.get(name, "") in ("", *programs_found)}


def plan(seed: int, index: int, mix: str, turns: tuple[int, int], programs_found: Collection[str]) -> Plan:
    """The session number `index` of a recording: its length is uniform in `turns` (both ends included)."""
    digest = hashlib.sha256(f"{seed}:{index}:{mix}".encode()).digest()
    world = World(random.Random(int.from_bytes(digest[:8], "big")))
    rng = world.rng
    initial = {}
    if world.chance(INITIAL_FILES_SHARE):
        for name in rng.sample(FILES, rng.randint(1, 3)):
            initial[name] = [world.words(1, 2) for _ in range(rng.randint(1, 2))]
            world.set_file((name,), initial[name])
        if world.chance(0.3):
            folder = rng.choice(DIRS)
            world.folders.add((folder,))
            initial[folder + "/"] = []
    chances = dict(weights(mix, programs_found))
    if "git" in chances:  # a repository takes many steps: few sessions have much of it, the others a try at most
        chances["git"] *= GIT_URGE if world.chance(GIT_SESSIONS) else 0.05
    commands = [_draw(world, chances, programs_found) for _ in range(rng.randint(*turns))]
    return Plan(commands, initial)


def _draw(world: World, chances: dict[str, float], programs_found: Collection[str]) -> Command:
    failed, world.failed = world.failed, False
    if failed and world.chance(0.3):
        return Command("status", "echo $?")
    names = list(chances)
    factors = [chances[name] * _urge(world, name) for name in names]
    while True:
        name = world.rng.choices(names, factors)[0]
        if name == "script":
            keystrokes = programs.script(world, with_python="python3" in programs_found)
        else:
            keystrokes = FAMILIES[name](world)
        if keystrokes is not None:
            return Command(name, keystrokes)
        world.failed = False


def _urge(world: World, family: str) -> float:
    """More weight for families that need something made earlier, once it is there: sessions are short."""
    if family in _READERS and world.files:
        return 2.0
    if family == "cd" and (world.here != () or len(world.folders) > 1):
        return 2.5
    return 1.5 if family == "write" and not world.files else 1.0
