"""From a trajectory to token ids: the one rendering behind CPT, SFT, RL prompts and evaluation.

A conversation is ChatML: the system prompt, then each action as a user message and each observation as an assistant
message (arXiv:2606.24597 section 3.2). It is built segment by segment: control ids are put in here, and every text is
encoded by an encoder that does not know control tokens. So text of a trajectory never becomes a control token, a mask
boundary is a segment boundary (no BPE merge runs across it), and history has the same ids in every stage.

The chat template (`prompts/chat_template.jinja`) is for servers. On text without control strings it gives the same
text as this module (plus a newline after the last message), and, with the splitting of GPT-2 or Qwen, the same ids
when no body starts or ends with white space: the template's text is encoded in one go, where BPE merges across the
seam, for instance the newline after the role with a newline that starts the body. A tokenizer with a normalizer (Qwen:
NFC) also changes text that is not in normal form; this module encodes it as it is.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentworld.data.errors import ContentError
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import END_THINK, IM_END, IM_START, PAD, THINK, require_control_tokens
from agentworld.data.word_encoder import WordEncoder

_END_OF_TURN = re.compile(rf"{re.escape(IM_END)}(?:{re.escape(PAD)})*\s*\Z")
OPEN_TAG = "<predicted_observation>"
CLOSE_TAG = "</predicted_observation>"
IGNORED_LABEL = -100  # torch.nn.CrossEntropyLoss(ignore_index)


@dataclass(frozen=True)
class Rendered:
    """Token ids of one document, and for each whether the model is trained to produce it. Equal lengths; lists, or
    arrays of int32 and bool."""

    input_ids: Sequence[int]
    trained: Sequence[bool]

    @property
    def labels(self) -> list[int]:
        """The ids where trained, -100 elsewhere; not shifted (the model shifts)."""
        return [token if keep else IGNORED_LABEL for token, keep in zip(self.input_ids, self.trained, strict=True)]


@dataclass(frozen=True)
class Message:
    """One message of a prompt as text, and how many ids its text took."""

    role: str
    text: str
    tokens: int


@dataclass(frozen=True)
class Prediction:
    """What a model answered. `ended`: it produced the end id. `tag_valid`: exactly one closed tag, nothing after it
    (False where no tag was asked for). `answer`: all that stands after the thinking, tags and all, from which the
    guards of the reward say what is wrong with the form."""

    text: str
    thinking: str | None
    ended: bool
    tag_valid: bool
    answer: str = field(default="", compare=False)


class Renderer:
    """Renders with one tokenizer. Attributes `start_id`, `end_id`, `pad_id`, `think_id`, `end_think_id`: control ids.

    Raises:
        ContentError: on construction, when the tokenizer is no byte-level BPE or lacks a control token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        require_control_tokens(tokenizer, tokenizer.name_or_path or "tokenizer")
        self.tokenizer = tokenizer
        added = tokenizer.get_added_vocab()
        self.start_id, self.end_id, self.pad_id = added[IM_START], added[IM_END], added[PAD]
        self.think_id, self.end_think_id = added[THINK], added[END_THINK]
        plain, self._bytes = _plain_encoder(tokenizer)
        stand_in = {byte[0]: char for char, byte in _byte_alphabet().items()}
        self._words = WordEncoder(plain, [stand_in[byte] for byte in range(256)])
        self._newline = self.encode("\n")
        self._headers = {role: [self.start_id, *self.encode(f"{role}\n")] for role in ("system", "user", "assistant")}
        self._open_tag, self._close_tag = self.encode(f"\n\n{OPEN_TAG}"), self.encode(CLOSE_TAG)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never an added token's id, whatever the text holds. `decode` is the exact inverse."""
        return self._words.encode(text)

    def count(self, text: str) -> int:
        """Number of ids of a text."""
        return len(self.encode(text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control ids appear as their strings, bytes that are no UTF-8 and unknown ids as U+FFFD."""
        unknown = "\ufffd".encode()
        return b"".join(self._bytes.get(int(token), unknown) for token in ids).decode("utf-8", errors="replace")

    def prompt(self, system: str, turns: Sequence[Turn], index: int) -> list[int]:
        """What a model reads before it predicts `turns[index].observation`.

        The system prompt, `turns[:index]` with their true observations, and the action of the turn; ends with the
        start of the assistant message. An exact prefix of `conversation` and `final_turn`.
        """
        assert 0 <= index < len(turns), f"turn {index} of {len(turns)}"
        ids = self._message("system", system) + self._newline
        for turn in turns[:index]:
            ids += self._opening(turn)
            ids += self.encode(turn.observation)
            ids.append(self.end_id)
            ids += self._newline
        return ids + self._opening(turns[index])

    def messages(self, prompt_ids: Sequence[int]) -> list[Message]:
        """What `prompt` rendered, taken apart from its ids: the system prompt, then actions (`user`) and observations
        (`assistant`) in turn, the action to be answered last. So whoever reads a history reads the model's."""
        ids = [int(token) for token in prompt_ids]
        starts = [place for place, token in enumerate(ids) if token == self.start_id]
        found = []
        for start in starts[:-1]:  # the last one opens the answer
            role = next(role for role, header in self._headers.items() if ids[start : start + len(header)] == header)
            body = ids[start + len(self._headers[role]) : ids.index(self.end_id, start)]
            found.append(Message(role, self.decode(body), len(body)))
        return found

    def conversation(self, system: str, turns: Sequence[Turn], trained: Sequence[bool]) -> Rendered:
        """A whole trajectory without thinking (CPT): where `trained[i]`, the observation of turn i and its end id carry
        the loss (arXiv:2606.24597 section 3.2). Ends with the last observation's end id."""
        ids = self._message("system", system)
        mask = [False] * len(ids)
        for turn, keep in zip(turns, trained, strict=True):
            context = self._newline + self._opening(turn)
            target = [*self.encode(turn.observation), self.end_id]
            ids += context
            ids += target
            mask += [False] * len(context)
            mask += [bool(keep)] * len(target)
        return Rendered(ids, mask)

    def final_turn(self, system: str, turns: Sequence[Turn], index: int, thinking: str, observation: str) -> Rendered:
        """One turn with its thought (SFT): the prompt, then, all of it trained,

            <think>\\n{thinking}\\n</think>\\n\\n<predicted_observation>{observation}</predicted_observation><|im_end|>

        The think tags and the end are control ids; the observation has the ids that it has in a history.
        """
        prompt = self.prompt(system, turns, index)
        target = [self.think_id, *self.encode(f"\n{thinking}\n"), self.end_think_id, *self._open_tag]
        target += [*self.encode(observation), *self._close_tag, self.end_id]
        return Rendered(prompt + target, [False] * len(prompt) + [True] * len(target))

    def document(self, text: str) -> Rendered:
        """A knowledge document: every token trained, closed by the pad id (the end of text of the Qwen family)."""
        ids = [*self.encode(text), self.pad_id]
        return Rendered(ids, [True] * len(ids))

    def parse(self, completion_ids: Iterable[int], tagged: bool) -> Prediction:
        """Take a completion apart; it is cut at the first end id.

        Untagged: the whole text is the prediction. Tagged: the thought is what stands before the last end-of-think id
        (or, unclosed, behind the first think id), without its surrounding newlines; the prediction is the text of the
        last tag after it (unclosed: the rest; no tag: all of it), verbatim. Think strings that are plain text are text.
        """
        ids = [int(token) for token in completion_ids]
        ended = self.end_id in ids
        if ended:
            ids = ids[: ids.index(self.end_id)]
        if not tagged:
            text = self.decode(ids)
            return Prediction(text, None, ended, False, text)
        thinking, answer_ids = self._split_thinking(ids)
        return _read_answer(self.decode(answer_ids), thinking, ended)

    def _split_thinking(self, ids: list[int]) -> tuple[str | None, list[int]]:
        closes = [i for i, token in enumerate(ids) if token == self.end_think_id]
        opens = [i for i, token in enumerate(ids) if token == self.think_id]
        if not closes and not opens:
            return None, ids
        end = closes[-1] if closes else len(ids)
        begin = opens[0] + 1 if opens and opens[0] < end else 0
        return self.decode(ids[begin:end]).removeprefix("\n").removesuffix("\n"), ids[end + 1 :]

    def _message(self, role: str, body: str) -> list[int]:
        return [*self._headers[role], *self.encode(body), self.end_id]

    def _opening(self, turn: Turn) -> list[int]:
        """The action as a user message and the start of the assistant message."""
        return self._message("user", turn.action) + self._newline + self._headers["assistant"]


def parse_text(completion: str, ended: bool, tagged: bool = True) -> Prediction:
    """`Renderer.parse` for a completion that is kept as text, such as a server's: the last `</think>` (or, unclosed,
    the first `<think>`) splits off the thought, whether it was a control token or not. `ended`: the model ended its
    answer by itself; the end token's own text must be gone."""
    if not tagged:
        return Prediction(completion, None, ended, False, completion)
    thinking, closed, answer = completion.rpartition(END_THINK)
    if not closed:
        answer, opened, thinking = completion.partition(THINK)
        if not opened:
            return _read_answer(completion, None, ended)
        return _read_answer("", thinking.removeprefix("\n").removesuffix("\n"), ended)
    thinking = thinking.partition(THINK)[2] if THINK in thinking else thinking
    return _read_answer(answer, thinking.removeprefix("\n").removesuffix("\n"), ended)


def without_end(completion: str) -> str:
    """A completion that is kept as text without the end of its turn, and padding after that. Elsewhere the string is
    what a model spelled, or copied from an observation, and stays."""
    return _END_OF_TURN.sub("", completion)


def _read_answer(answer: str, thinking: str | None, ended: bool) -> Prediction:
    """Take apart what stands after the thought: the text of the last tag."""
    start = answer.rfind(OPEN_TAG)
    if start < 0:
        return Prediction(answer, thinking, ended, False, answer)
    text, closing, after = answer[start + len(OPEN_TAG) :].partition(CLOSE_TAG)
    single = answer.count(OPEN_TAG) == 1 and answer.count(CLOSE_TAG) == 1
    return Prediction(text, thinking, ended, bool(closing) and single and not after, answer)


def _plain_encoder(tokenizer: PreTrainedTokenizerFast) -> tuple[Tokenizer, dict[int, bytes]]:
    """The tokenizer without added tokens and normalizer, and the bytes of every id (added tokens: their string).

    An added token is matched in any text, even with `split_special_tokens`, unless it is gone. Where its string is in
    the BPE vocabulary too, it is taken out together with the merges that build it.
    """
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["id"]: token["content"] for token in description["added_tokens"]}
    model, name = description["model"], tokenizer.name_or_path or "tokenizer"
    if model.get("type") != "BPE":
        raise ContentError(f"{name}: expected a byte-level BPE tokenizer (Qwen family), found {model.get('type')}")
    removed = {token for token, number in model["vocab"].items() if number in added}
    if removed:
        model["vocab"] = {token: number for token, number in model["vocab"].items() if token not in removed}
        model["merges"] = [merge for merge in model["merges"] if not removed & _tokens_of(merge)]
    steps = description["pre_tokenizer"] or {}
    if any(step.get("behavior") == "Removed" for step in (steps, *steps.get("pretokenizers", ()))):
        raise ContentError(
            f"{name}: its pre-tokenizer removes text, which no ids give back; use a tokenizer that keeps it"
        )
    for part in ("normalizer", "post_processor", "truncation", "padding"):
        description[part] = None
    description["added_tokens"] = []
    bytes_of = _byte_alphabet()
    absent = [char for char in bytes_of if char not in model["vocab"]]
    if absent:
        raise ContentError(f"{name}: the tokenizer has no token for {len(absent)} of 256 bytes; use a byte-level BPE")
    foreign = [token for token in model["vocab"] if not bytes_of.keys() >= set(token)]
    if foreign:
        raise ContentError(f"{name}: {foreign[0]!r} is no byte-level token; use a byte-level BPE")
    table = {number: b"".join(bytes_of[char] for char in token) for token, number in model["vocab"].items()}
    table.update({number: content.encode() for number, content in added.items()})
    text = json.dumps(description)
    del description, model  # half a gigabyte of Python objects for a vocabulary of 250,000
    plain = Tokenizer.from_str(text)
    probes = ("a\r\n\tA\u0301 \u4e2d\U0001f600\0  ", " a")
    if any(b"".join(table[number] for number in plain.encode(probe).ids) != probe.encode() for probe in probes):
        raise ContentError(f"{name}: the tokenizer does not give a text back as it was (a prefix space?)")
    return plain, table


def _tokens_of(merge: str | list[str]) -> set[str]:
    """The two parts of a BPE merge and what they build; tokenizer.json writes it as "a b" or ["a", "b"]."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return {left, right, left + right}


def _byte_alphabet() -> dict[str, bytes]:
    """The printable stand-in of each byte in a byte-level vocabulary: itself where printable in Latin-1, else the next
    free character from U+0100 (the GPT-2 tokenizer's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}
