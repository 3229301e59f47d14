"""Tokenizers and texts that try a renderer: foreign added tokens, normalization, control strings, odd Unicode."""

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentworld.data.render import CLOSE_TAG, OPEN_TAG
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import CONTROL_TOKENS, IM_END, THINK, adapt, train_tokenizer

CORPUS = ["cat notes.txt\nalpha beta", "user@box:~/d$ echo alpha", f"\n\n{OPEN_TAG}", CLOSE_TAG, "中文 中文"] * 10
FOREIGN = ("<|image_pad|>", "<|vision_start|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>")
WILD = (
    "",
    "\0",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "中文字符",
    "\U0001f600\U0001f468\u200d\U0001f469",
    "\u0301",
    "e\u0301 \u00e9 \u212b",
    "\r\n",
    "\n",
    "  \t \u00a0\u3000",
    "\x80\uffff\ufeff\U0010ffff",
    "<|im_end|",
    *CONTROL_TOKENS,
    *FOREIGN,
    "".join(CONTROL_TOKENS),
    f"<<think>>{OPEN_TAG}{CLOSE_TAG}",
)


def qwen_like() -> PreTrainedTokenizerFast:
    """NFC, a splitting regex of its own, more added tokens, two of them also built by BPE merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([THINK, IM_END] * 50 + CORPUS, trainer)
    assert {THINK, IM_END} <= tokenizer.get_vocab().keys()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (*CONTROL_TOKENS[:3], *FOREIGN)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in CONTROL_TOKENS[3:]])
    return adapt(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def qwen_split() -> PreTrainedTokenizerFast:
    """Splits as the Qwen tokenizers do: one character that is no letter may lead a word, digits stand alone."""
    letter_word, other = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    tokenizer = Tokenizer.from_str(train_tokenizer(CORPUS, 330).backend_tokenizer.to_str())
    split = pre_tokenizers.Split(Regex(rf"{letter_word}|\p{{N}}|{other}|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    return adapt(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def trained() -> PreTrainedTokenizerFast:
    """What the tiny models use."""
    return train_tokenizer(CORPUS, 330)


TOKENIZERS = {"trained": trained, "qwen_like": qwen_like}


def random_text(rng: random.Random, pieces: int = 6) -> str:
    alphabet = (*WILD, "alpha", " beta", "$ ", "x", "7", "\n\n", "_", "ß", "\u0430")
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, pieces)))


def random_turns(rng: random.Random, count: int) -> list[Turn]:
    return [Turn(random_text(rng), random_text(rng)) for _ in range(count)]
