"""Random draws that depend on names alone: a sha256 of (purpose, seed, names), never a generator's state.

A rerun, another order or another number of workers draws the same; each purpose is an independent stream.
"""

import hashlib


def digest(purpose: str, seed: int, *names: str | int) -> bytes:
    """32 bytes of sha256 over the purpose, the seed and the names; no two different inputs share an encoding."""
    parts = [purpose, str(seed), *(str(name) for name in names)]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part.encode()), part.encode()) for part in parts)).digest()


def uniform(purpose: str, seed: int, *names: str | int) -> float:
    """A number in [0, 1) with 53 random bits."""
    return (int.from_bytes(digest(purpose, seed, *names)[:8], "big") >> 11) / 2**53


def choice(count: int, purpose: str, seed: int, *names: str | int) -> int:
    """An index in range(count), uniform to within count / 2**256."""
    assert count > 0, "nothing to choose from"
    return int.from_bytes(digest(purpose, seed, *names), "big") % count
