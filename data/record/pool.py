"""The recording processes as one stream of messages: start them, hear them, end them, leave nothing behind."""

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from agentworld.data.errors import ContentError

# All that a worker inherits; its sessions inherit nothing of it.
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")


class ModeRefused(Exception):
    """The system does not permit this way of isolation; the text is its reason."""


class Pool:
    """`workers` processes in one isolation mode (context manager).

    Raises:
        ModeRefused: on entering, when a worker cannot set the mode up.
        ContentError: a worker ended before its work did, or said nothing for `silence` seconds.
    """

    def __init__(self, mode: str, workers: int, silence: float) -> None:
        self.mode = mode
        self.silence = silence
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []
        self._folders: list[str] = []
        self._workers = workers
        self.programs: dict[str, str] = {}
        self.read_only = False

    def __enter__(self) -> "Pool":
        try:
            for _ in range(self._workers):
                self._start()
            ready = [message["ready"] for message in self._first_messages()]
        except BaseException:
            self.close()
            raise
        shared = set.intersection(*(set(one["programs"]) for one in ready))
        self.programs = {name: text for name, text in ready[0]["programs"].items() if name in shared}
        self.read_only = all(one["read_only"] for one in ready)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def run(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Give each worker its share of the job and yield the messages about sessions in the order they come."""
        for number, process in enumerate(self._processes):
            share = job | {"first": number, "step": self._workers, "programs": sorted(self.programs)}
            with suppress(BrokenPipeError):  # a worker that has died is reported where its messages are read
                process.stdin.write(json.dumps(share).encode() + b"\n")
                process.stdin.flush()
        yield from self._messages(set(range(self._workers)))

    def close(self) -> None:
        """End every worker, its sessions and its folder. Safe to call twice."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdin.close()
            process.stdout.close()
        for file in self._errors:
            file.close()
        for folder in self._folders:
            shutil.rmtree(folder)
        self._processes, self._errors, self._folders = [], [], []

    def _start(self) -> None:
        folder = tempfile.mkdtemp(prefix="agentworld-record-")
        self._folders.append(folder)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._errors.append(errors)
        process = subprocess.Popen(
            [sys.executable, "-m", "agentworld.data.record.worker", self.mode, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            start_new_session=True,  # Ctrl-C is for the parent, which ends the workers in order
        )
        self._processes.append(process)

    def _first_messages(self) -> list[dict[str, Any]]:
        messages = []
        for number, process in enumerate(self._processes):
            message = self._parse(number, process.stdout.readline())
            if "failed" in message:
                raise ModeRefused(message["failed"])
            messages.append(message)
        return messages

    def _messages(self, running: Collection[int]) -> Iterator[dict[str, Any]]:
        left = {number: b"" for number in running}  # the beginning of a line that has not ended yet
        with selectors.DefaultSelector() as selector:
            for number in left:
                selector.register(self._processes[number].stdout, selectors.EVENT_READ, number)
            while left:
                events = selector.select(self.silence)
                if not events:
                    raise ContentError(f"record: no worker said anything for {self.silence:.0f} s; use fewer workers")
                for key, _ in events:
                    number = key.data
                    chunk = os.read(key.fd, 1 << 16)
                    *lines, rest = (left[number] + chunk).split(b"\n")
                    left[number] = rest
                    for line in [*lines, b""] if not chunk else lines:
                        message = self._parse(number, line)
                        if "done" in message:
                            selector.unregister(key.fileobj)
                            del left[number]
                            break
                        yield message

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        if line:
            return json.loads(line)
        code = self._processes[number].wait()
        self._errors[number].seek(0)
        said = self._errors[number].read().decode(errors="replace").strip().splitlines()
        raise ContentError(f"record: worker {number} ended with {code}: {said[-1] if said else 'no message'}")
