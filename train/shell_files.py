"""The commands of the scripted teacher that walk, read, make and remove: what each does to a known session.

Each takes the session and the arguments, changes the session, and returns an Answer, or raises Unsure. Messages are
those of bash and GNU coreutils in a UTF-8 locale.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentworld.train.shell_session import ABSENT, FOLDER, NEW_FOLDER, Entry, Session, Unsure

NOT_NEEDED = "not needed"
MAX_SHOWN_WORDS = 8  # of a file's content in a thought
TERMINAL_COLUMNS = 400  # of the recorder's terminal
_PLAIN_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Answer:
    """`family`, `asks` and `knows` go into the trace; `output` is what the command prints."""

    family: str
    asks: str
    knows: str = NOT_NEEDED
    output: str = ""
    status: int = 0


def _cd(session: Session, arguments: list[str]) -> Answer:
    if len(arguments) > 1:
        raise Unsure
    target = arguments[0] if arguments else session.home
    output = ""
    if target == "-":
        if session.previous is None:
            raise Unsure
        path, output = session.previous, session.absolute(session.previous) + "\n"
    else:
        path = session.resolve(target)
    here = session.folder
    entry = session.look(path)
    if entry.kind in ("absent", "file") and target != "-":
        reason = "No such file or directory" if entry.kind == "absent" else "Not a directory"
        return Answer("error", f"go to {target}", state(target, entry), f"bash: cd: {target}: {reason}\n", 1)
    if entry.kind != "folder":
        raise Unsure
    session.previous, session.folder = here, path
    return Answer("cd", f"go to {target if arguments else 'home'}", f"at {here}", output)


def _pwd(session: Session, arguments: list[str]) -> Answer:
    if arguments:
        raise Unsure
    return Answer("pwd", "print folder", f"at {session.folder}", session.absolute(session.folder) + "\n")


def _read(session: Session, shown: str) -> tuple[Entry, str]:
    """A known file, or one known not to be readable, and the reason that a reading program gives ("" if it reads)."""
    entry = session.require(session.resolve(shown), "file", "folder", "absent")
    if entry.kind == "file":
        if entry.content is None or shown.endswith("/"):
            raise Unsure
        return entry, ""
    return entry, "Is a directory" if entry.kind == "folder" else "No such file or directory"


def read_files(session: Session, arguments: list[str]) -> Answer:
    numbered = arguments[:1] == ["-n"]
    names = arguments[1:] if numbered else arguments
    if not names or any(name.startswith("-") for name in names):
        raise Unsure
    output, known, status = "", [], 0
    for name in names:
        entry, reason = _read(session, name)
        output += f"cat: {name}: {reason}\n" if reason else entry.content
        known.append(state(name, entry))
        status = 1 if reason else status
    if numbered:
        if status:
            raise Unsure
        lines = output.splitlines(keepends=True)
        output = "".join(f"{number:6}\t{line}" for number, line in enumerate(lines, start=1))
    return Answer("error" if status else "cat", f"read {' '.join(names)}", ", ".join(known), output, status)


def _wc(session: Session, arguments: list[str]) -> Answer:
    if len(arguments) != 2 or arguments[0] not in ("-l", "-w", "-c"):
        raise Unsure
    option, name = arguments
    entry, reason = _read(session, name)
    if reason:
        raise Unsure
    what = {"-l": "lines", "-w": "words", "-c": "bytes"}[option]
    text = entry.content
    count = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode())}[option]
    return Answer("wc", f"count {what} of {name}", state(name, entry), f"{count} {name}\n")


def _grep(session: Session, arguments: list[str]) -> Answer:
    """A plain word in one file, with -c, -n or -v."""
    option = arguments.pop(0) if arguments and arguments[0] in ("-c", "-n", "-v") else ""
    if len(arguments) != 2 or not re.fullmatch(r"\w+", arguments[0]):
        raise Unsure
    pattern, name = arguments
    entry, reason = _read(session, name)
    if reason:
        raise Unsure
    lines = list(enumerate(entry.content.splitlines(), start=1))
    found = [(number, line) for number, line in lines if (pattern in line) != (option == "-v")]
    if option == "-c":
        output = f"{len(found)}\n"
    else:
        output = "".join(f"{number}:{line}\n" if option == "-n" else f"{line}\n" for number, line in found)
    status = 0 if found else 1
    return Answer("grep", f"find {pattern} in {name}", state(name, entry), output, status)


def _ls(session: Session, arguments: list[str]) -> Answer:
    option = arguments.pop(0) if arguments and arguments[0] in ("-1", "-a", "-p") else ""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        raise Unsure
    shown = arguments[0] if arguments else "."
    path = session.resolve(shown)
    entry = session.require(path, "folder", "absent")
    asks = f"list {shown}" if arguments else "list folder"
    if entry.kind == "absent":
        message = f"ls: cannot access '{shown}': No such file or directory\n"
        return Answer("error", asks, state(shown, entry), message, 2)
    if not (entry.complete if option == "-a" else entry.listed):
        raise Unsure
    found = session.children(path)
    if not all(map(_PLAIN_NAME.fullmatch, found)):
        raise Unsure
    if option == "-p" and any(child.kind == "present" for child in found.values()):
        raise Unsure
    names = sorted(name for name in found if option == "-a" or not name.startswith("."))
    known = f"{shown if arguments else path} holds {' '.join(names[:MAX_SHOWN_WORDS])}" if names else "folder is empty"
    if option == "-p":
        names = [f"{name}/" if found[name].kind == "folder" else name for name in names]
    if option == "-a":
        names = [".", "..", *names]
    line = ("\n" if option == "-1" else "  ").join(names)
    if len(line) >= TERMINAL_COLUMNS - 2:
        raise Unsure
    return Answer("ls", asks, known, f"{line}\n" if names else "")


def _mkdir(session: Session, arguments: list[str]) -> Answer:
    parents = arguments[:1] == ["-p"]
    if len(arguments) != 1 + parents or arguments[-1].startswith("-"):
        raise Unsure
    shown = arguments[-1]
    path = session.resolve(shown)
    asks = f"make {shown}"
    entry, around = session.look(path), session.look(session.parent(path))
    if parents:
        return _mkdir_parents(session, path, asks)
    if entry.kind in ("folder", "file", "present"):
        message = f"mkdir: cannot create directory \u2018{shown}\u2019: File exists\n"
        return Answer("error", asks, state(shown, entry), message, 1)
    if around.kind == "absent":
        message = f"mkdir: cannot create directory \u2018{shown}\u2019: No such file or directory\n"
        return Answer("error", asks, f"{shown.rstrip('/').rpartition('/')[0]} is absent", message, 1)
    if around.kind != "folder":
        raise Unsure
    session.put(path, NEW_FOLDER)
    return Answer("mkdir", asks)


def _mkdir_parents(session: Session, path: str, asks: str) -> Answer:
    missing = []
    while session.look(path).kind in ("absent", "unknown"):
        missing.append(path)
        path = session.parent(path)
    session.require(path, "folder")
    for one in reversed(missing):
        session.put(one, NEW_FOLDER if session.look(one).kind == "absent" else FOLDER)
    return Answer("mkdir", asks)


def _rm(session: Session, arguments: list[str]) -> Answer:
    options = {word for word in arguments if word.startswith("-")}
    names = [word for word in arguments if not word.startswith("-")]
    if len(names) != 1 or not options <= {"-r", "-f", "-rf", "-v"} or len(options) > 1:
        raise Unsure
    shown = names[0]
    path = session.resolve(shown)
    entry = session.look(path)
    recursive, forced = bool(options & {"-r", "-rf"}), bool(options & {"-f", "-rf"})
    asks = f"remove {shown}"
    if entry.kind == "absent" and not forced:
        message = f"rm: cannot remove '{shown}': No such file or directory\n"
        return Answer("error", asks, state(shown, entry), message, 1)
    if entry.kind == "folder" and not recursive:
        return Answer("error", asks, state(shown, entry), f"rm: cannot remove '{shown}': Is a directory\n", 1)
    if (entry.kind not in ("file", "folder", "absent") and not (forced and recursive)) or _holds(session, path):
        raise Unsure
    if "-v" in options and (entry.kind != "file" or not _PLAIN_NAME.fullmatch(shown)):
        raise Unsure
    session.put(path, ABSENT)
    return Answer("rm", asks, state(shown, entry, short=True), f"removed '{shown}'\n" if "-v" in options else "")


def _holds(session: Session, path: str) -> bool:
    return any(place is not None and f"{place}/".startswith(f"{path}/") for place in (session.folder, session.previous))


def _rmdir(session: Session, arguments: list[str]) -> Answer:
    shown = one(arguments)
    path = session.resolve(shown)
    entry = session.require(path, "folder", "absent")
    if entry.kind == "absent":
        message = f"rmdir: failed to remove '{shown}': No such file or directory\n"
        return Answer("error", f"remove {shown}", state(shown, entry), message, 1)
    if not entry.complete or session.children(path) or _holds(session, path):
        raise Unsure
    session.put(path, ABSENT)
    return Answer("rm", f"remove {shown}", f"{shown} is empty")


def _transfer(session: Session, name: str, arguments: list[str]) -> Answer:
    if len(arguments) != 2 or any(word.startswith("-") for word in arguments):
        raise Unsure
    shown, onto = arguments
    source, target = session.resolve(shown), session.resolve(onto)
    entry = session.require(source, "file", "absent")
    asks = f"{'move' if name == 'mv' else 'copy'} {shown} {onto}"
    if entry.kind == "absent":
        message = f"{name}: cannot stat '{shown}': No such file or directory\n"
        return Answer("error", asks, state(shown, entry), message, 1)
    if session.look(target).kind == "folder":
        target = session.resolve(f"{session.absolute(target)}/{source.rpartition('/')[2]}")
    elif onto.endswith("/") or session.look(session.parent(target)).kind != "folder":
        raise Unsure
    session.require(target, "file", "absent", "unknown")
    if source == target:
        raise Unsure
    session.put(target, entry)
    if name == "mv":
        session.put(source, ABSENT)
    return Answer(name, asks, f"{shown} is a file")


def _touch(session: Session, arguments: list[str]) -> Answer:
    shown = one(arguments)
    path = session.resolve(shown)
    session.require(session.parent(path), "folder")
    entry = session.require(path, "file", "absent", "unknown")
    session.put(path, {"file": entry, "absent": Entry("file", "")}.get(entry.kind, Entry("file")))
    return Answer("write", f"make {shown}")


def one(words: list[str]) -> str:
    if len(words) != 1 or words[0].startswith("-"):
        raise Unsure
    return words[0]


def state(shown: str, entry: Entry, short: bool = False) -> str:
    """What stands at a path, in words; a long content is only counted."""
    if entry.kind != "file" or short:
        article = "" if entry.kind in ("absent", "present") else "a "
        return f"{shown} is {article}{entry.kind}"
    lines = entry.content.splitlines()
    if not lines:
        return f"{shown} is empty"
    if len(entry.content.split()) > MAX_SHOWN_WORDS:
        return f"{shown} holds {len(lines)} lines"
    return f"{shown} holds {' / '.join(lines)}"


FILE_COMMANDS: dict[str, Callable[[Session, list[str]], Answer]] = {
    "cat": read_files,
    "cd": _cd,
    "cp": lambda session, arguments: _transfer(session, "cp", arguments),
    "grep": _grep,
    "ls": _ls,
    "mkdir": _mkdir,
    "mv": lambda session, arguments: _transfer(session, "mv", arguments),
    "pwd": _pwd,
    "rm": _rm,
    "rmdir": _rmdir,
    "touch": _touch,
    "wc": _wc,
}
