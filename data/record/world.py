"""What the command generator believes about a session, and the few words it speaks.

The vocabulary is small on purpose: each word becomes one token of a tokenizer trained on the recordings, which is what
lets a model of a million parameters learn to copy from the history in minutes.
"""

import random
from dataclasses import dataclass, field

Path = tuple[str, ...]  # below HOME

# fmt: off
WORDS = (
    "red", "blue", "green", "gold", "black", "white", "fox", "dog", "bird", "fish", "bear", "wolf", "tree", "leaf",
    "rose", "corn", "sun", "moon", "star", "rain", "snow", "wind", "fire", "lake", "hill", "road", "door", "book",
    "page", "card", "coin", "ship", "bell", "drum", "ring", "rope", "salt", "milk", "lime", "plum",
)
FILES = (
    "a.txt", "b.txt", "c.txt", "notes.txt", "list.txt", "data.txt", "todo.txt", "out.txt", "names.txt", "items.txt",
)
# fmt: on
DIRS = ("docs", "src", "lib", "logs", "work", "old", "new", "pics")
VARIABLES = ("x", "y", "n", "name", "color")
FUNCTIONS = ("greet", "show", "twice")
MISSING = ("none.txt", "lost.txt")  # never created
UNKNOWN_COMMANDS = ("foo", "bar", "helo", "lss")  # no word of WORDS: some systems have a program `red`
OUTSIDE = ("/", "/tmp", "/usr")


@dataclass
class World:
    """Folders, files with their lines, variables and the rest of a session as the generator believes them to be.

    A belief may be wrong (a command failed in a way not foreseen): that makes a duller command, never a wrong record.
    """

    rng: random.Random
    files: dict[Path, list[str]] = field(default_factory=dict)
    folders: set[Path] = field(default_factory=lambda: {()})
    here: Path | None = ()  # None: outside of HOME
    previous: Path | None = None
    variables: dict[str, str | None] = field(default_factory=dict)  # None: a value that nobody can foresee
    functions: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    failed: bool = False  # the last command's exit status was not 0
    jobs: int = 0
    repository: Path | None = None
    commits: int = 0
    staged: bool = False
    branches: list[str] = field(default_factory=list)
    scripts: dict[Path, str] = field(default_factory=dict)  # -> how it is run

    def words(self, low: int = 1, high: int = 3) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(low, high)))

    def word(self) -> str:
        return self.rng.choice(WORDS)

    def number(self, high: int = 99) -> int:
        return self.rng.randint(0, high)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def text(self, path: Path) -> str:
        """How the path is written from the present folder."""
        if self.here is not None and path[: len(self.here)] == self.here and path != self.here:
            return "/".join(path[len(self.here) :])
        return "/".join(("~", *path))

    def local_files(self) -> list[Path]:
        return sorted(path for path in self.files if path[:-1] == self.here)

    def local_folders(self) -> list[Path]:
        return sorted(path for path in self.folders if path and path[:-1] == self.here)

    def some_file(self, local: float = 0.85) -> Path | None:
        """A file that exists, mostly in the present folder; the last one written comes up often."""
        near = self.local_files()
        pool = near if near and self.chance(local) else sorted(self.files)
        if not pool:
            return None
        newest = next(reversed(self.files))
        return newest if newest in pool and self.chance(0.3) else self.rng.choice(pool)

    def target_file(self) -> Path | None:
        """A file to write: in the present folder, now and then in one below it; new or existing. None outside HOME."""
        if self.here is None:
            return None
        folders = self.local_folders()
        folder = self.rng.choice(folders) if folders and self.chance(0.15) else self.here
        return (*folder, self.rng.choice(FILES))

    def some_folder(self) -> Path | None:
        folders = self.local_folders()
        return self.rng.choice(folders) if folders else None

    def line_word(self, path: Path, known: float = 0.7) -> str:
        """A word to look for: mostly one of the file."""
        present = [word for word in " ".join(self.files[path]).split() if word.isalnum()]
        return self.rng.choice(present) if present and self.chance(known) else self.word()

    def set_file(self, path: Path, lines: list[str]) -> None:
        self.files.pop(path, None)  # so that the last key is the file written last
        self.files[path] = lines

    def remove_folder(self, path: Path) -> None:
        depth = len(path)
        self.folders = {folder for folder in self.folders if folder[:depth] != path}
        self.files = {file: lines for file, lines in self.files.items() if file[:depth] != path}
        self.scripts = {file: how for file, how in self.scripts.items() if file[:depth] != path}
        if self.repository is not None and self.repository[:depth] == path:
            self.repository, self.commits, self.staged, self.branches = None, 0, False, []

    def holds_present(self, path: Path) -> bool:
        """Whether removing or moving the folder would pull it from under the shell."""
        return any(place is not None and place[: len(path)] == path for place in (self.here, self.previous))

    def fail(self, command: str) -> str:
        self.failed = True
        return command
