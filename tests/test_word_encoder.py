"""The word encoder gives the tokenizer's own ids for any text, and knows where it must not trust its splitting."""

import functools
import random

import pytest
from renderers import CORPUS, TOKENIZERS, WILD, qwen_split, random_text
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentworld.data import word_encoder
from agentworld.data.render import _byte_alphabet, _plain_encoder
from agentworld.data.word_encoder import WordEncoder

STAND_INS = [char for _, char in sorted((byte, char) for char, byte in _byte_alphabet().items())]


def split_by(step: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = step, decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    return tokenizer


def regex_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytewise])


CONTRACTIONS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
)
PLAIN = {
    "gpt2": lambda: split_by(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)),
    "qwen": lambda: _plain_encoder(qwen_split())[0],
    "units": lambda: _plain_encoder(TOKENIZERS["trained"]())[0],
    "contractions": lambda: split_by(regex_then_bytes(CONTRACTIONS)),
}
SLOW = {
    "no splitting": lambda: _plain_encoder(TOKENIZERS["qwen_like"]())[0],
    "\\h is a hex digit for one and white space for the other": lambda: split_by(regex_then_bytes(r"\h+|\s+|\S")),
    "a group": lambda: split_by(regex_then_bytes(r"(a)+|\s+|\S")),
    "an anchor, at each line for one of them": lambda: split_by(regex_then_bytes(r"^#+|\s+|\S")),
    "the end, also before a last newline for one": lambda: split_by(regex_then_bytes(r"a\Z|\s+|\S")),
    "letters that fold to several": lambda: split_by(regex_then_bytes(r"(?i:ss)|\s+|\S")),
    "what matches nothing is left out by findall": lambda: split_by(regex_then_bytes(r"\p{L}+")),
}


@functools.cache
def texts() -> list[str]:
    rng = random.Random(0)
    letters = "abzA '\"'sTll\t\n\r  17_.,{}\u0301\u4e2d\u00a0\u2028\u0130\u017f\u212a\x1c\x85\U0001f600"
    found = [*WILD, "a\n# b\n## a\n", "STRASSE stra\u00dfe", "'\u017f 'S it's IT'LL", "".join(map(chr, range(0x500)))]
    found += [random_text(rng, 20) for _ in range(300)]
    found += ["".join(rng.choices(letters, k=rng.randint(1, 40))) for _ in range(700)]
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x11000))]
    found += ["".join(rng.choices(characters, k=30)) for _ in range(100)]
    return found


@pytest.mark.parametrize("name", [*PLAIN, *SLOW])
def test_ids_are_those_of_the_tokenizer(name):
    plain = (PLAIN | SLOW)[name]()
    encoder = WordEncoder(plain, STAND_INS)
    assert (encoder._splitter is not None) == (name in PLAIN)
    for text in texts():
        assert encoder.encode(text) == plain.encode(text, add_special_tokens=False).ids, repr(text)


def test_a_character_that_the_engines_see_differently_goes_through_the_tokenizer(monkeypatch):
    """As if one of them knew an older Unicode, in which this letter is none."""
    plain = PLAIN["qwen"]()
    encoder = WordEncoder(plain, STAND_INS)
    splitter = word_encoder._Splitter(encoder._splitter.split.__self__.pattern, plain.pre_tokenizer)
    honest = splitter.split

    def older(text: str) -> list[str]:
        return [piece for word in honest(text) for piece in word.replace("é", "é\0").split("\0") if piece]

    monkeypatch.setattr(splitter, "split", older)
    monkeypatch.setattr(encoder, "_splitter", splitter)
    assert splitter.split("één") != honest("één")
    for text in ("één", "een", "zo één keer"):
        assert encoder.encode(text) == plain.encode(text).ids
    assert not splitter.is_sure_of("één") and splitter.is_sure_of("ëen")


def test_a_full_cache_starts_again(monkeypatch):
    monkeypatch.setattr(word_encoder, "CACHED_WORDS", 3)
    plain = PLAIN["gpt2"]()
    encoder = WordEncoder(plain, STAND_INS)
    for text in ("alpha beta gamma", "delta epsilon alpha", "x" * 100, "alpha"):
        assert encoder.encode(text) == plain.encode(text).ids
        assert len(encoder._ids_of) <= 3
