"""What is known of a shell session: folder, variables, exit status and files, as far as the session itself shows.

The scripted teacher's memory. It never guesses: what the history does not determine is `UNKNOWN`, and a question about
it raises `Unsure`. Paths are kept as the prompt shows them ("~/docs", "/tmp").
"""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentworld.data.record.isolation import HOME, HOST, USER
from agentworld.train.shell_syntax import Word

STANDARD_FOLDERS = ("/", "/tmp", "/usr", "/etc", "/home")
_PROMPT = re.compile(r"(?P<owner>[\w.-]+@[\w.-]+):(?P<folder>[~/][\w./-]*)(?P<sign>[$#]) $")
_SPLITTING = re.compile(r"[\s*?\[\]]")


class Unsure(Exception):
    """The history does not determine the answer."""


@dataclass(frozen=True)
class Entry:
    """What stands at a path. `kind`: file | folder | absent | present (either) | unknown.

    `content` of a file is None where it is unknown. Of a folder, `complete` says that everything in it is known, hidden
    names too; `listed`, that everything but hidden names is.
    """

    kind: str
    content: str | None = None
    complete: bool = False
    listed: bool = False


UNKNOWN, ABSENT, FOLDER = Entry("unknown"), Entry("absent"), Entry("folder")
NEW_FOLDER = Entry("folder", complete=True, listed=True)


@dataclass
class Session:
    """A session that starts as the recorder starts one: in HOME, with its prompt, nothing set, status 0."""

    owner: str = f"{USER}@{HOST}"
    folder: str = "~"
    sign: str = "$"
    home: str = HOME
    previous: str | None = None  # the folder that `cd -` goes to
    status: int | None = 0
    variables: dict[str, str | None] = field(default_factory=dict)  # None: a value that is not known
    all_variables_known: bool = True
    entries: dict[str, Entry] = field(default_factory=dict)
    functions: dict[str, bool] = field(default_factory=dict)  # name -> whether it only prints

    @property
    def prompt(self) -> str:
        return f"{self.owner}:{self.folder}{self.sign} "

    def adopt_prompt(self, observation: str) -> None:
        """Take user, host and sign from the prompt that an observation ends in, if it does; HOME is the usual one."""
        prompt = _PROMPT.fullmatch(observation[observation.rfind("\n") + 1 :])
        if prompt:
            self.owner, self.sign = prompt["owner"], prompt["sign"]
            user = self.owner.split("@")[0]
            self.home = {USER: HOME, "root": "/root"}.get(user, f"/home/{user}")

    def split(self, typed: str, observation: str) -> tuple[str, str] | None:
        """(output, prompt) of an observation that is the echo of what was typed, output and a prompt; else None.

        The echo of further lines (each behind the shell's continuation prompt) counts as output.
        """
        first = typed.partition("\n")[0] + "\n"
        if not observation.startswith(first):
            return None
        rest = observation[len(first) :]
        start = rest.rfind(f"{self.owner}:")
        return (rest[:start], rest[start:]) if start >= 0 and _PROMPT.fullmatch(rest, start) else None

    def go(self, prompt: str) -> None:
        """Be where a prompt says."""
        self.folder = _PROMPT.fullmatch(prompt)["folder"]

    # ---- variables and words

    def value(self, name: str) -> str:
        """The value of a variable; a lower-case name that nothing has set is empty."""
        if name == "?":
            if self.status is None:
                raise Unsure
            return str(self.status)
        fixed = {"HOME": self.home, "USER": self.owner.split("@")[0], "PWD": self.absolute(self.folder)}
        value = fixed.get(name, self.variables.get(name))
        if value is None:
            if name in self.variables or name != name.lower() or not self.all_variables_known:
                raise Unsure
            return ""
        return value

    def expand(self, word: Word, splitting: bool = True) -> list[str]:
        """The words that one word becomes: none for an unquoted empty variable, several for one that holds spaces."""
        text = ""
        for part in word:
            if part.kind == "tilde":
                text += self.home
            elif part.kind == "text":
                text += part.text
            else:
                value = self.value(part.text)
                if splitting and part.kind == "variable" and (_SPLITTING.search(value) or not value):
                    if len(word) > 1 or re.search(r"[*?\[\]]", value):
                        raise Unsure
                    return value.split()
                text += value
        return [text]

    # ---- paths

    def absolute(self, path: str) -> str:
        return self.home + path[1:] if path.startswith("~") else path

    def resolve(self, text: str) -> str:
        """A path as typed, as the prompt would show it."""
        path = posixpath.normpath(posixpath.join(self.absolute(self.folder), text))
        path = path[1:] if path.startswith("//") else path  # normpath keeps two leading slashes (POSIX 4.13)
        return "~" + path[len(self.home) :] if path == self.home or path.startswith(self.home + "/") else path

    def parent(self, path: str) -> str:
        return self.resolve(posixpath.dirname(self.absolute(path)))

    def look(self, path: str) -> Entry:
        """What stands at a resolved path."""
        if path in self.entries:
            return self.entries[path]
        if path in ("~", *STANDARD_FOLDERS) or f"{self.folder}/".startswith(f"{path}/"):
            return FOLDER
        around = self.look(self.parent(path))
        hidden = posixpath.basename(path).startswith(".")
        if around.kind == "absent" or around.complete or (around.listed and not hidden):
            return ABSENT
        return UNKNOWN

    def require(self, path: str, *kinds: str) -> Entry:
        """The entry, if its kind is one of `kinds`; raises Unsure if it is not known to be."""
        entry = self.look(path)
        if entry.kind not in kinds:
            raise Unsure
        return entry

    def put(self, path: str, entry: Entry) -> None:
        """Record what now stands at a path. A path that was removed takes everything below it along."""
        if entry.kind in ("absent", "unknown"):
            self.entries = {known: e for known, e in self.entries.items() if not known.startswith(f"{path}/")}
        self.entries[path] = entry

    def children(self, path: str) -> dict[str, Entry]:
        """Everything known to stand in a folder, by name; Unsure if one of them may or may not be there."""
        prefix = path.rstrip("/") + "/"
        found = {
            known[len(prefix) :]: entry
            for known, entry in self.entries.items()
            if known.startswith(prefix) and "/" not in known[len(prefix) :] and entry.kind != "absent"
        }
        if any(entry.kind == "unknown" for entry in found.values()):
            raise Unsure
        return found

    # ---- forgetting

    def forget_paths(self, words: Iterable[str]) -> None:
        """Whatever these words may name is unknown from now on."""
        for word in words:
            path = self.resolve(self.home + word[1:] if word.startswith("~") else word)
            if path not in ("~", self.folder, *STANDARD_FOLDERS):
                self.put(path, UNKNOWN)

    def forget_files(self) -> None:
        self.entries.clear()

    def forget_variables(self) -> None:
        self.variables.clear()
        self.all_variables_known = False
