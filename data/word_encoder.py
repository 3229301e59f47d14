"""The ids that a byte-level BPE tokenizer gives a text, word by word from a cache: several times faster.

Such a tokenizer splits a text into words by a regular expression and merges the bytes of each word on its own. Nearly
all words of a corpus are repetitions, so their ids are looked up; those of a new word come from the tokenizer's own
model. Only the splitting is done by another engine: `regex` in place of the Oniguruma in `tokenizers`. That the two
agree is tested, not assumed: each character is tried once between all kinds of neighbours (the ASCII ones at the
start). A text with a character that they see differently goes through the tokenizer, as does every text where the
tokenizer is not of this form.
"""

import json
from functools import lru_cache
from itertools import chain, product

import regex
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence

CACHED_WORDS = 1 << 18  # of some 200 bytes each; a full cache starts again
LONGEST_CACHED = 64  # characters; longer words are rarely seen twice
# The splitting that `ByteLevel(use_regex=True)` has built in (Radford et al. 2019, section 2.2).
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What both engines read alike: literals, classes, groups without capture, lookahead, repetition. Anchors, \K and set
# operations mean other things to them, and case folding may join letters: only the usual contractions are let in.
_PLAIN_SYNTAX = regex.compile(
    r"""(?: \(\?i:(?:'s\|'t\|'re\|'ve\|'m\|'ll\|'d|\[sdmt\]\|ll\|ve\|re)\)
        | \[\^?(?:\\[pP]\{\w+\}|\\[sSrntvf]|\\[^\w]|[^\]\[\\&])+\]
        | \\[pP]\{\w+\} | \\[sSrntvf] | \\[^\w]
        | \(\?: | \(\?! | \(\?= | \) | [|?*+] | \{\d*,?\d*\}
        | [^\\^$.\[\](){}|?*+] )+""",
    regex.VERBOSE,
)
# One of each kind of character that splitting expressions tell apart, and the beginnings of English contractions.
BEFORE = ("a", "Z", "1", " ", "  ", "\t", "\n", "\r\n", "!", "_", "'", "'r", "'l", "\u0301", "\u4e2d", "\u00a0")
AFTER = ("", "a", "1", " ", "\n", "!", "'s", "\u0301")


class WordEncoder:
    """Encodes as `plain` does: a byte-level BPE without added tokens, normalizer and truncation.

    Args:
        byte_characters: the printable stand-in of each of the 256 bytes in the vocabulary.
    """

    def __init__(self, plain: Tokenizer, byte_characters: list[str]) -> None:
        self._plain = plain
        self._ids_of = _WordIds(plain, byte_characters)
        self._splitter = _splitter(plain.pre_tokenizer.__getstate__())

    def encode(self, text: str) -> list[int]:
        """Exactly `plain.encode(text, add_special_tokens=False).ids`."""
        if self._splitter is None or not self._splitter.is_sure_of(text):
            return self._plain.encode(text, add_special_tokens=False).ids
        return list(chain.from_iterable(map(self._ids_of.__getitem__, self._splitter.split(text))))


class _WordIds(dict[str, tuple[int, ...]]):
    """Word -> ids; what is absent is merged by the tokenizer's model."""

    def __init__(self, plain: Tokenizer, byte_characters: list[str]) -> None:
        super().__init__()
        self._model = plain.model
        self._byte_characters = byte_characters

    def __missing__(self, word: str) -> tuple[int, ...]:
        stand_ins = "".join([self._byte_characters[byte] for byte in word.encode()])
        ids = tuple(token.id for token in self._model.tokenize(stand_ins))
        if len(word) <= LONGEST_CACHED:
            if len(self) >= CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


class _Splitter:
    """The splitting of one pre-tokenizer by `regex`, and the characters on which both are known to agree."""

    def __init__(self, pattern: str, original: PreTokenizer) -> None:
        self.split = regex.compile(pattern).findall
        self._original = original
        self._agreed: dict[str, bool] = {}

    def is_sure_of(self, text: str) -> bool:
        return text.isascii() or all(map(self.agrees_on, set(text)))

    def agrees_on(self, char: str) -> bool:
        """Whether both split this character alike between all neighbours, leaving nothing out."""
        known = self._agreed.get(char)
        if known is None:
            tried = "".join(f"{before}{char}{after}" for before, after in product(BEFORE, AFTER))
            words = [tried[start:end] for _, (start, end) in self._original.pre_tokenize_str(tried)]
            known = self._agreed[char] = self.split(tried) == words
        return known


@lru_cache(maxsize=8)
def _splitter(state: bytes) -> _Splitter | None:
    """Of a pre-tokenizer as JSON; None where it is neither of the two usual forms or ASCII is split differently."""
    steps = json.loads(state)
    match steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            pattern = GPT2_SPLIT
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            pass
        case _:
            return None
    if not _PLAIN_SYNTAX.fullmatch(pattern):
        return None
    original = Sequence([])
    original.__setstate__(state)
    splitter = _Splitter(pattern, original)
    return splitter if all(splitter.agrees_on(chr(code)) for code in range(128)) else None
