"""What a simple command of a shell does to a known session: its output and status, and the words that explain them.

Variables, printing, writing and tests are here, the other commands in `shell_files.py`.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from agentworld.train.shell_files import FILE_COMMANDS, NOT_NEEDED, Answer, one, read_files, state
from agentworld.train.shell_session import Entry, Session, Unsure
from agentworld.train.shell_syntax import Command, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_PLAIN_NAME = re.compile(r"[\w.-]+")
# Words that are no unknown command: what a usual system has among the short lower-case names, and the shell's own.
USUAL_COMMANDS = frozenset(
    """
    alias ar arch as at awk base32 base64 basename bash batch bc bg bind break builtin c++ cal caller case cat cc
    cd chgrp chmod chown chroot cksum clear cmp col column comm command compgen complete continue coproc cp cpio
    csplit curl cut dash date dc dd declare df diff dir dirname dirs disown dmesg do done du echo ed egrep elif
    else emacs enable env esac eval ex exec exit expand export expr factor false fc fg fgrep fi file find fmt fold
    for free function g++ gcc gcov gdb getopts git go gold gprof grep groups gunzip gzip hash head help hexdump
    history host hostname iconv id if in info install ip java jobs join jq kill last ld less let link ln local
    locale locate login logname logout look ls lsof m4 mail make man mapfile md5sum mesg mkdir mkfifo mknod mktemp
    more mount mv mysql nano nc nice nl nm node nohup npm nproc od open passwd paste patch perl perlbug php ping
    pinky pip popd pr printenv printf ps pushd pwd python read readarray readlink readonly realpath red rename
    reset return rev rm rmdir route rpm rsync ruby run runcon script sed select seq set sh sha1sum shift shopt
    shred shuf size sleep sort source split ssh stat strace strings strip stty su sudo sum suspend sync tac tail
    tar tee telnet test then time timeout times top touch tput tr trap tree true truncate tset tsort tty type
    typeset ulimit umask umount unalias uname unexpand uniq units unlink unset until unzip uptime users vdir vi
    view vim vmstat w wait wall watch wc wget what whatis whereis which while who whoami write xargs xxd yes zcat
    zip
    """.split()  # noqa: SIM905
)


def run(session: Session, command: Command) -> Answer:
    """Run one simple command on the session.

    Raises:
        Unsure: the command is not covered, or the history does not determine what it does.
    """
    if command.words and _is_assignment(command.words[0]):
        return _assign(session, command)
    words = [text for word in command.words for text in session.expand(word)]
    if not words:
        raise Unsure
    name, arguments = words[0], words[1:]
    if command.redirect in (">", ">>"):
        return _write(session, name, arguments, command)
    if command.redirect == "<":
        if name not in ("cat", "wc") or any(not word.startswith("-") for word in arguments):
            raise Unsure
        path = one(session.expand(command.target))
        answer = COMMANDS[name](session, [*arguments, path])
        if answer.status:
            raise Unsure
        return replace(answer, output=answer.output.replace(f" {path}\n", "\n")) if name == "wc" else answer
    if name in session.functions:
        raise Unsure
    if name in ("echo", "printf"):
        return _print(session, name, arguments, command)
    if name in COMMANDS:
        return COMMANDS[name](session, arguments)
    if name in USUAL_COMMANDS or not re.fullmatch(r"[a-z]{2,}", name):
        raise Unsure
    return Answer("error", f"run {name}", f"{name} is no command", f"bash: {name}: command not found\n", 127)


def _is_assignment(word: Word) -> bool:
    return word[0].kind == "text" and _ASSIGNMENT.match(word[0].text) is not None


def _assign(session: Session, command: Command) -> Answer:
    if command.redirect or not all(map(_is_assignment, command.words)):
        raise Unsure
    names = []
    for word in command.words:
        name, value = one(session.expand(word, splitting=False)).split("=", 1)
        session.variables[name] = value
        names.append(name)
    return Answer("variable", f"set {' '.join(names)}")


def _unset(session: Session, arguments: list[str]) -> Answer:
    if not arguments or not session.all_variables_known or not all(re.fullmatch(r"[a-z_]\w*", a) for a in arguments):
        raise Unsure
    for name in arguments:
        session.variables.pop(name, None)
    return Answer("variable", f"unset {' '.join(arguments)}")


def _print(session: Session, name: str, arguments: list[str], command: Command) -> Answer:
    output = _printed(name, arguments)
    names = list(dict.fromkeys(part.text for word in command.words for part in word if "variable" in part.kind))
    if "?" in names:
        return Answer("status", "print status", f"last status is {session.status}", output)
    if names:
        known = ", ".join(f"{name} is {session.value(name) or 'empty'}" for name in names)
        return Answer("variable", f"print {' '.join(names)}", known, output)
    return Answer("echo", "print words", NOT_NEEDED, output)


def _printed(name: str, arguments: list[str]) -> str:
    """What echo or printf prints; covered are plain words, `echo -n`, and printf with \\n, \\t and %s, %d."""
    if name == "echo":
        newline = "\n"
        if arguments and arguments[0] == "-n":
            newline, arguments = "", arguments[1:]
        if arguments and re.fullmatch(r"-[neE]+", arguments[0]):
            raise Unsure
        return " ".join(arguments) + newline
    if not arguments or arguments[0].startswith("-") or re.search(r"\\[^nt]|%[^sd]|[\\%]$", arguments[0]):
        raise Unsure
    form, values = arguments[0].replace("\\n", "\n").replace("\\t", "\t"), arguments[1:]
    holes = len(re.findall("%[sd]", form))
    if (holes == 0 and values) or (holes and (not values or len(values) % holes)):
        raise Unsure
    if "%d" in form and not all(re.fullmatch(r"0|[1-9]\d{0,8}", value) for value in values):
        raise Unsure
    rounds = [values[i : i + holes] for i in range(0, len(values), holes)] if holes else [[]]
    return "".join(form.replace("%d", "%s") % tuple(some) for some in rounds)


def _write(session: Session, name: str, arguments: list[str], command: Command) -> Answer:
    """echo, printf or cat into a file: silent."""
    shown = one(session.expand(command.target))
    path = session.resolve(shown)
    session.require(session.parent(path), "folder")
    before = session.require(path, "file", "absent", "unknown")
    if shown.endswith("/") or name in session.functions:
        raise Unsure
    if name in ("echo", "printf"):
        text: str | None = _printed(name, arguments)
    elif name == "cat" and arguments and shown not in arguments:
        answer = read_files(session, arguments)
        if answer.status:
            raise Unsure
        text = answer.output
    else:
        raise Unsure
    if command.redirect == ">":
        session.put(path, Entry("file", text))
        return Answer("write", f"write {shown}")
    old = {"file": before.content, "absent": ""}.get(before.kind)
    session.put(path, Entry("file", None if old is None else old + text))
    return Answer("append", f"add to {shown}")


def _test(session: Session, arguments: list[str]) -> Answer:
    if arguments[-1:] != ["]"]:
        raise Unsure
    words = arguments[:-1]
    if len(words) == 2 and words[0] in ("-f", "-d", "-e"):
        entry = session.require(session.resolve(words[1]), "file", "folder", "absent")
        holds = entry.kind in {"-f": ("file",), "-d": ("folder",), "-e": ("file", "folder")}[words[0]]
        return Answer("test", f"test {words[1]}", state(words[1], entry, short=True), "", 0 if holds else 1)
    numbers = re.fullmatch(r"(\d{1,9}) -(lt|gt|eq) (\d{1,9})", " ".join(words))
    if numbers:
        first, second = int(numbers[1]), int(numbers[3])
        holds = {"lt": first < second, "gt": first > second, "eq": first == second}[numbers[2]]
        return Answer("test", f"test {numbers[0]}", NOT_NEEDED, "", 0 if holds else 1)
    raise Unsure


def _constant(name: str, status: int) -> Callable[[Session, list[str]], Answer]:
    return lambda session, arguments: Answer("status", f"run {name}", f"{name} gives {status}", "", status)


def _exit_status(session: Session, arguments: list[str]) -> Answer:
    if len(arguments) != 1 or not re.fullmatch(r"\d{1,2}", arguments[0]):
        raise Unsure
    return Answer("status", f"exit {arguments[0]}", NOT_NEEDED, "", int(arguments[0]))


COMMANDS: dict[str, Callable[[Session, list[str]], Answer]] = {
    **FILE_COMMANDS,
    "[": _test,
    "exit-status": _exit_status,
    "false": _constant("false", 1),
    "true": _constant("true", 0),
    "unset": _unset,
}
