"""Tokenizers: the byte-level BPE of the tiny models, and loading the one that a real model brings.

Both hold the same five control tokens, those of the Qwen family. `render.Renderer` decides where they stand in a row.
"""

import copy
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentworld.data.errors import ContentError, RequestError

PAD = "<|endoftext|>"  # padding, and the end of a knowledge document
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"  # end of a message: what a model must produce to stop
THINK = "<think>"
END_THINK = "</think>"
CONTROL_TOKENS = (PAD, IM_START, IM_END, THINK, END_THINK)
# The splitting of GPT-2 (Radford et al. 2019, section 2.2), which `ByteLevel(use_regex=True)` has built in.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MIN_VOCAB_SIZE = 256 + len(CONTROL_TOKENS)  # every byte, so that any text can be encoded

_TEMPLATE = Path(__file__).parent / "prompts" / "chat_template.jinja"


def train_tokenizer(texts: Iterable[str], vocab_size: int, units: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE (GPT-2 splitting, no normalizer) and add the control tokens after its vocabulary.

    The same texts in the same order give the same bytes on disk.

    Args:
        texts: pieces of text as they are encoded later, each without control tokens.
        vocab_size: upper bound of the vocabulary with the control tokens; a small corpus fills less.
        units: constant strings of the corpus that splitting leaves whole, so that merges can make each one token.

    Raises:
        RequestError: `vocab_size` is below 261 (256 bytes + 5 control tokens).
    """
    check_vocab_size(vocab_size)
    tokenizer = Tokenizer(models.BPE())
    whole = sorted(map(re.escape, units), key=len, reverse=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*whole, GPT2_SPLIT])), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # As in the Qwen family: a decoder that skips special tokens skips the chat markers, not the think tags.
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, IM_START, IM_END)])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in (THINK, END_THINK)])
    return adapt(PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False))


def check_vocab_size(vocab_size: int) -> None:
    """Raise RequestError when a vocabulary of this size cannot hold every byte and the control tokens."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise RequestError(
            f"data.tokenizer_vocab_size={vocab_size} is too small; at least {MIN_VOCAB_SIZE} are needed "
            f"(256 bytes and {len(CONTROL_TOKENS)} control tokens)"
        )


def adapt(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy with the chat template of `render.Renderer` and the ends of this pipeline; the ids stay as they are.

    A base model's tokenizer ends at PAD and its template may open a thought for the model; here a turn ends at IM_END
    and the model opens its own thought, so a server that used the original template would send other prompts than
    those of training.
    """
    adapted = copy.deepcopy(tokenizer)
    adapted.eos_token = IM_END
    adapted.pad_token = PAD
    adapted.padding_side = adapted.init_kwargs["padding_side"] = "left"  # init_kwargs is what save_pretrained writes
    for key in ("is_local", "local_files_only"):  # how it was loaded is no property of it: the files keep their bytes
        adapted.init_kwargs.pop(key, None)
    adapted.chat_template = _TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    return adapted


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a Hugging Face directory exactly as its `tokenizer.json` describes it.

    Raises:
        RequestError: the directory does not exist.
        ContentError: it holds no readable `tokenizer.json`, or a control token is missing; the text names the path.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise RequestError(f"{directory}: no such directory; give a Hugging Face model or tokenizer directory")
    if not (directory / "tokenizer.json").is_file():
        raise ContentError(f"{directory}: tokenizer.json is missing; save the model together with its fast tokenizer")
    try:
        # Not AutoTokenizer: a model-specific class may rebuild the splitting from its own code, not from the file.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # the Rust parser raises bare Exception
        raise ContentError(f"{directory / 'tokenizer.json'}: cannot be read: {error}") from error
    require_control_tokens(tokenizer, str(directory))
    return tokenizer


def require_control_tokens(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """Raise ContentError naming `name` unless each control token is an added token with an id of its own."""
    added = tokenizer.get_added_vocab()
    missing = [token for token in CONTROL_TOKENS if token not in added]
    if missing:
        raise ContentError(f"{name}: the tokenizer lacks {', '.join(missing)}; use a tokenizer of the Qwen3 family")
