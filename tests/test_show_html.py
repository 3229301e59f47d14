"""The page of `agentworld show --html`, read back as a browser does: its tokens and colours are those of the rows."""

import os
import random
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from renderers import TOKENIZERS, WILD, random_turns

from agentworld.data import show, show_html, show_tokens
from agentworld.data.examples import example
from agentworld.data.importing import import_files
from agentworld.data.render import Rendered, Renderer
from agentworld.data.rows import cpt_document, sft_document, turn_losses
from agentworld.data.schema import System, Trace, Trajectory, Turn, read_jsonl, write_jsonl
from agentworld.data.settings import DataSettings, MaskSettings
from agentworld.data.sft_samples import SftSample
from agentworld.data.system_prompts import system_prompt
from agentworld.data.visible_text import visible
from agentworld.train import cli

OURS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "section",
    "details",
    "summary",
    "h1",
    "h2",
    "h3",
    "p",
    "small",
    "div",
    "span",
    "a",
    "b",
    "table",
    "tr",
    "th",
    "td",
    "i",
    "u",
    "s",
}
VOID = ("meta",)
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "data-t", "open"}
HALF = DataSettings(mask=MaskSettings(keep=dict.fromkeys(("action", "retrieval", "other", "echo", "transform"), 0.5)))


def cpt_row(trajectory: Trajectory, renderer: Renderer, settings: DataSettings, seed: int) -> Rendered:
    return cpt_document(trajectory, turn_losses(trajectory, settings.mask, seed), renderer, settings, seed)[0]


@dataclass
class Token:
    """A token element: its ids, its text, the classes around it and the number of its turn (None: system prompt)."""

    ids: list[int]
    classes: set[str]
    turn: int | None
    text: str = ""


@dataclass
class Page(HTMLParser):
    """A page taken apart; refuses elements, attributes and links that are not ours, and tags left open."""

    tokens: list[Token] = field(default_factory=list)
    around: list[tuple[str, dict]] = field(default_factory=list)
    drawn: int | None = None
    stage: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        assert tag in OURS and named.keys() <= ATTRIBUTES, (tag, attributes)
        assert named.get("href", "#").startswith("#"), attributes
        if tag in VOID:
            return
        self.around.append((tag, named))
        if tag == "body":
            self.stage = named["class"].split()[0]
        if tag == "section" and "drawn" in named["class"].split():
            assert self.drawn is None
            self.drawn = int(named["id"].removeprefix("turn-"))
        if tag == "i":
            classes = {name for _, outer in self.around for name in outer.get("class", "").split()}
            turn = next((int(outer["id"][5:]) for name, outer in self.around if name == "section"), None)
            self.tokens.append(Token([int(number) for number in named["data-t"].split()], classes, turn))

    def handle_endtag(self, tag):
        assert self.around.pop()[0] == tag

    def handle_data(self, data):
        if any(name == "i" for name, _ in self.around):
            self.tokens[-1].text += data

    def handle_comment(self, data):
        raise AssertionError("a comment")

    handle_pi = unknown_decl = handle_comment

    def at(self, index: int) -> list[tuple[Token, bool]]:
        """The tokens that the style sheet shows when turn `index` is chosen, and whether they are coloured trained."""
        found = []
        for token in self.tokens:
            chosen = token.turn == index
            later = token.turn is not None and token.turn > index
            hidden = "after" in token.classes if chosen else "answer" in token.classes
            if later or hidden or (chosen and self.stage == "rl" and "obs" in token.classes):  # framed: not read
                continue
            found.append((token, chosen and bool({"answer", "obs"} & token.classes)))
        return found


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.around == []
    return page


def flat(tokens: list[tuple[Token, bool]]) -> tuple[list[int], list[bool], str]:
    ids = [number for token, _ in tokens for number in token.ids]
    return ids, [keep for token, keep in tokens for _ in token.ids], "".join(token.text for token, _ in tokens)


def trajectory_of(turns: list[Turn], name: str = "t") -> Trajectory:
    return Trajectory(name, "terminal", "s", "g", System("${title} $tokens <b>", "".join(WILD)), turns)


@pytest.fixture(params=TOKENIZERS)
def renderer(request) -> Renderer:
    return Renderer(TOKENIZERS[request.param]())


def test_the_tokens_and_colours_of_a_cpt_page_are_the_row(renderer):
    rng = random.Random(1)
    colours = set()
    for number in range(10):
        trajectory = trajectory_of(random_turns(rng, 5), str(number))
        view = show.look(trajectory, show.Source(Path("a"), HALF, seed=2), "cpt")
        page = parsed(show_html.page(view, renderer, "t", full=True))
        row = cpt_row(trajectory, renderer, HALF, 2)
        found = flat([(token, "trained" in token.classes) for token in page.tokens])
        assert found == (row.input_ids, row.trained, visible(renderer.decode(row.input_ids)))
        colours |= {item.kept for item in view.turns}
    assert colours == {True, False}


def test_the_tokens_and_colours_of_an_sft_page_are_the_sample_of_each_turn(renderer):
    trajectory = trajectory_of(random_turns(random.Random(3), 5))
    traces = {1: Trace("f", "first <|im_end|>\n中\U0001f600 ", ""), 3: Trace("f", "x</think>y", "")}
    view = replace(show.look(trajectory, show.Source(Path("a"), seed=4), "sft"), traces=traces, chosen=3)
    page = parsed(show_html.page(view, renderer, "t", full=True))
    assert page.drawn == 3
    for index in range(5):
        trace = traces.get(index, Trace("f", "", ""))
        row = sft_document(SftSample(example(trajectory, index), trace), renderer, DataSettings(), seed=4)
        assert flat(page.at(index)) == (row.input_ids, row.trained, visible(renderer.decode(row.input_ids))), index


def test_the_tokens_of_an_rl_page_are_the_prompt_of_each_turn(renderer):
    trajectory = trajectory_of(random_turns(random.Random(5), 5))
    view = show.look(trajectory, show.Source(Path("a"), seed=6), "rl")
    page = parsed(show_html.page(view, renderer, "t", full=True))
    assert page.drawn == view.chosen
    system = system_prompt(trajectory, "v0", "brief")
    for index in range(5):
        ids, trained, text = flat(page.at(index))
        assert ids == renderer.prompt(system, trajectory.turns, index)
        assert not any(trained) and text == visible(renderer.decode(ids))
        framed = [token for token in page.tokens if token.turn == index and "obs" in token.classes]
        truth = [*renderer.encode(trajectory.turns[index].observation), renderer.end_id]
        assert [number for token in framed for number in token.ids] == truth


def test_hostile_text_stays_text_and_the_page_asks_for_nothing(tmp_path):
    controls = "".join(chr(code) for code in (*range(32), *range(127, 160), 0x202E, 0x2066, 0x2028, 0x200B, 0xFEFF))
    markup = (
        "</script></style></section><script>alert(1)</script><img src=x onerror=alert(1)>\"'<!-- --> &lt;]]>${title}"
    )
    hostile = "".join(WILD) + controls + markup + "\U0001f600" * 30
    turns = [Turn(hostile, hostile, {hostile: hostile, "context_only": hostile}), Turn(hostile, hostile)]
    trajectory = Trajectory(hostile, "web", hostile, hostile, System(hostile, hostile), turns)
    renderer = Renderer(TOKENIZERS["trained"]())
    for mask in show.MASKS:
        view = show.look(trajectory, show.Source(tmp_path / "a.jsonl"), mask)
        text = show_html.page(view, renderer, hostile)
        page = parsed(text)
        assert all(char == "\n" or char.isprintable() for char in text)
        assert not re.search(r"url\(|@import|https?:", text.partition("<body")[0])
        actions = [token.text for token in page.tokens if token.turn == 1 and "obs" not in token.classes]
        assert visible(hostile) in "".join(actions)


def test_a_megabyte_in_one_line_gives_a_small_page_that_says_what_is_missing(tmp_path):
    renderer = Renderer(TOKENIZERS["trained"]())
    turns = [Turn("go", "中\U0001f600\U0001f600x" * 70_000), Turn("go", "b")]
    view = show.look(trajectory_of(turns), show.Source(tmp_path / "a"), "cpt")
    total = len(renderer.encode(turns[0].observation))
    text = show_html.page(view, renderer, "t")
    page = parsed(text)
    shown = sum(len(token.ids) for token in page.tokens if token.turn == 0 and "trained" in token.classes) - 1  # end id
    assert f'<b class="cut">{total - shown:,} of {total:,} tokens left out here; --full writes them</b>' in text
    elements = sum(token.turn == 0 and "trained" in token.classes for token in page.tokens) - 1
    assert elements == show_tokens.HEAD_TOKENS + show_tokens.TAIL_TOKENS
    assert len(text) < 2_000_000
    whole = show_html.page(view, renderer, "t", full=True).partition('<section class="turn')[2]
    observation = whole.partition("assistant message")[2].partition("</section>")[0]
    ids = [number for found in re.findall('data-t="([0-9 ]+)"', observation) for number in found.split()]
    assert [int(number) for number in ids[-total - 2 : -2]] == renderer.encode(turns[0].observation)  # end id, newline


def test_the_command_writes_a_page_with_the_tokenizer_it_names(tmp_path, capsys):
    source, out = tmp_path / "a.jsonl", tmp_path / "a.html"
    write_jsonl(source, [trajectory_of(random_turns(random.Random(7), 3))])
    assert cli.main(["show", str(source), "--html", str(out), "--mask", "rl"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{out}: 3 turns, mask rl, byte-level BPE of ") and "trained on this file" in said
    assert parsed(out.read_text()).stage == "rl"
    tokenizer = TOKENIZERS["qwen_like"]()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert cli.main(["show", str(source), "--html", str(out), "--tokenizer", str(tmp_path / "tokenizer")]) == 0
    assert capsys.readouterr().out == f"{out}: 3 turns, mask cpt, tokenizer of {tmp_path / 'tokenizer'}\n"
    (trajectory,) = read_jsonl(source)
    row = cpt_row(trajectory, Renderer(tokenizer), DataSettings(), 0)
    page = parsed(out.read_text())
    assert flat([(token, "trained" in token.classes) for token in page.tokens])[:2] == (row.input_ids, row.trained)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif("AGENTWORLD_CORPORA" not in os.environ, reason="AGENTWORLD_CORPORA names no folder of recordings")
def test_recordings_of_every_source_give_pages_that_hold_their_rows(tmp_path):
    out = tmp_path / "all.jsonl"
    import_files([Path(os.environ["AGENTWORLD_CORPORA"])], out, workers=1, say=lambda _: None)
    first = {}
    for trajectory in read_jsonl(out):
        escapes = any("\x1b" in turn.observation for turn in trajectory.turns)
        first.setdefault((trajectory.source, trajectory.domain, escapes), trajectory)
    assert len(first) > 12 and any(escapes for *_, escapes in first)
    source = show.Source(out)
    renderer = Renderer(show_html.choose_tokenizer(None, next(iter(first.values())), source)[0])
    for trajectory in first.values():
        page = parsed(show_html.page(show.look(trajectory, source), renderer, "t", full=True))
        row = cpt_row(trajectory, renderer, source.settings, source.seed)
        found = flat([(token, "trained" in token.classes) for token in page.tokens])
        assert found == (row.input_ids, row.trained, visible(renderer.decode(row.input_ids))), trajectory.id
