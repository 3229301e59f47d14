"""What duplicates are told by: hashes of the turns, word shingles, and MinHash signatures of these.

Words are those of the CPT mask, `re.findall(r"\\w+", text.lower())`, of all actions and observations in order. A
shingle is a run of words; trajectories that have nearly the same set of them are near duplicates (Broder 1997, "On the
resemblance and containment of documents"; runs of 5 words as in arXiv:2107.06499).

MinHash: under a random order of all shingles, two sets have the same first shingle with probability J, their Jaccard
similarity |A and B| / |A or B|. A signature holds the firsts of 128 orders. Cut into bands of r values, two signatures
share at least one band with probability 1 - (1 - J^r)^(128 // r): near 1 above the threshold and small below.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from agentworld.data.ordered_map import ordered_map
from agentworld.data.schema import Trajectory

PERMUTATIONS = 128
MISSED = 1e-3  # the share of pairs at the threshold that share no band, at most
BLOCK = 1024  # shingles hashed at once: 128 x 1,024 values of 4 bytes stay in the cache of a core
BATCH = 16  # trajectories that a worker takes at once

_WORD = re.compile(r"\w+")
_WIDE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying modulo 2^64 loses nothing


@dataclass(frozen=True)
class Fingerprint:
    """One trajectory.

    `prefixes`: the hash of turns 1 to k, for every k; the last one is the hash of the whole content.
    `shingles`: uint32 [n], ascending, each once. n is 0 where there is no word.
    `signature`: uint32 [PERMUTATIONS].
    """

    id: str
    split_group: str
    prefixes: list[bytes]
    shingles: npt.NDArray[np.uint32]
    signature: npt.NDArray[np.uint32]


def fingerprint(trajectory: Trajectory, shingle_words: int) -> Fingerprint:
    """The fingerprint of actions and observations; ids, system prompts and `meta` have no part in it."""
    texts = [text for turn in trajectory.turns for text in (turn.action, turn.observation)]
    found = shingles(texts, shingle_words)
    prefixes = prefix_hashes([(turn.action, turn.observation) for turn in trajectory.turns])
    return Fingerprint(trajectory.id, trajectory.split_group, prefixes, found, signature(found))


def fingerprints(trajectories: Iterable[Trajectory], shingle_words: int, workers: int = 1) -> Iterator[Fingerprint]:
    """The fingerprint of each, in order, made by `workers` processes that read ahead by two batches each."""
    if workers <= 1:
        yield from (fingerprint(trajectory, shingle_words) for trajectory in trajectories)
        return
    source = iter(trajectories)
    batches = iter(lambda: list(islice(source, BATCH)), [])
    for found in ordered_map(partial(_batch, shingle_words=shingle_words), batches, workers, ahead=2 * workers):
        yield from found


def _batch(trajectories: list[Trajectory], shingle_words: int) -> list[Fingerprint]:
    return [fingerprint(trajectory, shingle_words) for trajectory in trajectories]


def prefix_hashes(turns: list[tuple[str, str]]) -> list[bytes]:
    """16 bytes for every k: of turns 1 to k. Lengths are hashed too, so no text can move from one field to the next."""
    running, hashes = hashlib.blake2b(digest_size=16), []
    for turn in turns:
        for text in turn:
            raw = text.encode("utf-8", "surrogatepass")
            running.update(len(raw).to_bytes(8, "little"))
            running.update(raw)
        hashes.append(running.digest())
    return hashes


def shingles(texts: list[str], shingle_words: int) -> npt.NDArray[np.uint32]:
    """Hashes of all runs of `shingle_words` words; of all words as one run where there are fewer.

    32 bits: in two sets of 100,000 shingles about 2 that differ look equal, 0.00002 of similarity.
    """
    words = _WORD.findall("\n".join(texts).lower())
    if not words:
        return np.empty(0, np.uint32)
    hash_of = {word: _word_hash(word) for word in set(words)}
    hashes = np.fromiter(map(hash_of.__getitem__, words), np.uint64, len(words))
    length = min(shingle_words, len(words))
    runs = np.zeros(len(words) - length + 1, np.uint64)
    for offset in range(length):  # a polynomial in _WIDE: the order of the words counts
        runs = runs * _WIDE + hashes[offset : offset + len(runs)]
    runs = (runs ^ (runs >> np.uint64(32))) * _WIDE
    return np.unique((runs >> np.uint64(32)).astype(np.uint32))


@lru_cache(maxsize=1 << 16)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _constants(name: bytes) -> npt.NDArray[np.uint32]:
    """One number for each permutation, the same on every machine; shape [PERMUTATIONS, 1]."""
    raw = b"".join(hashlib.blake2b(b"%s %d" % (name, n), digest_size=4).digest() for n in range(PERMUTATIONS))
    return np.frombuffer(raw, "<u4").astype(np.uint32).reshape(-1, 1)


_FACTORS = _constants(b"factor") | np.uint32(1)
_TERMS = _constants(b"term")


def signature(found: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The smallest of factor * shingle + term modulo 2^32, for each of the permutations."""
    smallest = np.full(PERMUTATIONS, np.iinfo(np.uint32).max, np.uint32)
    for start in range(0, len(found), BLOCK):
        values = _FACTORS * found[start : start + BLOCK]
        values += _TERMS
        np.minimum(smallest, values.min(axis=1), out=smallest)
    return smallest


def band_rows(threshold: float) -> int:
    """The most rows a band may have (fewest pairs to compare) with at most `MISSED` of the pairs at the threshold lost;
    1 where even that loses more (below about 0.05)."""
    fitting = (r for r in range(PERMUTATIONS, 1, -1) if (1 - threshold**r) ** (PERMUTATIONS // r) <= MISSED)
    return next(fitting, 1)


def band_keys(values: npt.NDArray[np.uint32], rows: int) -> list[int]:
    """A 64-bit signed number for each whole band of the signature."""
    keys = []
    for band in range(PERMUTATIONS // rows):
        raw = values[band * rows : (band + 1) * rows].astype("<u4").tobytes()
        digest = hashlib.blake2b(raw, digest_size=8, salt=band.to_bytes(2, "little")).digest()
        keys.append(int.from_bytes(digest, "little", signed=True))
    return keys


def jaccard(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> float:
    """|A and B| / |A or B| of two ascending sets; 0 where both are empty, so that they are no near duplicates."""
    if not len(a) or not len(b):
        return 0.0
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)
