"""Duplicates over a whole corpus, and what overlaps with held-out data: one pass, memory flat in the size of the input.

Every trajectory leaves a fingerprint in an index on disk (SQLite in a temporary folder, about as large as the words of
the input); what is dropped is settled when all have been seen, so it depends on ids and content only: not on the order
of the input, the files it stood in, or the number of workers. In this order:

    held_out    its split group is held out (`held_out.py`).
    exact       its turns, actions and observations, equal those of another; the smallest id stays.
    prefix      its turns are the first of a longer one, which holds all that it could teach; the longest stays (of
                equally long ones the pair names the smallest id). Logs that are saved after every step are such.
    near        by ascending id: the Jaccard similarity of its word shingles to one that stays is at least `threshold`.
                What was dropped is compared with nothing, so each that is dropped is near to one that stays, and no two
                that stay are near. The pair names the smallest id.

Pairs to compare for `near` come from MinHash (`fingerprints.py`) and are then compared shingle by shingle: none is
dropped by an estimate, and at most 1 in 1,000 pairs at the threshold is not found. System prompts and `meta` are not
compared, so rows of AgentWorldBench (prefixes of one trajectory, each with its own target) do not belong in here.

    with DuplicateIndex(settings, read_held_out(paths)) as index:
        index.add(read_jsonl(path), workers=2)
        report = index.resolve().to_dict()
        for trajectory, stays in zip(read_jsonl(path), index.kept(), strict=True): ...
"""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.fingerprints import PERMUTATIONS, Fingerprint, band_keys, band_rows, fingerprints, jaccard
from agentworld.data.held_out import HeldOut
from agentworld.data.schema import Trajectory
from agentworld.data.settings import DuplicateSettings

KINDS = ("held_out", "exact", "prefix", "near")
PAIRS_KEPT = 1000  # of a kind, in the report; all are counted
GROUPS_KEPT = 1000  # held-out groups that were met, in the report
SLACK = 0.2  # under the threshold by estimate: not compared; over 4 standard deviations of 128 permutations at 0.8
CACHE_KIB = 64 << 10  # of SQLite

_TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE; PRAGMA locking_mode = EXCLUSIVE;
CREATE TABLE trajectories (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content BLOB NOT NULL, turns INTEGER,
    size INTEGER, split_group TEXT, kind TEXT, partner INTEGER);
CREATE TABLE sets (row INTEGER PRIMARY KEY, signature BLOB, shingles BLOB);
CREATE TABLE prefixes (content BLOB NOT NULL, owner INTEGER NOT NULL);
CREATE TABLE bands (key INTEGER, place INTEGER, row INTEGER, size INTEGER, PRIMARY KEY (key, place)) WITHOUT ROWID;
"""
_EXACT = """
UPDATE trajectories SET kind = 'exact', partner = (SELECT row FROM trajectories AS other
    WHERE other.content = trajectories.content AND other.kind IS NOT 'held_out' ORDER BY id LIMIT 1)
WHERE kind IS NULL AND id > (SELECT min(id) FROM trajectories AS other
    WHERE other.content = trajectories.content AND other.kind IS NOT 'held_out');
"""
_LONGEST = """
(SELECT owner FROM prefixes JOIN trajectories AS longer ON longer.row = owner
    WHERE prefixes.content = trajectories.content AND (longer.kind IS NULL OR longer.kind = 'prefix')
    ORDER BY longer.turns DESC, longer.id LIMIT 1)
"""
_PREFIX = f"""
UPDATE trajectories SET kind = 'prefix', partner = {_LONGEST} WHERE kind IS NULL AND {_LONGEST} IS NOT NULL;
"""


@dataclass(frozen=True)
class Pair:
    """`kept` is in the result. `similarity` is the Jaccard similarity of these two: 1 for exact duplicates, under the
    threshold for many prefixes, and where the duplicate of a duplicate was dropped."""

    dropped: str
    kept: str
    kind: str
    similarity: float


@dataclass(frozen=True)
class DuplicateCount:
    """Trajectories; read = kept + held_out + exact + prefix + near. `pairs`: the first of each kind by ascending id.
    `held_out_groups`: group -> trajectories dropped, by group."""

    read: int
    kept: int
    held_out: int
    exact: int
    prefix: int
    near: int
    pairs: list[Pair] = field(default_factory=list)
    held_out_groups: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class DuplicateIndex:
    """Add everything, resolve once, then ask what is kept.

    Args:
        folder: where the temporary index is made; None = the folder of the system (TMPDIR).

    Raises:
        RequestError: a setting out of range; the disk is full or cannot be written.
        ContentError: two trajectories of one id.
    """

    def __init__(
        self,
        settings: DuplicateSettings | None = None,
        held_out: HeldOut | None = None,
        folder: Path | None = None,
    ) -> None:
        self._settings = settings or DuplicateSettings()
        _check(self._settings)
        self._held_out = held_out or HeldOut()
        self._folder = tempfile.TemporaryDirectory(prefix="agentworld-duplicates-", dir=folder)
        self._database = sqlite3.connect(Path(self._folder.name, "index.sqlite3"), isolation_level=None)
        with self._disk():
            self._database.executescript(f"{_TABLES} PRAGMA cache_size = -{CACHE_KIB}; BEGIN;")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()

    def add(self, trajectories: Iterable[Trajectory], workers: int = 1) -> None:
        """Take in trajectories; `workers` processes make the fingerprints."""
        for found in fingerprints(trajectories, self._settings.shingle_words, workers):
            with self._disk():
                self._insert(found)

    def _insert(self, found: Fingerprint) -> None:
        *before, content = found.prefixes
        kind = "held_out" if found.split_group in self._held_out else None
        row = (found.id, content, len(found.prefixes), len(found.shingles), found.split_group, kind)
        columns = "id, content, turns, size, split_group, kind"
        try:
            cursor = self._database.execute(f"INSERT INTO trajectories ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise ContentError(f"id: {found.id!r} stands in the input twice; ids are unique") from None
        if kind is None:
            number = cursor.lastrowid
            self._database.executemany("INSERT INTO prefixes VALUES (?, ?)", ((each, number) for each in before))
            values = (number, found.signature.tobytes(), found.shingles.tobytes())
            self._database.execute("INSERT INTO sets VALUES (?, ?, ?)", values)

    def resolve(self) -> DuplicateCount:
        """Settle what is dropped; call it once, after the last `add`."""
        with self._disk():
            run = self._database.execute
            run("CREATE INDEX by_content ON trajectories (content, id)")
            run(_EXACT)
            run("CREATE INDEX by_prefix ON prefixes (content, owner)")
            run(_PREFIX)
            if self._settings.near:
                self._drop_near()
            run("CREATE INDEX by_kind ON trajectories (kind, id)")
            counts = Counter(dict(run("SELECT kind, count(*) FROM trajectories GROUP BY kind")))
            groups = run(
                "SELECT split_group, count(*) FROM trajectories WHERE kind = 'held_out' GROUP BY 1 ORDER BY 1 LIMIT ?",
                (GROUPS_KEPT,),
            )
            named = {kind: counts[kind] for kind in KINDS}
            return DuplicateCount(
                counts.total(), counts[None], **named, pairs=self._pairs(), held_out_groups=dict(groups)
            )

    def _drop_near(self) -> None:
        """Greedy by ascending id; `bands` holds those that stay, `place` counts them in the order of their ids."""
        rows_a_band = band_rows(self._settings.threshold)
        run, last, place = self._database.execute, "", 0
        page = (
            "SELECT row, id, size FROM trajectories WHERE kind IS NULL AND size > 0 AND id > ? ORDER BY id LIMIT 1000"
        )
        while found := run(page, (last,)).fetchall():
            for row, last, size in found:  # noqa: B007 (the next page begins after it)
                signature, shingles = self._sets_of(row)
                keys = band_keys(signature, rows_a_band)
                partner = self._near(signature, shingles, keys)
                if partner is None:
                    self._database.executemany(
                        "INSERT INTO bands VALUES (?, ?, ?, ?)", ((key, place, row, size) for key in set(keys))
                    )
                    place += 1
                else:
                    run("UPDATE trajectories SET kind = 'near', partner = ? WHERE row = ?", (partner, row))

    def _near(self, signature: np.ndarray, shingles: np.ndarray, keys: list[int]) -> int | None:
        """The row of the first that stays, by id, and is near; its set is not smaller or larger than can be near."""
        threshold, size = self._settings.threshold, len(shingles)
        marks = ", ".join("?" * len(keys))
        candidates = self._database.execute(
            f"SELECT DISTINCT place, row FROM bands WHERE key IN ({marks}) AND size BETWEEN ? AND ? ORDER BY place",
            (*keys, int(size * threshold), int(size / threshold) + 1),
        )
        for _, row in candidates:
            other_signature, other = self._sets_of(row)
            estimate = np.count_nonzero(signature == other_signature) / PERMUTATIONS
            if estimate >= threshold - SLACK and jaccard(shingles, other) >= threshold:
                return row
        return None

    def _sets_of(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        signature, found = self._database.execute(
            "SELECT signature, shingles FROM sets WHERE row = ?", (row,)
        ).fetchone()
        return np.frombuffer(signature, np.uint32), np.frombuffer(found, np.uint32)

    def _pairs(self) -> list[Pair]:
        chosen = "SELECT row, id, kind FROM trajectories WHERE kind = ? ORDER BY id LIMIT ?"
        return [
            self._pair(*dropped)
            for kind in KINDS[1:]
            for dropped in self._database.execute(chosen, (kind, PAIRS_KEPT)).fetchall()
        ]

    def _pair(self, row: int, name: str, kind: str) -> Pair:
        """Follows from one that was dropped to the one that stays: at most from exact to prefix to near."""
        find = "SELECT id, content, partner FROM trajectories WHERE row = ?"
        _, content, then = self._database.execute(find, (row,)).fetchone()
        while then is not None:
            last = then
            other, other_content, then = self._database.execute(find, (last,)).fetchone()
        equal = content == other_content
        return Pair(
            name, other, kind, 1.0 if equal else round(jaccard(self._sets_of(row)[1], self._sets_of(last)[1]), 4)
        )

    def kept(self) -> Iterator[bool]:
        """Whether each one stays, in the order of the input."""
        for (kind,) in self._database.execute("SELECT kind FROM trajectories ORDER BY row"):
            yield kind is None

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RequestError(
                f"{self._folder.name}: the index of duplicates: {error}; it needs about as much room as the input"
            ) from error


def _check(settings: DuplicateSettings) -> None:
    if not 0 < settings.threshold <= 1:
        raise RequestError(f"threshold={settings.threshold}: a similarity over 0 and up to 1, for example 0.8")
    if settings.shingle_words < 1:
        raise RequestError(f"shingle_words={settings.shingle_words}: at least 1 word, for example 5")
