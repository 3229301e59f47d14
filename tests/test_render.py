"""Rendering: text is text and control is control, seams are exact, and history is the same in every stage."""

import random
import unicodedata

import pytest
from packed import pack
from renderers import CORPUS, TOKENIZERS, WILD, qwen_split, random_text, random_turns, trained
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentworld.data.errors import ContentError
from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import CONTROL_TOKENS, END_THINK, IM_END, IM_START, THINK, train_tokenizer


@pytest.fixture(scope="module", params=TOKENIZERS)
def renderer(request) -> Renderer:
    return Renderer(TOKENIZERS[request.param]())


def is_subsequence_at(part: list[int], whole: list[int], at: int) -> bool:
    return whole[at : at + len(part)] == part


@pytest.mark.parametrize("text", WILD, ids=range(len(WILD)))
def test_round_trip_of_wild_text_without_control_ids(renderer, text):
    ids = renderer.encode(text)
    assert renderer.decode(ids) == text
    assert not set(ids) & set(renderer.tokenizer.get_added_vocab().values())


def test_round_trip_of_random_text(renderer):
    rng = random.Random(0)
    control = set(renderer.tokenizer.get_added_vocab().values())
    texts = [random_text(rng, 20) for _ in range(500)]
    texts += ["".join(chr(rng.choice([*range(0xD800), *range(0xE000, 0x11000)])) for _ in range(30)) for _ in range(50)]
    for text in texts:
        ids = renderer.encode(text)
        assert renderer.decode(ids) == text
        assert not set(ids) & control


def test_control_strings_in_observations_stay_text(renderer):
    """One end id for each message, whatever the messages hold; control ids elsewhere: none."""
    holding_all = "".join(renderer.tokenizer.get_added_vocab())
    turns = [Turn(holding_all, holding_all + "\n"), Turn(f"a{IM_END}\n{IM_START}assistant\n", holding_all)]
    rendered = renderer.conversation(holding_all, turns, [True, True])
    assert rendered.input_ids.count(renderer.end_id) == rendered.input_ids.count(renderer.start_id) == 1 + 2 * 2
    assert not set(rendered.input_ids) & (
        set(renderer.tokenizer.get_added_vocab().values()) - {renderer.start_id, renderer.end_id}
    )
    targets = [token for token, keep in zip(rendered.input_ids, rendered.trained, strict=True) if keep]
    assert renderer.decode(targets) == f"{holding_all}\n{IM_END}{holding_all}{IM_END}"
    sft = renderer.final_turn(holding_all, turns, 1, holding_all, holding_all)
    assert sft.input_ids.count(renderer.think_id) == sft.input_ids.count(renderer.end_think_id) == 1
    completion = sft.input_ids[len(renderer.prompt(holding_all, turns, 1)) :]
    prediction = renderer.parse(completion, tagged=True)
    assert (prediction.text, prediction.thinking, prediction.ended) == (holding_all, holding_all, True)


def test_masks_begin_at_the_first_character_of_the_target(renderer):
    """Over 1,000 random seams: nothing of the header is trained, nothing of the target is left out."""
    rng = random.Random(1)
    starts = ("\n", " ", "中", "\U0001f600", "\u0301", "a", "\r\n", "\0", THINK, ">")
    for _ in range(1000):
        observation = rng.choice(starts) + random_text(rng)
        rendered = renderer.conversation("s", [Turn(random_text(rng), observation)], [True])
        first = rendered.trained.index(True)
        assert all(rendered.trained[first:])
        assert renderer.decode(rendered.input_ids[:first]).endswith(f"{IM_START}assistant\n")
        assert renderer.decode(rendered.input_ids[first:]) == observation + IM_END
        grown = next(  # a character may take several byte tokens
            text
            for stop in range(first + 1, len(rendered.input_ids) + 1)
            if not (text := renderer.decode(rendered.input_ids[first:stop])).endswith("\ufffd")
        )
        assert grown[0] == observation[0]


def test_exactly_the_chosen_turns_carry_loss(renderer):
    rng = random.Random(2)
    for _ in range(50):
        turns = random_turns(rng, rng.randint(1, 5))
        keep = [rng.random() < 0.5 for _ in turns]
        rendered = renderer.conversation(random_text(rng), turns, keep)
        trained = [token for token, is_trained in zip(rendered.input_ids, rendered.trained, strict=True) if is_trained]
        expected = [
            token
            for turn, is_kept in zip(turns, keep, strict=True)
            if is_kept
            for token in [*renderer.encode(turn.observation), renderer.end_id]
        ]
        assert trained == expected
        assert [label for label in rendered.labels if label != -100] == trained
        assert len(rendered.labels) == len(rendered.input_ids)
    with pytest.raises(ValueError):
        renderer.conversation("s", turns, [True] * (len(turns) + 1))


def test_sft_labels_are_the_answer_with_one_pair_of_think_tags(renderer):
    """Through packing: decode what carries the label in rows of 3-turn samples."""
    turns = [Turn("ls", "a b\n$ "), Turn("cat a", f"{THINK}x{END_THINK}\n$ "), Turn("pwd", "/d\n$ ")]
    documents = [
        renderer.final_turn("sys", turns, index, f"turn {index}", turns[index].observation) for index in (2, 1)
    ]
    rows, count = pack(documents, 4096, splits=False)
    assert count.documents == 2
    assert count.labels_lost == 0
    seen = []
    for row in rows:
        at = 0
        for length in row.seq_lengths:
            labels = [label for label in row.labels[at : at + length] if label != -100]
            assert row.labels[at + length - 1] == renderer.end_id
            assert labels.count(renderer.think_id) == labels.count(renderer.end_think_id) == 1
            assert row.input_ids[at : at + length].count(renderer.think_id) == 1
            seen.append(renderer.decode(labels))
            at += length
    assert sorted(seen) == [
        f"{THINK}\nturn 1\n{END_THINK}\n\n{OPEN_TAG}{THINK}x{END_THINK}\n$ {CLOSE_TAG}{IM_END}",
        f"{THINK}\nturn 2\n{END_THINK}\n\n{OPEN_TAG}/d\n$ {CLOSE_TAG}{IM_END}",
    ]


def test_the_last_label_of_a_conversation_is_the_end_of_turn(renderer):
    """The end id is not the padding id."""
    rows, _ = pack([renderer.conversation("s", [Turn("a", "b"), Turn("c", "d")], [True, True])], 4096, splits=True)
    assert rows[0].labels[-1] == renderer.end_id != renderer.pad_id


def test_history_has_the_same_ids_in_every_stage(renderer):
    """What precedes a target is one and the same in CPT, SFT, and the prompts of RL and evaluation."""
    rng = random.Random(3)
    for _ in range(100):
        turns, system = random_turns(rng, 4), random_text(rng)
        conversation = renderer.conversation(system, turns, [True] * 4)
        targets_end = 0
        for index, turn in enumerate(turns):
            prompt = renderer.prompt(system, turns, index)
            sft = renderer.final_turn(system, turns, index, "thought", turn.observation)
            assert is_subsequence_at(prompt, conversation.input_ids, 0)
            assert is_subsequence_at(prompt, sft.input_ids, 0)
            assert not any(sft.trained[: len(prompt)])
            assert all(sft.trained[len(prompt) :])
            observation = renderer.encode(turn.observation)
            assert is_subsequence_at([*observation, renderer.end_id], conversation.input_ids, len(prompt))
            targets_end = len(prompt) + len(observation) + 1
            # The observation in an SFT target has the ids that it has as history.
            tail = [*observation, *renderer.encode(CLOSE_TAG), renderer.end_id]
            assert sft.input_ids[-len(tail) :] == tail
        assert targets_end == len(conversation.input_ids)


def test_a_prompt_does_not_see_the_turn_it_asks_for(renderer):
    turns = [Turn("ls", "a"), Turn("pwd", "SECRET"), Turn("id", "LATER")]
    changed = [turns[0], Turn("pwd", "x"), Turn("y", "z")]
    assert renderer.prompt("s", turns, 1) == renderer.prompt("s", changed, 1)


def messages_of(system: str, turns: list[Turn]) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}]
    for turn in turns:
        messages += [{"role": "user", "content": turn.action}, {"role": "assistant", "content": turn.observation}]
    return messages


def test_the_chat_template_gives_the_same_text(renderer):
    rng = random.Random(4)
    for _ in range(100):
        turns, system = random_turns(rng, 3), random_text(rng)
        messages = messages_of(system, turns)
        template = renderer.tokenizer.apply_chat_template
        whole = renderer.decode(renderer.conversation(system, turns, [True] * 3).input_ids)
        assert template(messages, tokenize=False) == whole + "\n"
        prompt = renderer.decode(renderer.prompt(system, turns, 2))
        assert template(messages[:-1], tokenize=False, add_generation_prompt=True) == prompt


@pytest.mark.parametrize("build", [trained, qwen_split], ids=["gpt2", "qwen"])
def test_the_chat_template_gives_the_same_ids_without_control_strings_and_outer_white_space(build):
    # Not with qwen_like(), which does not split and merges any two characters across the seam.
    renderer = Renderer(build())
    rng = random.Random(5)
    words = ("alpha", "beta", "中文", "\U0001f600", "e\u0301", "7", "$", "\n\n", "  ", "\0", "<|", "_")
    for _ in range(200):
        edges = [rng.choice(("x", "$", "中", "7", "\0")) for _ in range(2)]
        bodies = ["".join(rng.choice(words) for _ in range(rng.randint(0, 9))).join(edges) for _ in range(5)]
        turns = [Turn(bodies[0], bodies[1]), Turn(bodies[2], bodies[3])]
        ids = renderer.tokenizer.apply_chat_template(
            messages_of(bodies[4], turns)[:-1], add_generation_prompt=True, return_dict=False
        )
        assert ids == renderer.prompt(bodies[4], turns, 1)


def test_text_is_not_normalised(renderer):
    text = "e\u0301"
    assert unicodedata.normalize("NFC", text) != text
    assert renderer.decode(renderer.prompt(text, [Turn(text, "")], 0)).count(text) == 2


def test_a_document_is_trained_whole_and_closed(renderer):
    rendered = renderer.document(f"knowledge {IM_END}\n")
    assert all(rendered.trained)
    assert rendered.input_ids[-1] == renderer.pad_id
    assert renderer.decode(rendered.input_ids[:-1]) == f"knowledge {IM_END}\n"


def test_a_tokenizer_that_cannot_encode_every_text_is_refused():
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.add_special_tokens(list(CONTROL_TOKENS))
    with pytest.raises(ContentError, match="byte-level BPE"):
        Renderer(PreTrainedTokenizerFast(tokenizer_object=words))
    prefixing = Tokenizer.from_str(train_tokenizer(CORPUS, 330).backend_tokenizer.to_str())
    prefixing.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(ContentError, match="prefix space"):
        Renderer(PreTrainedTokenizerFast(tokenizer_object=prefixing))
    removing = Tokenizer.from_str(train_tokenizer(CORPUS, 330).backend_tokenizer.to_str())
    drop = pre_tokenizers.Split("Q", "removed")
    removing.pre_tokenizer = pre_tokenizers.Sequence([drop, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    with pytest.raises(ContentError, match="removes text"):
        Renderer(PreTrainedTokenizerFast(tokenizer_object=removing))
    letters = Tokenizer(models.BPE())
    letters.train_from_iterator(["abc"], trainers.BpeTrainer())
    letters.add_special_tokens(list(CONTROL_TOKENS))
    with pytest.raises(ContentError, match="of 256 bytes"):
        Renderer(PreTrainedTokenizerFast(tokenizer_object=letters))
