"""asciicast recordings: what a real bash answered is what the imported turns hold, and every trap has its test."""

import codecs
import fcntl
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from agentworld.data.formats import asciicast, container
from agentworld.data.formats.format import Head, Origin, Rejected, UnusableError
from agentworld.data.formats.terminal_screen import TerminalScreen
from agentworld.data.schema import Trajectory, from_dict, to_dict

HEADER = {"version": 2, "width": 40, "height": 10}
CORPORA = os.environ.get("AGENTWORLD_CORPORA")


class Cast:
    """A recording written by hand: time passes between what is typed and what is shown."""

    def __init__(self, header: dict | None = None, inputs: bool = False) -> None:
        self.rows: list = [header or HEADER]
        self.now, self.inputs = 0.0, inputs

    def show(self, text: str, after: float = 0.001) -> "Cast":
        self.now = round(self.now + after, 3)
        self.rows.append([self.now, "o", text])
        return self

    def key(self, key: str, after: float = 0.2) -> "Cast":
        self.now = round(self.now + after, 3)
        self.rows.append([self.now, "i", key])
        return self

    def type(self, text: str, echo: bool = True) -> "Cast":
        for char in text:
            self.key(char) if self.inputs else None
            if echo:
                self.show("\r\n" if char == "\r" else char, 0.001 if self.inputs else 0.2)
        return self

    def run(self, command: str, output: str, prompt: str = "$ ") -> "Cast":
        return self.type(command + "\r").show(output + prompt, after=0.3)


def trajectory(values: list | Cast) -> Trajectory:
    values = values.rows if isinstance(values, Cast) else values
    (found,) = asciicast.convert(values, Origin("logs/a.cast", ""))
    assert from_dict(json.loads(json.dumps(to_dict(found)))) == found
    return found


def turns(values: list | Cast) -> list[tuple]:
    """(keystrokes of each step, observation, reason for context only)."""
    return [
        ([step["keystrokes"] for step in json.loads(turn.action)], turn.observation, turn.meta.get("context_only"))
        for turn in trajectory(values).turns
    ]


def head(values: list) -> Head:
    text = "\n".join(map(json.dumps, values))
    return Head("lines" if len(values) > 1 else "object", values[0], text)


# A real shell --------------------------------------------------------------------------------------------------------

COMMANDS = [
    "echo hello",
    "seq 1 40",
    "printf 'no newline'",
    "ls /nonexistent",
    "printf '\\033[31mred\\033[0m\\n\\tb'",
    "printf '10%%\\r100%%\\ndone\\n'",
    "printf 'abcd\\b\\b__\\n'",
    "echo $ '> ' # a comment with $ signs > /dev/null",
    "echo " + "long " * 30 + "end",
    "printf '%0200d\\n' 7",
    "echo 日本語 é 👍 ❤️ | cat",
    "printf '$ make\\n# root\\n> quoted\\n'",
    "for i in 1 2; do echo $i; done",
]
PROMPT = "me@box:~$ "


def record(commands: list[str], folder: Path, inputs: bool, editor: bool = True) -> list:
    """The cast of a real bash on a pseudo-terminal; the clock is ours, so that the machine's load does not matter."""
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        line_editor = [] if editor else ["--noediting"]
        shell = ["bash", "--norc", "--noprofile", *line_editor, "-i"]
        os.execvpe("bash", shell, environment | {"PS1": r"\[\e[32m\]me@box\[\e[0m\]:\w$ "})
    cast = Cast({"version": 2, "width": 80, "height": 24}, inputs)

    decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end inside a character

    def comes(seconds: float) -> bool:
        return bool(select.select([terminal], [], [], seconds)[0])

    def read() -> str:
        data = decode(os.read(terminal, 65536)) if comes(5) else ""
        cast.show(data)
        return data.replace("\x1b[32m", "").replace("\x1b[0m", "")

    def read_until(end: str) -> None:
        """However the shell cuts its writes, and until nothing follows."""
        seen = ""
        while not seen.endswith(end) or comes(0.02):
            new = read()
            assert new, "the shell does not answer"
            seen += new

    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        read_until(PROMPT)
        for command in commands:
            for char in command:
                cast.now += 0.1
                cast.key(char, 0.0) if inputs else None
                os.write(terminal, char.encode())
                read()  # its echo
            cast.now += 0.1
            cast.key("\r", 0.0) if inputs else None
            os.write(terminal, b"\r")
            read_until(PROMPT)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return cast.rows


def shown(output: str) -> str:
    """What a screen shows of these outputs: the few control codes of COMMANDS, resolved by hand."""
    for code, text in {
        "\x1b[31mred\x1b[0m\n\tb": "red\n        b",
        "10%\r100%": "100%",
        "abcd\b\b__": "ab__",
    }.items():
        output = output.replace(code, text)
    return "\n".join(line.rstrip(" ") for line in output.split("\n"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("inputs", [True, False], ids=["input", "output-only"])
@pytest.mark.parametrize("editor", [True, False], ids=["readline", "plain"])
def test_a_real_bash_answers_what_the_same_commands_print(tmp_path, inputs, editor) -> None:
    commands = COMMANDS if editor else [c for c in COMMANDS if c.isascii()]
    rows = record(commands, tmp_path, inputs, editor)
    found = turns(rows)
    assert [keys for keys, _, _ in found] == [[command + "\n"] for command in commands]
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(tmp_path)}
    for command, (_, observation, reason) in zip(commands, found, strict=True):
        script = ["bash", "-c", command]
        done = subprocess.run(script, cwd=tmp_path, env=environment, stdout=-1, stderr=subprocess.STDOUT, check=False)
        output = shown(done.stdout.decode())
        assert observation == f"{command}\n{output}{PROMPT}"
        assert reason is None


# Prompts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [True, False])
@pytest.mark.parametrize(
    "first,second",
    [
        ("$ ", "$ "),
        ("root@host:/# ", "root@host:/etc# "),
        ("user@host ~> ", "user@host ~/src> "),
        ("➜  ~ ", "➜  src git:(main) ✗ "),
        ("~\r\n\u276f ", "~/src main\r\n\u276f "),
        ("λ ", "λ "),
        (" \ue0b0 ~ \ue0b0 ", " \ue0b0 src \ue0b0 "),
        ("\x1b[1;34mme\x1b[0m\x1b]0;title\x07% ", "\x1b[1;34mme\x1b[0m% "),
    ],
)
def test_prompts_are_learned(inputs, first, second) -> None:
    cast = Cast(inputs=inputs).show("Welcome\r\n" + first)
    cast.run("cd src", "", second).run("ls", "a  b\r\n", second).type("exit\r").show("bye\r\n")
    plain = second.replace("\x1b[1;34mme\x1b[0m", "me").replace("\r\n", "\n")
    assert turns(cast) == [
        (["cd src\n"], "cd src\n" + plain, None),
        (["ls\n"], "ls\na  b\n" + plain, None),
        (["exit\n"], "exit\nbye\n", "the recording ends before the next prompt"),
    ]


def test_a_prompt_that_is_the_same_three_times_needs_no_sign() -> None:
    cast = Cast().show("(gdb) ")
    for number in range(3):
        cast.run(f"p {number}", f"$1 = {number}\r\n", "(gdb) ")
    assert turns(cast)[1] == (["p 1\n"], "p 1\n$1 = 1\n(gdb) ", None)


def test_checks_that_print_their_result_later_are_no_prompts() -> None:
    cast = Cast()
    for name in ("gcc", "make", "ld", "ar"):
        cast.show(f"checking for {name}: ", 0.2).show("yes\r\n", 0.2)
    with pytest.raises(UnusableError, match="no shell prompt was found"):
        trajectory(cast)


def test_progress_that_ends_like_a_prompt_is_output() -> None:
    cast = Cast().show("$ ").type("get\r")
    for percent in range(0, 101, 20):
        cast.show(f"\r{percent}% ", 0.5)
    cast.show("\r\n$ ").run("ls", "a\r\n")
    assert turns(cast) == [(["get\n"], "get\n100%\n$ ", None), (["ls\n"], "ls\na\n$ ", None)]


def test_typing_a_sign_is_not_a_prompt_and_lines_that_look_like_one_are_output() -> None:
    cast = Cast().show("$ ").run("echo $ > a # ", "").run("cat notes", "$ make\r\n# root\r\n$ \r\n")
    assert turns(cast) == [
        (["echo $ > a #\n"], "echo $ > a #\n$ ", None),  # a blank at the end cannot be seen
        (["cat notes\n"], "cat notes\n$ make\n# root\n$\n$ ", None),
    ]


def test_a_recording_without_time_is_told_by_its_events() -> None:
    rows = [HEADER, *([0, "o", text] for text in ("$ ", "l", "s", "\r\n", "a\r\n", "$ ", "pwd\r\n", "/\r\n$ "))]
    assert turns(rows) == [(["ls\n"], "ls\na\n$ ", None), (["pwd\n"], "pwd\n/\n$ ", None)]


def test_continuation_lines_belong_to_their_command() -> None:
    def cast(inputs: bool) -> Cast:
        cast = Cast(inputs=inputs).show("$ ").type("cat <<E\r").show("> ").type("x\r").show("> ").type("E\r")
        return cast.show("x\r\n$ ").run("ls", "")

    observation = "cat <<E\n> x\n> E\nx\n$ "
    assert turns(cast(True))[0] == (["cat <<E\n", "x\n", "E\n"], observation, None)
    assert turns(cast(False))[0] == (["cat <<E\nx\nE\n"], observation, None)


def test_programs_with_prompts_of_their_own() -> None:
    def cast(inputs: bool) -> Cast:
        cast = Cast(inputs=inputs).show("me$ ").run("python3 -q", "", ">>> ").run("1+1", "2\r\n", ">>> ")
        cast.key("\x04") if inputs else None
        cast.show("\r\nme$ ", 0.5)
        return cast.run("node", "Hi\r\n", "> ").run("2+2", "4\r\n", "> ").run(".exit", "", "me$ ")

    node = "node\nHi\n> 2+2\n4\n> .exit\nme$ "
    for inputs in (True, False):
        assert turns(cast(inputs)) == [
            (["python3 -q\n"], "python3 -q\n>>> ", None),
            (["1+1\n"], "1+1\n2\n>>> ", None),
            (["\x04"], "\nme$ ", None),
            (["node\n", "2+2\n", ".exit\n"] if inputs else ["node\n2+2\n.exit\n"], node, None),
        ]


def test_a_preview_below_the_line_that_is_typed_is_not_enter() -> None:
    cast = Cast().show("me$ ").run("ls", "", "me$ ").type("node\r").show("> ")
    cast.type("1").show("+").show("\r\n1\x1b[A\x1b[5G").type("1").show("\r\n\x1b[K2\r\n> ").show("\r\nme$ ", 0.5)
    assert turns(cast)[1] == (["node\n1+1\n\x04"], "node\n> 1+1\n2\n>\nme$ ", None)


def test_a_prompt_that_looks_like_a_continuation_is_one_where_the_recording_begins_with_it() -> None:
    cast = Cast().show("> ").run("ls", "a\r\n", "> ").run("pwd", "/\r\n", "> ")
    assert turns(cast) == [(["ls\n"], "ls\na\n> ", None), (["pwd\n"], "pwd\n/\n> ", None)]


def test_a_list_of_completions_is_not_a_command() -> None:
    def cast(inputs: bool) -> Cast:
        cast = Cast(inputs=inputs).show("me$ ").run("pwd", "/\r\n", "me$ ").type("ls a")
        cast.key("\t") if inputs else None
        cast.show("\r\nab  ac\r\nme$ ls a", 0.2).type("b\r")
        return cast.show("ab\r\nme$ ")

    assert turns(cast(False))[1:] == [(["ls ab\n"], "ls ab\nab\nme$ ", None)]
    (keys, observation, _) = turns(cast(True))[1]
    assert (keys, observation) == (["ls a\tb\n"], "ls a\nab  ac\nme$ ls ab\nab\nme$ ")


def test_a_right_prompt_is_no_part_of_the_command() -> None:
    right = "\x1b[20C12:30\x1b[25D"
    cast = Cast().show("% " + right).run("ls", "a\r\n", "% " + right).run("pwd", "/\r\n", "% " + right)
    assert turns(cast) == [(["ls\n"], "ls\na\n% ", None), (["pwd\n"], "pwd\n/\n% ", None)]


def test_the_mark_of_zsh_for_a_missing_newline_goes() -> None:
    space = "\x1b[7m%\x1b[27m" + " " * 39 + "\r \r"
    cast = Cast().show(space + "\r\x1b[Jme % \x1b[K\x1b[?2004h").type("ls").show("\x1b[?2004l\r\r\n")
    cast.show("a\r\n").show(space + "\r\x1b[Jme % \x1b[K\x1b[?2004h").type("x").show("\x1b[?2004l\r\r\n")
    cast.show("b").show(space + "\r\x1b[Jme % \x1b[K\x1b[?2004h")
    assert turns(cast)[0] == (["ls\n"], "ls\na\nme % ", None)
    assert turns(cast)[1] == (["x\n"], "x\nb%\nme % ", None)


# Keys ----------------------------------------------------------------------------------------------------------------


def test_interrupts() -> None:
    def cast(inputs: bool) -> Cast:
        cast = Cast(inputs=inputs).show("$ ").type("sleep 9\r")
        cast.key("\x03", 1.0) if inputs else None
        cast.show("^C\r\n$ ", 1.0).type("oops")
        cast.key("\x03") if inputs else None
        return cast.show("^C\r\n$ ", 0.1).run("ls", "")

    for inputs in (True, False):
        assert turns(cast(inputs)) == [
            (["sleep 9\n", "\x03"], "sleep 9\n^C\n$ ", None),
            (["oops\x03"], "oops^C\n$ ", None),
            (["ls\n"], "ls\n$ ", None),
        ]


def test_keys_are_verbatim_and_answers_of_the_terminal_are_not_keys() -> None:
    cast = Cast(inputs=True).show("$ ").key("\x1b[24;80R").key("\x1b]11;rgb:0/0/0\x07").key("\x1b[I")
    cast.key("\x1b[200~ls\x1b[201~").show("ls").key("x").show("x").key("\x7f").show("\b\x1b[K").key("\r").show("\r\n")
    cast.show("a\r\n$ ", 1.5)
    assert turns(cast) == [(["lsx\x7f\n"], "ls\na\n$ ", None)]
    assert json.loads(trajectory(cast).turns[0].action)[0]["duration"] == 1.5


@pytest.mark.parametrize("pieces", [["s3cret\r"], list("s3cret\r"), ["s3", "cret", "\r"]])
def test_a_password_is_not_kept(pieces) -> None:
    cast = Cast(inputs=True).show("$ ").type("sudo ls\r").show("[sudo] password for me: ")
    for piece in pieces:
        cast.key(piece)
    cast.show("\r\n").show("a\r\n$ ").run("pwd", "/\r\n")
    assert turns(cast)[0] == (["sudo ls\n", "<hidden>\n"], "sudo ls\n[sudo] password for me:\na\n$ ", None)
    assert "s3cret" not in json.dumps(to_dict(trajectory(cast)))


def test_answers_to_a_program() -> None:
    def cast(inputs: bool) -> Cast:
        cast = Cast(inputs=inputs).show("$ ").type("rm -i a\r").show("remove a? ")
        if not inputs:
            cast.show("y", 1.0).show("\r\n")
        else:
            cast.type("y\r")
        return cast.show("$ ", 0.1).run("ls", "")

    assert turns(cast(True))[0] == (["rm -i a\n", "y\n"], "rm -i a\nremove a? y\n$ ", None)
    assert turns(cast(False))[0][2] == "a program asked for input, which the recording does not hold apart"


def test_commands_typed_ahead_without_an_event_at_the_prompt_between_them() -> None:
    cast = Cast().show("me@box$ ").type("sleep 1\r").show("ls\r\n").show("me@box$ ls\r\na\r\nme@box$ ", 1.0)
    cast.run("pwd", "/\r\n", "me@box$ ")
    assert turns(cast)[0][2] == "several prompts stand in it: commands ran without a pause"
    assert turns(cast)[1] == (["pwd\n"], "pwd\n/\nme@box$ ", None)


def test_a_command_typed_ahead_is_an_action_of_its_own() -> None:
    cast = Cast(inputs=True).show("$ ").type("sleep 1\r").type("ls\r").show("$ ", 1.0).show("ls\r\n").show("a\r\n$ ")
    assert turns(cast) == [(["sleep 1\n"], "sleep 1\nls\n$ ", None), (["ls\n"], "ls\na\n$ ", None)]


# The screen ----------------------------------------------------------------------------------------------------------


def test_clear_leaves_the_prompt() -> None:
    for code in ("\x1b[H\x1b[2J\x1b[3J", "\x1b[3J\x1b[H\x1b[2J", "\x1b[H\x1b[J", "\x1bc"):
        cast = Cast().show("hello\r\n$ ").run("ls", "a\r\n").run("clear", code).run("pwd", "/\r\n")
        assert turns(cast)[1:] == [(["clear\n"], "$ ", None), (["pwd\n"], "pwd\n/\n$ ", None)]


@pytest.mark.parametrize("mode", ["1049", "47", "1047"])
def test_a_full_screen_program_is_context(mode) -> None:
    cast = Cast(inputs=True).show("$ ").type("less a\r")
    cast.show(f"\x1b[?{mode}h\x1b[H\x1b[2Jline $ 1\r\nline 2\r\n:").key("q").show(f"\r\x1b[K\x1b[?{mode}l").show("$ ")
    cast.run("ls", "a\r\n")
    reason = "a full-screen program ran"
    assert turns(cast)[0] == (["less a\n", "q"], "less a\nline $ 1\nline 2\n$ ", reason)
    assert turns(cast)[1] == (["ls\n"], "ls\na\n$ ", None)


def test_a_session_inside_a_full_screen_program_says_so() -> None:
    cast = Cast().show("$ ").type("tmux\r").show("\x1b[?1049h\x1b[H")
    for _ in range(5):
        cast.show("$ ").type("ls\r").show("a\r\n")
    with pytest.raises(UnusableError, match="full-screen program"):
        trajectory(cast)


def test_lines_that_are_redrawn_above() -> None:
    cast = Cast().show("$ ").run("pull", "a: 0%\r\nb: 0%\r\n\x1b[2A\ra: 9%\x1b[K\r\nb: 9%\x1b[K\r\n")
    cast.run("draw", "\x1b[5;5Hin the middle\x1b[9;1H")
    assert turns(cast)[0] == (["pull\n"], "pull\na: 9%\nb: 9%\n$ ", None)


def test_a_line_broken_at_the_edge_is_one_line_also_after_a_resize() -> None:
    wide = "x" * 45
    cast = Cast().show("$ ").run("a", wide + "\r\n").run("b", "y" * 40 + "\r\nz\r\n")
    cast.rows.append([cast.now, "r", "60x5"])
    cast.run("c", wide + "\r\n" + "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n")
    cast.rows += [[cast.now, "r", "0x0"], [cast.now, "r", "what"], [cast.now, "m", "a marker"]]
    cast.run("日本" * 12, "日" * 31 + "\r\n")
    assert turns(cast) == [
        (["a\n"], f"a\n{wide}\n$ ", None),
        (["b\n"], "b\n" + "y" * 40 + "\nz\n$ ", None),
        (["c\n"], f"c\n{wide}\n1\n2\n3\n4\n5\n6\n$ ", None),
        (["日本" * 12 + "\n"], "日本" * 12 + "\n" + "日" * 31 + "\n$ ", None),
    ]


@pytest.mark.parametrize(
    "data,text",
    [
        ("a\u200db", "a\u200db"),  # pyte drops the rest of a text after a character without a width
        ("❤\ufe0f!", "❤\ufe0f!"),
        ("e\u0301", "é"),
        ("日本\b\bx", "日x"),
        ("日本\r-", "- 本"),
        ("\x1b[4:3mcurly\x1b[<u\x1b[=1u\x1b[>4;1m\x1b[!p", "curly"),  # and prints the rest of codes it does not know
        ("\x1bP+q544e\x1b\\a\x1b_G\x1b\\b\x1bktitle\x1b\\c\x1b[?1;2cd", "abcd"),
        ("\x1b[1;2;3C\x1b[9Ka\x1b[5Jb\x1b[?6h\x1b[dc", " abc"),  # and raises on these
        ("-\x1b[3b\x1b[sx\x1b[uy", "----y"),
        ("\x1b(0lqk\x1b(B", "┌─┐"),
        ("ab\x1b[1@c\x1b[2D\x1b[Px", "ax"),
        ("ac\b\x1b[4hb\x1b[4l", "abc"),
        ("a\x1b7b\x1b8c\x1b8d", "ad"),
        ("\0a\x7f\x07\x18\x85b", "ab"),
        ("\x1b", ""),
        ("\x1b]0;never ends", ""),
    ],
)
def test_control_codes(data, text) -> None:
    for step in (1, len(data)):  # whole, and cut at every place
        screen = TerminalScreen(20, 5)
        for place in range(0, len(data), step):
            screen.feed(data[place : place + step])
        screen.cursor.x = 20
        assert screen.text().rstrip(" ") == text


def test_much_output_is_kept_as_text_only() -> None:
    screen = TerminalScreen(80, 24)
    screen.feed("".join(f"line {number}\r\n" for number in range(5000)))
    assert screen.text() == "".join(f"line {number}\n" for number in range(5000))
    assert len(screen.buffer) <= 24


# Files ---------------------------------------------------------------------------------------------------------------


def test_the_trajectory() -> None:
    header = HEADER | {"env": {"SHELL": "/bin/zsh"}, "title": "t"}
    found = trajectory(Cast(header).show("Hi\r\n$ ").run("ls", "a\r\n"))
    assert found.id == "asciicast:logs/a.cast"
    assert (found.domain, found.source) == ("terminal", "asciicast")
    assert found.system.initial_state == "40 columns, 10 rows, /bin/zsh. The screen:\nHi\n$ "
    assert found.turns[0].action == '[{"keystrokes": "ls\\n", "duration": 0.3}]'
    same = trajectory(Cast(inputs=True).show("other> ").run("ls", "b\r\n", "other> "))
    assert same.split_group == found.split_group  # the same commands are the same task
    assert trajectory(Cast().show("$ ").run("pwd", "/\r\n")).split_group != found.split_group


def test_versions_1_and_3() -> None:
    two = Cast().show("$ ").run("ls", "a\r\n")
    deltas, before = [], 0.0
    for time, code, data in two.rows[1:]:
        deltas.append([time - before, code, data])
        before = time
    three = [{"version": 3, "term": {"cols": 40, "rows": 10}}, *deltas, [0.1, "x", "0"]]
    one = {"version": 1, "width": 40, "height": 10, "stdout": [[time, data] for time, _, data in deltas]}
    assert turns(three) == turns([one]) == turns(two)
    assert trajectory(three).turns == trajectory([one]).turns == trajectory(two).turns
    assert next(asciicast.convert(one, Origin("logs/a.cast", ""))).turns == trajectory(two).turns
    assert all(map(asciicast.matches, (head(two.rows), head(three), head([one]))))


@pytest.mark.parametrize(
    "values,reason",
    [
        ([HEADER], "a header and no events"),
        ([HEADER, [0.1, "i", "x"], [0.2, "m", ""]], "no output events"),
        ([{"version": 7, "width": 1, "height": 1}, [0.1, "o", "x"]], "version 7 is not known"),
        ([[0.1, "o", "x"]], "not an asciicast header"),
        ([], "not an asciicast header"),
        ([{}], "names no version"),
        ([HEADER, None, [], [1], {}, ["x", "o", "y"], [float("nan"), "o", "y"]], "no output events"),
        ([HEADER, [10**400, "o", "$ "]], "no output events"),
        ([HEADER, [0, "o", "hello\r\n"], [1, "o", "world"]], "no shell prompt was found"),
        ([HEADER, [0, "o", "\x1b[?2004h$ "], [1, "o", "\r\n$ "]], "no command was entered"),
    ],
)
def test_what_gives_nothing_says_why(values, reason) -> None:
    with pytest.raises(UnusableError, match=reason):
        list(asciicast.convert(values, Origin("a", "")))


def test_a_damaged_event_spoils_its_turn_only() -> None:
    cast = Cast().show("$ ").type("ls\r")
    cast.rows.append([cast.now, "o", 7])
    cast.show("a\r\n$ ").run("pwd", "/\r\n")
    cast.rows.append([cast.now, "z", "an unknown code is no damage"])
    cast.run("id", "me\r\n")
    assert [reason for _, _, reason in turns(cast)] == ["an event of the recording is damaged here", None, None]


@pytest.mark.parametrize("size", [{}, {"width": 0, "height": -3}, {"width": "80", "height": None}, {"width": 10**12}])
def test_sizes_that_are_none(size) -> None:
    cast = Cast({"version": 2} | size).show("$ ").run("ls", "a\r\n")
    assert turns(cast) == [(["ls\n"], "ls\na\n$ ", None)]
    assert asciicast.matches(head(cast.rows))


def test_joined_files_give_several() -> None:
    one, two = Cast().show("$ ").run("ls", "a\r\n"), Cast().show("nothing")
    found = list(asciicast.convert(one.rows + two.rows + one.rows, Origin("a.cast", "")))
    assert [getattr(item, "id", None) for item in found] == ["asciicast:a.cast#1", None, "asciicast:a.cast#3"]
    assert isinstance(found[1], Rejected) and found[1].where == "#2" and "no shell prompt" in found[1].reason


@pytest.mark.parametrize(
    "first",
    [
        *(None, 1, "x", [], {}, [0.1, "o", "x"], {"version": 2}, {"version": True, "width": 1, "height": 1}),
        *({"version": "2", "width": 1, "height": 1}, {"version": 4, "width": 1, "height": 1}),
        *({"version": 1, "width": 1}, {"version": 2, "width": 1, "height": 1, "messages": []}),
        {"id": "", "domain": "", "turns": []},
    ],
)
def test_other_files_are_not_taken(first) -> None:
    assert not asciicast.matches(head([first]))
    assert not asciicast.matches(head([first, {"a": 1}]))


@pytest.mark.skipif(CORPORA is None, reason="AGENTWORLD_CORPORA is not set: the recorded corpora are not at hand")
def test_the_hard_recordings() -> None:
    """Ten recordings of players' test suites: none shows a prompt twice, so none has a turn, and each says why."""
    paths = sorted(Path(CORPORA, "hard").glob("cast_*.cast"))
    assert len(paths) == 10
    for path in Path(CORPORA).rglob("*"):
        if path.is_file() and path not in paths:
            try:
                assert not asciicast.matches(container.look(path)), path
            except container.DamagedError:
                continue
    for path in paths:
        found = container.look(path)
        assert asciicast.matches(found)
        values = [record.value for record in container.records(path, found)]
        with pytest.raises(UnusableError, match="no shell prompt was found"):
            list(asciicast.convert(values, Origin(path.name, "")))
