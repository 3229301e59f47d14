"""The scripted teacher: each family on sessions written by hand, when it abstains, and its precision on a recording."""

import dataclasses
import inspect
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentworld.data.record.terminal import record
from agentworld.data.schema import Trajectory, Turn, read_jsonl
from agentworld.data.settings import RecordSettings
from agentworld.train.traces import scripted_teacher

HOME = "user@box:~$ "


def typed(keystrokes: str) -> str:
    return json.dumps([{"keystrokes": keystrokes + "\n", "duration": 0.1}])


def session(*steps: tuple[str, str] | tuple[str, str, str]) -> list[Turn]:
    """(command, output) or (command, output, prompt) -> turns; the prompt stays as it was."""
    turns, prompt = [], HOME
    for command, output, *new in steps:
        prompt = new[0] if new else prompt
        turns.append(Turn(typed(command), f"{command}\n{output}{prompt}"))
    return turns


def predict(history: Sequence[Turn], command: str) -> str | None:
    trace = scripted_teacher(history, typed(command))
    return None if trace is None else trace.prediction


COVERED = {
    "pwd": ([], "pwd", "/home/user\n", HOME),
    "cd into a made folder": ([("mkdir docs", "")], "cd docs", "", "user@box:~/docs$ "),
    "cd up": ([("mkdir -p a/b", ""), ("cd a/b", "", "user@box:~/a/b$ ")], "cd ..", "", "user@box:~/a$ "),
    "cd home": ([("cd /tmp", "", "user@box:/tmp$ ")], "cd", "", HOME),
    "cd back": ([("cd /tmp", "", "user@box:/tmp$ ")], "cd -", "/home/user\n", HOME),
    "cd outside": ([], "cd /tmp", "", "user@box:/tmp$ "),
    "pwd elsewhere": ([("cd /tmp", "", "user@box:/tmp$ ")], "pwd", "/tmp\n", "user@box:/tmp$ "),
    "echo": ([], "echo red  fox", "red fox\n", HOME),
    "echo quoted": ([], "echo \"red  fox\" 'a b'", "red  fox a b\n", HOME),
    "echo without newline": ([], "echo -n red", "red", HOME),
    "set": ([], 'x="red fox"', "", HOME),
    "variable": ([('x="red fox"', "")], "echo $x", "red fox\n", HOME),
    "variable in quotes": ([("x=red", "")], 'echo "x is ${x}"', "x is red\n", HOME),
    "unset variable": ([("x=red", ""), ("unset x", "")], "echo $x", "\n", HOME),
    "variable of a variable": ([("x=red", ""), ("y=$x", "")], "echo $y", "red\n", HOME),
    "last value wins": ([("x=red", ""), ("x=blue", "")], "echo $x", "blue\n", HOME),
    "cat": ([("echo red fox > a.txt", "")], "cat a.txt", "red fox\n", HOME),
    "cat of an append": ([("echo red > a.txt", ""), ("echo fox >> a.txt", "")], "cat a.txt", "red\nfox\n", HOME),
    "cat of a printf": ([(r"printf 'red\nfox\n' > a.txt", "")], "cat a.txt", "red\nfox\n", HOME),
    "cat without last newline": ([("echo -n red > a.txt", "")], "cat a.txt", "red", HOME),
    "cat of a variable": ([("x=red", ""), ("echo $x > a.txt", "")], "cat a.txt", "red\n", HOME),
    "cat seen before": ([("cat a.txt", "corn\n")], "cat a.txt", "corn\n", HOME),
    "cat of a copy": ([("echo red > a.txt", ""), ("cp a.txt b.txt", "")], "cat b.txt", "red\n", HOME),
    "cat of a moved file": ([("echo red > a.txt", ""), ("mv a.txt b.txt", "")], "cat b.txt", "red\n", HOME),
    "cat from another folder": (
        [("echo red > a.txt", ""), ("cd /tmp", "", "user@box:/tmp$ ")],
        "cat ~/a.txt",
        "red\n",
        "user@box:/tmp$ ",
    ),
    "cat numbered": ([("echo red > a.txt", "")], "cat -n a.txt", "     1\tred\n", HOME),
    "cat of two": ([("echo red > a", ""), ("echo fox > b", "")], "cat a b", "red\nfox\n", HOME),
    "cat of a removed file": (
        [("echo red > a.txt", ""), ("rm a.txt", "")],
        "cat a.txt",
        "cat: a.txt: No such file or directory\n",
        HOME,
    ),
    "cat of a folder": ([("mkdir docs", "")], "cat docs", "cat: docs: Is a directory\n", HOME),
    "append to an unseen file, then seen": (
        [("cat a.txt", "red\n"), ("echo fox >> a.txt", "")],
        "cat a.txt",
        "red\nfox\n",
        HOME,
    ),
    "wc": ([("echo red fox > a.txt", "")], "wc -w a.txt", "2 a.txt\n", HOME),
    "wc of input": ([("echo red fox > a.txt", "")], "wc -l < a.txt", "1\n", HOME),
    "grep": ([(r"printf 'red\nfox\n' > a", "")], "grep -n fox a", "2:fox\n", HOME),
    "write": ([], "echo red > a.txt", "", HOME),
    "append": ([], "echo red >> a.txt", "", HOME),
    "mkdir": ([], "mkdir docs", "", HOME),
    "mkdir again": (
        [("mkdir docs", "")],
        "mkdir docs",
        "mkdir: cannot create directory \u2018docs\u2019: File exists\n",
        HOME,
    ),
    "rm": ([("echo red > a.txt", "")], "rm a.txt", "", HOME),
    "rm of a folder": ([("mkdir docs", "")], "rm docs", "rm: cannot remove 'docs': Is a directory\n", HOME),
    "ls of a new folder": ([("mkdir docs", ""), ("echo a > docs/b.txt", "")], "ls docs", "b.txt\n", HOME),
    "ls again": ([("ls", "b.txt\n"), ("echo a > a.txt", ""), ("rm b.txt", "")], "ls", "a.txt\n", HOME),
    "status 0": ([("echo red", "red\n")], "echo $?", "0\n", HOME),
    "status at the start": ([], "echo $?", "0\n", HOME),
    "status of an error": ([("cat x", "cat: x: No such file or directory\n")], "echo $?", "1\n", HOME),
    "status of no command": ([("lss", "bash: lss: command not found\n")], "echo $?", "127\n", HOME),
    "status of ls": ([("ls x", "ls: cannot access 'x': No such file or directory\n")], "echo $?", "2\n", HOME),
    "status of grep": ([("grep red a.txt", "")], "echo $?", "1\n", HOME),
    "status in one line": ([], "false; echo $?", "1\n", HOME),
    "status of a subshell": ([], "(exit 3); echo $?", "3\n", HOME),
    "status is used up": ([("lss", "bash: lss: command not found\n"), ("echo $?", "127\n")], "echo $?", "0\n", HOME),
    "no command": ([], "lss red", "bash: lss: command not found\n", HOME),
    "test": ([("echo a > a.txt", "")], "[ -f a.txt ] && echo yes || echo no", "yes\n", HOME),
    "test fails": ([], "[ 3 -gt 5 ] && echo yes || echo no", "no\n", HOME),
    "a loop keeps files": (
        [("echo red > a.txt", ""), ("for i in b c; do echo $i; done", "b\nc\n")],
        "cat a.txt",
        "red\n",
        HOME,
    ),
}


@pytest.mark.parametrize(("steps", "command", "output", "prompt"), COVERED.values(), ids=COVERED)
def test_covered(steps: list[tuple[str, ...]], command: str, output: str, prompt: str) -> None:
    assert predict(session(*steps), command) == f"{command}\n{output}{prompt}"


ABSTAINS = {
    "a pipe": ([], "echo red | wc -w"),
    "a substitution": ([], "echo $(pwd)"),
    "arithmetic": ([], "echo $((1 + 2))"),
    "a glob": ([], "echo *.txt"),
    "a brace": ([], "echo {a,b}"),
    "several lines": ([], "for i in a b\ndo\necho $i\ndone"),
    "a loop": ([], "for i in a b; do echo $i; done"),
    "a pid": ([], "echo $$"),
    "a random number": ([], "echo $RANDOM"),
    "the date": ([], "date"),
    "python": ([], "python3 -c 'print(1)'"),
    "a usual command": ([], "git status"),
    "a file never seen": ([], "cat a.txt"),
    "a folder never seen": ([], "cd docs"),
    "a listing never seen": ([], "ls"),
    "a file that sed changed": ([("echo red > a.txt", ""), ("sed -i 's/red/blue/' a.txt", "")], "cat a.txt"),
    "a file that a pipe wrote": ([("echo red > a.txt", ""), ("echo b | tr b c > a.txt", "")], "cat a.txt"),
    "files after a script": ([("echo red > a.txt", ""), ("bash run.sh", "")], "cat a.txt"),
    "files after a glob": ([("echo red > a.txt", ""), ("rm *", "")], "cat a.txt"),
    "files after python": ([("echo red > a.txt", ""), ("python3 -c 'print(1)'", "1\n")], "cat a.txt"),
    "a variable of a random number": ([("x=$RANDOM", "")], "echo $x"),
    "a variable of arithmetic": ([("n=3", ""), ("n=$((n + 1))", "")], "echo $n"),
    "a variable that a loop used": ([("i=3", ""), ("for i in a b; do echo $i; done", "a\nb\n")], "echo $i"),
    "a variable after eval": ([("x=3", ""), ("eval x=4", "")], "echo $x"),
    "the status of a loop": ([("for i in a; do lss; done", "bash: lss: command not found\n")], "echo $?"),
    "the status behind a redirection": ([("ls x 2> a.txt", "")], "echo $?"),
    "a function": ([("cat() { echo red; }", ""), ("echo a > a.txt", "")], "cat a.txt"),
    "a function of no known name": ([("greet() { echo $1; }", "")], "greet red"),
    "a listing after an unknown write": ([("ls", "b.txt\n"), ("echo a | tee c.txt", "a\n")], "ls"),
    "wildcards in a variable": ([("x='*'", "")], "echo $x"),
}


@pytest.mark.parametrize(("steps", "command"), ABSTAINS.values(), ids=ABSTAINS)
def test_abstains(steps: list[tuple[str, ...]], command: str) -> None:
    assert predict(session(*steps), command) is None


@pytest.mark.parametrize(
    "action",
    ["", "pwd", "{}", "[]", "null", '[{"keystrokes": "pwd"}]', '[{"keystrokes": 3}]', '"x"', "[" * 100_000]
    + [json.dumps([{"keystrokes": t}]) for t in ("C-c", "pw\td\n", "\x03\n", "pwd\n\n", "\n", " \n", "x" * 400 + "\n")]
    + [json.dumps(2 * [{"keystrokes": "pwd\n", "duration": 0.1}])],
)  # fmt: skip
def test_abstains_from_what_is_not_one_typed_line(action: str) -> None:
    assert scripted_teacher([], action) is None


def test_a_history_that_does_not_end_in_a_prompt_is_not_answered() -> None:
    assert predict([Turn(typed("sleep 9"), "sleep 9\n")], "pwd") is None
    assert predict([*session(("pwd", "/home/user\n")), Turn(typed("cat"), "cat\n")], "echo a") is None


def test_the_history_corrects_the_teacher() -> None:
    """Where a turn went otherwise than foreseen, its traces are forgotten, and what it showed is learnt."""
    assert predict(session(("echo red > a.txt", "bash: a.txt: Permission denied\n")), "cat a.txt") is None
    changed = session(("echo red > a.txt", ""), ("cat a.txt", "blue\n"))
    assert predict(changed, "cat a.txt") == f"cat a.txt\nblue\n{HOME}"
    known = session(("pwd", "/data/home\n"), ("cd /tmp", "", "user@box:/tmp$ "))
    assert predict(known, "cd -") == f"cd -\n/data/home\n{HOME}"
    other = [Turn(typed("ls"), "ls\nroot@web:/app# ")]
    assert predict(other, "pwd") == "pwd\n/app\nroot@web:/app# "
    assert predict(other, "ls") == "ls\nroot@web:/app# "


def test_thoughts_are_words_about_action_history_and_form() -> None:
    trace = scripted_teacher(session(("x=red", "")), typed("echo $x"))
    assert trace.family == "variable"
    assert trace.thinking == "asks: print x. history: x is red. form: echo, output, prompt ~."
    trace = scripted_teacher(session(("echo red fox > a.txt", ""), ("mkdir d", "")), typed("cat a.txt"))
    assert trace.thinking == "asks: read a.txt. history: a.txt holds red fox. form: echo, output, prompt ~."
    assert scripted_teacher([], typed("mkdir d")).thinking == "asks: make d. history: not needed. form: echo, prompt ~."
    assert ", error, " in scripted_teacher([], typed("lss")).thinking


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    out: Path = tmp_path_factory.mktemp("recorded") / "terminal.jsonl"
    record(RecordSettings(count=40, mix="light", workers=1), 11, out, lambda line: None)
    return list(read_jsonl(out))


def test_coverage_and_precision_on_a_real_recording(recorded: list[Trajectory]) -> None:
    turns = answered = right = 0
    wrong = []
    for trajectory in recorded:
        for index, turn in enumerate(trajectory.turns):
            turns += 1
            trace = scripted_teacher(trajectory.turns[:index], turn.action)
            if trace is not None:
                answered += 1
                right += trace.prediction == turn.observation
                assert 6 <= len(trace.thinking.split()) <= 30
                if trace.prediction != turn.observation:
                    wrong.append((trace.prediction, turn.observation))
    assert turns >= 150
    assert answered / turns >= 0.35
    assert right / answered >= 0.95, wrong


def test_the_teacher_cannot_read_the_truth(recorded: list[Trajectory]) -> None:
    """By its signature, and by what it does: a wrong truth in this turn or a later one changes no trace."""
    assert list(inspect.signature(scripted_teacher).parameters) == ["history", "action"]

    def traces(trajectories: Sequence[Trajectory], target: int) -> list:
        rows = [t for t in trajectories if len(t.turns) > target]
        return [scripted_teacher(t.turns[:target], t.turns[target].action) for t in rows]

    def falsified(trajectory: Trajectory, start: int) -> Trajectory:
        turns = [
            turn if i < start else dataclasses.replace(turn, observation="a wrong truth", meta={})
            for i, turn in enumerate(trajectory.turns)
        ]
        return dataclasses.replace(trajectory, turns=turns)

    for target in range(4):
        given = traces(recorded, target)
        assert given == traces([falsified(t, target) for t in recorded], target)
        assert any(trace is not None for trace in given)
    # The probe itself can tell: a wrong observation inside the history does change traces.
    assert traces(recorded, 3) != traces([falsified(t, 2) for t in recorded], 3)


def test_the_history_is_not_changed_and_repeats_agree(recorded: list[Trajectory]) -> None:
    for trajectory in recorded[:10]:
        before = json.dumps(dataclasses.asdict(trajectory))
        first = [scripted_teacher(trajectory.turns[:i], t.action) for i, t in enumerate(trajectory.turns)]
        assert first == [scripted_teacher(trajectory.turns[:i], t.action) for i, t in enumerate(trajectory.turns)]
        assert json.dumps(dataclasses.asdict(trajectory)) == before


def test_no_session_breaks_it() -> None:
    """Random lines and random screens: it answers or abstains, and never raises."""
    draw = random.Random(4)
    words = (
        "cd ls cat rm -r mv cp echo printf [ ] -f > >> < ; && || $x ${x} $? x= ~ ~/a / .. . - a b.txt ' \" $( ) { } * "
        "for do done unset mkdir -p rmdir touch wc -l grep true false (exit 3) %s \\n = -n -e é fi \n \t |"
    )
    pieces = words.split(" ")
    answers = []
    for _ in range(3000):
        turns = []
        for _ in range(draw.randint(0, 4)):
            command = " ".join(draw.choices(pieces, k=draw.randint(0, 6)))
            output = " ".join(draw.choices(pieces, k=draw.randint(0, 4)))
            prompt = draw.choice([HOME, "user@box:~/a$ ", "root@x:/# ", "", "$ ", "user@box:", "user@box:~a$ "])
            turns.append(Turn(typed(command), f"{command}\n{output}\n{prompt}"))
        answers.append(scripted_teacher(turns, typed(" ".join(draw.choices(pieces, k=draw.randint(0, 6))))))
    given = [answer for answer in answers if answer is not None]
    assert 30 < len(given) < 2970 and all(answer.thinking and answer.family for answer in given)


@pytest.mark.parametrize(
    "command", ["cp a.txt /", "mv a.txt /", "cd //", "cat //a", "ls //tmp", "mkdir //x", "echo a > //b"]
)
def test_two_leading_slashes_are_one(command: str) -> None:
    """As an action and in the history, where a real trajectory may hold them."""
    scripted_teacher([], typed(command))
    turn = Turn(typed(command), f"{command}\n{HOME}")
    assert scripted_teacher([turn], typed("pwd")) == scripted_teacher(
        [Turn(typed("true"), f"true\n{HOME}")], typed("pwd")
    )
