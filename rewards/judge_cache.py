"""Verdicts that were paid for once: a SQLite file that ranks and later starts of a run share.

A row is written when a reply is read, in a transaction of its own, so a kill costs no verdict. The journal is SQLite's
rollback journal, not the write-ahead log: that one needs shared memory, which ranks on different nodes do not have.
Nothing waits for the disk (`synchronous = off`): a power failure may cost the file, which is a cache.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError
from agentworld.rewards.rubric import HIGHEST, LOWEST, RubricScores

LOCK_SECONDS = 60.0  # how long a write waits for those of other ranks
_TABLE = """
create table if not exists verdicts (
    key text primary key, model text not null, scores text not null, reply text not null,
    prompt_tokens integer not null, completion_tokens integer not null, created real not null
) without rowid
"""


@dataclass(frozen=True)
class Judged:
    """One reply of one judge. `scores`: of a pair its choice, one of `preference.CHOICES`; of a question about
    verifiers the answer as JSON (rewards/synthesis_prompt.py). Tokens are those that the endpoint counted."""

    scores: RubricScores | str
    reply: str
    prompt_tokens: int
    completion_tokens: int


def key_of(model: str, messages: Sequence[dict[str, str]], sampling: dict[str, Any]) -> str:
    """SHA-256 over all that decides a verdict: the model, the messages (prompt files, history, truth, prediction, a
    pair's order) and how the reply is sampled. Neither the endpoint's address nor its key is part of it: a judge may
    move."""
    content = json.dumps([model, list(messages), sampling], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class JudgeCache:
    """Verdicts by key, in the file `path`.

    Raises:
        ContentError: on construction and in every method, when the file cannot be used as a cache.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._run(_TABLE)

    def get(self, keys: Sequence[str]) -> dict[str, Judged]:
        """The verdicts that are known."""
        query = "select scores, reply, prompt_tokens, completion_tokens from verdicts where key = ?"
        found = {}
        for key in keys:
            for row in self._run(query, (key,)):
                found[key] = self._judged(key, *row)
        return found

    def put(self, key: str, model: str, judged: Judged) -> None:
        """Keep a verdict; the first one of a key stays."""
        value = judged.scores if isinstance(judged.scores, str) else astuple(judged.scores)
        row = (key, model, json.dumps(value), judged.reply, judged.prompt_tokens)
        row = (*row, judged.completion_tokens, time.time())
        self._run("insert or ignore into verdicts values (?, ?, ?, ?, ?, ?, ?)", row)

    def _judged(self, key: str, scores: Any, reply: Any, *tokens: Any) -> Judged:
        """A row as it was put; SQLite itself holds no column to its type."""
        try:
            value = json.loads(scores)
            judged = Judged(value if isinstance(value, str) else RubricScores(*map(float, value)), reply, *tokens)
        except (ValueError, TypeError, RecursionError):
            judged = None
        right = judged is not None and isinstance(reply, str) and all(isinstance(count, int) for count in tokens)
        if not right or not (isinstance(value, str) or all(LOWEST <= score <= HIGHEST for score in value)):
            raise ContentError(
                f"{self.path}: the verdict {key[:12]} is damaged; delete the file, or set reward.judge.cache"
            )
        return judged

    def close(self) -> None:
        """Give the file back; the next use opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple]:
        """One statement, one transaction."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self.path, timeout=LOCK_SECONDS)
                self._connection.execute("pragma synchronous = off")
            with self._connection:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ContentError(
                f"{self.path}: {error}; the judge's cache must be a SQLite file of its own on a file system with "
                "locks: delete it, or set reward.judge.cache"
            ) from None
