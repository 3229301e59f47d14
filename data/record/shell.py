"""One interactive bash on a pseudo-terminal, driven a line at a time.

The end of a turn is not guessed from the text, and nothing is planted in the shell (no marker in PS1, no
PROMPT_COMMAND), so no command can see or print it. A shell is at its prompt when four things hold: all its terminal
output has been read, readline has taken the terminal out of canonical mode, the foreground process group is the
shell's own, and the shell process sleeps (it does so only in the read for the next key). Output that looks like a
prompt therefore never ends a turn.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time

from agentworld.data.record.isolation import HOST, USER, Place

COLUMNS, ROWS = 400, 50  # wide: neither readline nor ls breaks a line
PROMPT_START, PROMPT_END, CONTINUATION = f"{USER}@{HOST}:".encode(), b"$ ", b"> "
_SETTLE_SECONDS = 0.02  # where /proc is absent, silence of this length stands for the sleeping shell
_HAS_PROC = os.path.exists("/proc/self/stat")


class Dropped(Exception):
    """The session cannot be used; the text is the reason under which it is counted."""


class Shell:
    """A running bash session.

    Args:
        place: where it runs; HOME must be ready.
        timezone: value of TZ in the session.
        command_timeout: seconds a command may take.
        max_output: characters (bytes while reading) a turn may print.
    """

    def __init__(self, place: Place, timezone: str, command_timeout: float, max_output: int) -> None:
        self.command_timeout = command_timeout
        self.max_output = max_output
        environment = {
            "HOME": place.home,
            "LANG": "C.UTF-8",
            "PATH": place.path,
            "TABSIZE": "0",  # ls fills its columns with spaces, not with a mixture of tabs and spaces
            "TERM": "dumb",  # no colours, no bracketed paste
            "TZ": timezone,
            "USER": USER,
        }
        if place.git_config is not None:
            environment["GIT_CONFIG_SYSTEM"] = place.git_config
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            _become_bash(place, environment)
        try:
            as_root = os.geteuid() == 0 and place.drop_to is None and place.root is None
            self._read_until_prompt(b"# " if as_root else b"$ ", echoed=True)  # bash's own first prompt
            self.run(f"PS1='{USER}@{HOST}:\\w$ '")
        except BaseException:
            self.close()
            raise

    def run(self, command: str) -> str:
        """Type a command, line by line, and return everything the terminal showed: echo, output and new prompt.

        The only change to the text is "\\r\\n" -> "\\n" (the terminal's line end).

        Raises:
            Dropped: a limit was exceeded, the shell ended, or the command was not complete.
        """
        assert all(char.isprintable() or char == "\n" for char in command), f"a control key in {command!r}"
        shown = bytearray()
        lines = command.split("\n")
        deadline = time.monotonic() + self.command_timeout
        for number, line in enumerate(lines, start=1):
            os.write(self.terminal, line.encode() + b"\n")
            end = CONTINUATION if number < len(lines) else PROMPT_END
            shown += self._read_until_prompt(end, deadline=deadline, before=len(shown))
        if PROMPT_START not in shown[shown.rfind(b"\n") + 1 :]:
            raise Dropped("no prompt")
        try:
            text = shown.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            raise Dropped("not UTF-8") from None
        if len(text) > self.max_output:
            raise Dropped("output limit")
        return text

    def close(self) -> None:
        """Kill the shell and everything it started, and wait until all are gone. Safe to call twice."""
        if self.terminal >= 0:
            # Without /proc the orphans cannot be found, and bash passes a hang-up on to its jobs.
            os.kill(self.pid, signal.SIGKILL if _HAS_PROC else signal.SIGHUP)
            os.close(self.terminal)
            self.terminal = -1
            os.waitpid(self.pid, 0)
            reap_descendants()

    def _read_until_prompt(self, end: bytes, deadline: float | None = None, before: int = 0, echoed=False) -> bytes:
        deadline = time.monotonic() + self.command_timeout if deadline is None else deadline
        text = bytearray()
        pause = 0.0
        while True:
            if select.select([self.terminal], [], [], pause)[0]:
                text += self._read()
                if len(text) + before > 2 * self.max_output + 4096:
                    raise Dropped("output limit")
                pause = 0.0
                continue
            # The newline that we typed has been echoed, so this is the state after it. An incomplete command shows
            # the continuation prompt where the prompt was due.
            if (echoed or b"\n" in text) and text.endswith((end, CONTINUATION)) and self._is_idle():
                if select.select([self.terminal], [], [], 0)[0]:
                    continue
                if not text.endswith(end):
                    raise Dropped("unfinished command")
                return bytes(text)
            if time.monotonic() > deadline:
                raise Dropped("time limit")
            pause = min(max(2 * pause, 0.00005), 0.005)

    def _read(self) -> bytes:
        try:
            chunk = os.read(self.terminal, 65536)
        except OSError:  # Linux says EIO when the last process has closed the terminal
            chunk = b""
        if not chunk:
            raise Dropped("shell ended")
        return chunk

    def _is_idle(self) -> bool:
        if termios.tcgetattr(self.terminal)[3] & termios.ICANON:
            return False
        if os.tcgetpgrp(self.terminal) != self.pid:
            return False
        if not _HAS_PROC:
            return not select.select([self.terminal], [], [], _SETTLE_SECONDS)[0]
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split(None, 1)[0] == b"S"


def reap_descendants() -> None:
    """Kill and collect every process that a session left to this one, which is a child subreaper on Linux."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in _children():
                os.kill(child, signal.SIGKILL)  # ours and not collected, so the id cannot have been reused
            os.waitpid(-1, 0)


def _children() -> list[int]:
    children = f"/proc/self/task/{os.getpid()}/children"
    if os.path.exists(children):
        with open(children) as file:
            return [int(pid) for pid in file.read().split()]
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if _HAS_PROC else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def _become_bash(place: Place, environment: dict[str, str]) -> None:
    try:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        place.enter()
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "+o", "history", "+H", "-i"], environment)
    finally:
        os._exit(127)
