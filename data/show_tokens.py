"""Token ids as markup: one element a token, hidden characters named, nothing of a text ever read as markup."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import escape

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from agentworld.data.visible_text import CLOSE, OPEN, hidden_name

HEAD_TOKENS, TAIL_TOKENS = 12_000, 4_000  # of one text, unless all are asked for: what a browser lays out at once

_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}  # GPT-2's table, as in `render._byte_alphabet`
_SPECIAL = re.compile(r"[^ !#-%(-;=?-~]")  # all but printable ASCII without & < > " '


class Pen:
    """Writes ids as elements: `<i data-t="ID">` a token (class k: a control token), in it `<u>` a hidden character and
    `<s>` a line feed. Tokens that share a character stand in one element with all their ids.

    Args:
        full: no text loses its middle.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, full: bool) -> None:
        self._tokenizer, self._full = tokenizer, full
        self._control = {number: content for content, number in tokenizer.get_added_vocab().items()}
        self._element, self._bytes = lru_cache(None)(self._written), lru_cache(None)(self._spelled)

    def span(self, ids: Sequence[int], names: str) -> str:
        """Ids in a span of these classes; nothing for no ids."""
        return self._span(list(self._groups(ids)), names)

    def text(self, ids: Sequence[int], names: str) -> str:
        """As `span`; without `full` a long text loses its middle, with a note."""
        groups = list(self._groups(ids))
        left = groups[HEAD_TOKENS : len(groups) - TAIL_TOKENS]
        if self._full or not left:
            return self._span(groups, names)
        note = f"{sum(map(len, left)):,} of {len(ids):,} tokens left out here; --full writes them"
        head, tail = groups[:HEAD_TOKENS], groups[len(groups) - TAIL_TOKENS :]
        return f'{self._span(head, names)}<b class="cut">{note}</b>{self._span(tail, names)}'

    def _span(self, groups: Sequence[tuple[int, ...]], names: str) -> str:
        return f'<span class="{names}">{"".join(map(self._element, groups))}</span>' if groups else ""

    def _groups(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        held, spelled = (), b""
        for token in ids:
            held, spelled = (*held, token), spelled + self._bytes(token)
            if _is_whole(spelled):
                yield held
                held, spelled = (), b""
        assert not held, "a text ends inside a character"

    def _written(self, ids: tuple[int, ...]) -> str:
        kind = ' class="k"' if ids[0] in self._control else ""
        text = b"".join(map(self._bytes, ids)).decode("utf-8")
        return f'<i{kind} data-t="{" ".join(map(str, ids))}">{_marked(text)}</i>'

    def _spelled(self, token: int) -> bytes:
        if token in self._control:
            return self._control[token].encode()
        return bytes(_BYTE_OF[char] for char in self._tokenizer.convert_ids_to_tokens(token))


def _is_whole(spelled: bytes) -> bool:
    try:
        spelled.decode("utf-8")
    except UnicodeDecodeError as error:
        assert error.reason == "unexpected end of data", error
        return False
    return True


def _marked(text: str) -> str:
    """A text as markup that shows all it holds."""
    return _SPECIAL.sub(lambda match: _mark(match[0]), text)


@lru_cache(maxsize=4096)
def _mark(char: str) -> str:
    if char == "\n":
        return "<s>\n</s>"
    name = hidden_name(char)
    return escape(char) if name is None else f"<u>{OPEN}{name}{CLOSE}</u>"
