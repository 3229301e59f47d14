"""What a turn of the history teaches where the scripted teacher could not foresee it, and what it makes unknown.

A turn that was not understood may have changed more than it shows. What it may have changed is read from its words,
cautiously: commands that only print change nothing, named writers change what they name, anything else may have changed
every file; assignments and loops change the variables that they name, a function may have changed them all.
"""

import copy
import re

from agentworld.train.shell_commands import run
from agentworld.train.shell_session import ABSENT, FOLDER, Entry, Session, Unsure
from agentworld.train.shell_syntax import parse

READERS = frozenset(
    """
    awk basename cat cd cmp comm cut date diff dirname du echo egrep expr false fold grep head hostname id jobs ls nl od
    printf pwd rev rmdir seq sleep sort stat tac tail test tr true uname uniq wc whoami [ :
    """.split()  # noqa: SIM905
)
NAMED_WRITERS = frozenset("chmod cp ln mkdir mv rm sed tee touch truncate".split())  # noqa: SIM905
_SHELL_WORDS = re.compile(r"^(?:(?:do|then|else|elif|if|while|until|!|\{)\s+)+")
_COMPOUND = ("for", "done", "fi", "case", "esac", "in", "}", "{", "EOF")
_ASSIGNED = re.compile(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=|\bfor\s+(\w+)\s+in\b|\bread\s+(?:-r\s+)?(\w+)")
_FUNCTION = re.compile(r"(\w+)\s*\(\)\s*\{(.*)\}", re.DOTALL)
_ERROR = re.compile(r"^(?:bash|[a-z]+): ", re.MULTILINE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"`]*\"")
_ARITHMETIC = re.compile(r"\$\(\([^()]*\)\)")
_HARMLESS_REDIRECT = re.compile(r"[12&]?>\s*/dev/null|2>&1")


def learn(session: Session, typed: str | None, seen: tuple[str, str] | None) -> None:
    """Bring the session up to date with a turn that was not foreseen.

    Args:
        typed: what the action typed; None where the action is not read.
        seen: (output, prompt) as `Session.split` gives them; None where the observation is not read.
    """
    if typed is None or seen is None:
        session.forget_files()
        session.forget_variables()
        session.functions.clear()
        session.status = session.previous = None
        return
    output, prompt = seen
    if not _retry(session, typed, output, prompt):
        words = _plain_words(session, typed)
        _forget(session, typed)
        session.status = _status(typed, output)
        _move(session, words, prompt)
        if words is not None:
            _look(session, words, output)


def _retry(session: Session, typed: str, output: str, prompt: str) -> bool:
    """A silent rm, mv or cp of something unknown: it was there. Foreseen, if that explains the turn."""
    words = _plain_words(session, typed)
    if words is None or words[0] not in ("rm", "mv", "cp") or len(words) < 2:
        return False
    source = words[2] if words[1].startswith("-") and len(words) > 2 else words[1]
    after = copy.deepcopy(session)
    after.put(after.resolve(source), FOLDER if "-r" in words else Entry("file"))
    try:
        answer = run(after, parse(typed)[0])
    except Unsure:
        return False
    if (answer.output, after.prompt) != (output, prompt):
        return False
    session.entries, session.status = after.entries, answer.status
    return True


def _plain_words(session: Session, typed: str) -> list[str] | None:
    """The words of a single simple command without redirection, expanded; else None."""
    commands = parse(typed)
    if commands is None or len(commands) != 1 or commands[0].redirect:
        return None
    try:
        return [text for word in commands[0].words for text in session.expand(word)] or None
    except Unsure:
        return None


def _heads(typed: str) -> list[str]:
    """The first word of every command in the text, assignments and shell keywords left out."""
    text = _ARITHMETIC.sub("0", typed)
    text = _QUOTED.sub(lambda quoted: "w" if "$(" not in quoted[0] else quoted[0][1:-1], text)
    heads = []
    for piece in re.split(r"[;|&\n()]+|\$\(", _HARMLESS_REDIRECT.sub("", text)):
        words = _SHELL_WORDS.sub("", piece.strip()).split()
        while words and re.match(r"[A-Za-z_]\w*\+?=", words[0]):
            words.pop(0)
        if words and words[0] not in (*_COMPOUND, "<", "$"):
            heads.append(words[0])
    return heads


def _only_prints(session: Session, typed: str) -> bool:
    heads = _heads(typed)
    writes = ">" in _HARMLESS_REDIRECT.sub("", typed) or "-exec" in typed or "-delete" in typed
    return not writes and all(head in READERS or session.functions.get(head, False) for head in heads)


def _forget(session: Session, typed: str) -> None:
    function = _FUNCTION.fullmatch(typed)
    if function:
        session.functions[function[1]] = _only_prints(session, function[2]) and not _ASSIGNED.search(function[2])
        return
    for names in _ASSIGNED.findall(typed):
        session.variables[next(filter(None, names))] = None
    if _only_prints(session, typed):
        return
    heads = _heads(typed)
    if any(head in session.functions and not session.functions[head] for head in heads):
        session.forget_variables()
    named = all(head in READERS or head in NAMED_WRITERS for head in heads) and not re.search(r"[*?$`{\[]|-r\b", typed)
    if named:
        session.forget_paths(re.findall(r"[\w./~-]+", typed))
    else:
        session.forget_files()
    if not named and not all(re.fullmatch(r"[\w./-]+", head) for head in heads):
        session.forget_variables()
    if any(head in ("source", ".", "eval", "export", "declare", "local", "unset", "set", "alias") for head in heads):
        session.forget_variables()


def _status(typed: str, output: str) -> int | None:
    """The exit status where the turn shows it, else None."""
    if _FUNCTION.fullmatch(typed):
        return 0
    if re.search(r"\n|\d>|\b(?:for|while|until|if|case)\b|&|\[", _QUOTED.sub("w", typed)):
        return None
    heads = _heads(typed)
    if not heads:
        return 0 if _ASSIGNED.match(typed) and "$(" not in _ARITHMETIC.sub("", typed) else None
    if "$(" in _ARITHMETIC.sub("", typed):
        return None
    last = heads[-1]
    if _ERROR.search(output):
        if len(heads) > 1:
            return None
        if output.endswith(": command not found\n"):
            return 127
        known = {"ls": 2, "grep": 2, **dict.fromkeys(("cat", "cd", "cp", "mkdir", "mv", "rm", "rmdir"), 1)}
        return known.get(last)
    if last in ("grep", "egrep"):
        return 0 if output and output != "0\n" else 1
    if last in ("cmp", "diff", "test", "false", "expr"):
        return None
    return 0 if last in READERS or last in NAMED_WRITERS else None


def _move(session: Session, words: list[str] | None, prompt: str) -> None:
    before = session.folder
    session.go(prompt)
    if session.folder != before:
        session.previous = before if words is not None and words[0] == "cd" else None
        session.put(session.folder, FOLDER)


def _look(session: Session, words: list[str], output: str) -> None:
    """What a reading command shows: contents, listings, what is not there."""
    name, arguments = words[0], words[1:]
    last = arguments[-1] if arguments else "."
    path = session.resolve(last)
    known = path in ("~", session.folder)
    if output == f"{name}: {last}: No such file or directory\n" or (
        output.startswith((f"{name}: cannot ", f"bash: {name}: {last}: "))
        and output.endswith(f"{last}{'' if name == 'cd' else chr(39)}: No such file or directory\n")
    ):
        if len(arguments) == 1 and name in ("cat", "ls", "cd", "rm") and not known:
            session.put(path, ABSENT)
    elif name == "cat" and len(arguments) == 1:
        if output == f"cat: {last}: Is a directory\n":
            session.put(path, FOLDER if session.look(path).kind != "folder" else session.look(path))
        elif not _ERROR.search(output):
            session.put(path, Entry("file", output))
    elif name == "mkdir" and len(arguments) == 1 and output.endswith(": File exists\n") and not known:
        session.put(path, Entry("present"))
    elif name == "ls" and (not arguments or (len(arguments) == 1 and last in ("-1", "-p"))):
        _list(session, session.folder, output, marked=last == "-p")
    elif name == "ls" and len(arguments) == 1 and not last.startswith("-") and session.look(path).kind == "folder":
        _list(session, path, output, marked=False)
    elif words == ["pwd"] and session.folder.startswith("~") and output.endswith(f"{session.folder[1:]}\n"):
        session.home = output.removesuffix(f"{session.folder[1:]}\n")


def _list(session: Session, folder: str, output: str, marked: bool) -> None:
    """The names of a listing: they are there, and no other name that is not hidden."""
    names = output.split()
    if not all(re.fullmatch(r"[\w.-]+/?", name) for name in names) or (not marked and "/" in output):
        return
    prefix = folder.rstrip("/") + "/"
    listed = {prefix + name.rstrip("/"): name.endswith("/") for name in names}
    for path in [known for known in session.entries if known.startswith(prefix) and "/" not in known[len(prefix) :]]:
        if path not in listed and not path[len(prefix) :].startswith("."):
            session.put(path, ABSENT)
    for path, is_folder in listed.items():
        kind = "present" if not marked else "folder" if is_folder else "file"
        if session.look(path).kind not in (kind, "file", "folder"):
            session.entries[path] = Entry(kind)
    entry = session.look(folder)
    session.entries[folder] = Entry("folder", None, entry.complete, True)
