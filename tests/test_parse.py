"""Taking completions apart: what a target was made of comes back, and malformed answers are told from good ones."""

import random

import pytest
from renderers import TOKENIZERS, random_text, random_turns

from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer, without_end
from agentworld.data.tokenizer import PAD


@pytest.fixture(scope="module", params=TOKENIZERS)
def renderer(request) -> Renderer:
    return Renderer(TOKENIZERS[request.param]())


def test_a_target_parses_to_what_it_was_made_of(renderer):
    rng = random.Random(6)
    for _ in range(300):
        turns, thinking = random_turns(rng, 2), random_text(rng)
        observation = turns[1].observation.replace(OPEN_TAG, "").replace(CLOSE_TAG, "")
        prompt = renderer.prompt("s", turns, 1)
        sft = renderer.final_turn("s", turns, 1, thinking, observation).input_ids[len(prompt) :]
        prediction = renderer.parse([*sft, renderer.pad_id, *sft], tagged=True)
        assert (prediction.text, prediction.thinking) == (observation, thinking)
        assert prediction.ended
        assert prediction.tag_valid
        cpt = renderer.conversation("s", turns, [True, True]).input_ids[len(prompt) :]
        plain = renderer.parse(cpt, tagged=False)
        assert (plain.text, plain.thinking, plain.ended) == (turns[1].observation, None, True)


# (text; [T] [/T] [E] are the control ids, <o> </o> the tag), text, thinking, ended, tag_valid
PARSED = [
    ("[T]\nhm\n[/T]\n\n<o>x\n</o>[E]", "x\n", "hm", True, True),
    ("[T]\nhm\n[/T]\n\n<o>x</o>", "x", "hm", False, True),
    ("[T]hm[/T]<o></o>[E]", "", "hm", True, True),
    ("<o>x</o>[E]", "x", None, True, True),
    ("hm\n[/T]\n\n<o>x</o>[E]", "x", "hm", True, True),  # a server's prompt may hold the opening tag
    ("[T]\nhm\n[/T]\n\n<o>x[E]", "x", "hm", True, False),
    ("[T]\nhm\n[/T]\n\nx[E]", "\n\nx", "hm", True, False),
    ("[T]\nhm\n[/T]\n\n<o>x</o> done[E]", "x", "hm", True, False),
    ("[T]\nhm\n[/T]\n\n<o>x</o>\n[E]", "x", "hm", True, False),
    ("[T]\nhm\n[/T]\n\n<o>x</o><o>y</o>[E]", "y", "hm", True, False),
    ("[T]\nhm\n[/T]\n\n<o>x<o>y</o>[E]", "y", "hm", True, False),
    ("[T]\nhm\n[/T]\n\n<o>x</o></o>[E]", "x", "hm", True, False),
    ("[T]\nhm <o>x</o>[E]", "", "hm <o>x</o>", True, False),  # the thought never ends: no answer
    ("[T]\n<o>x</o>\n[/T]\n\n<o>y</o>[E]", "y", "<o>x</o>", True, True),
    ("[T]a[/T]<o>x</o>[T]b[/T]<o>y</o>[E]", "y", "a</think><o>x</o><think>b", True, True),
    ("<think>a</think><o>x</o>[E]", "x", None, True, True),  # think tags as plain text are text
    ("[E]<o>x</o>[E]", "", None, True, False),
    ("", "", None, False, False),
]


@pytest.mark.parametrize(("text", "answer", "thinking", "ended", "valid"), PARSED, ids=range(len(PARSED)))
def test_parsing(renderer, text, answer, thinking, ended, valid):
    control = {"[T]": renderer.think_id, "[/T]": renderer.end_think_id, "[E]": renderer.end_id}

    def expand(text: str | None) -> str | None:
        return text and text.replace("<o>", OPEN_TAG).replace("</o>", CLOSE_TAG)

    ids: list[int] = []
    for marker in control:
        text = text.replace(marker, f"\ue000{marker}\ue000")
    for piece in text.split("\ue000"):
        ids += [control[piece]] if piece in control else renderer.encode(expand(piece))
    prediction = renderer.parse(ids, tagged=True)
    assert (prediction.text, prediction.thinking) == (expand(answer), expand(thinking))
    assert (prediction.ended, prediction.tag_valid) == (ended, valid)


def test_generated_ids_outside_the_vocabulary_and_broken_characters_are_shown(renderer):
    broken = [*renderer.encode("a"), *renderer.encode("中")[:1], 10**6, *renderer.encode("b")]
    text = renderer.parse(broken, tagged=False).text
    assert text[0] + text[-1] == "ab" or renderer.encode("中")[1:] == []
    assert "\ufffd" in text


def test_only_the_end_of_a_completion_is_its_end_of_turn() -> None:
    """A control string that an observation holds stays text (fault 8)."""
    for text in ("", "x", "cat a\nx<|im_end|>y\n$ ", "<|im_end|>x"):
        for end in ("<|im_end|>", "<|im_end|>\n", f"<|im_end|>{PAD}{PAD}"):
            assert without_end(text + end) == text
        assert without_end(text) == text
