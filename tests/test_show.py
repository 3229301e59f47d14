"""`agentworld show` in the terminal: what is said of a turn, and that no character of a log reaches the screen raw."""

import random
import re
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from preparation import prepare_from, write_source
from renderers import TOKENIZERS, random_text

from agentworld.data import show
from agentworld.data.examples import one_turn
from agentworld.data.render import Renderer
from agentworld.data.rows import cpt_document, turn_losses
from agentworld.data.schema import System, Trajectory, Turn, read_jsonl, write_jsonl
from agentworld.data.settings import DataSettings, MaskSettings
from agentworld.data.system_prompts import prompt_sets, system_prompt
from agentworld.data.visible_text import _NAMES, visible
from agentworld.train import cli
from agentworld.train.compose import compose, load_recipe, to_yaml
from agentworld.train.show import source_of

SYSTEM = System("A shell.", "Commands.")
TURNS = [
    Turn("cat a", "hello\x1b[2J hello\r\n", {"deterministic": True}),
    Turn("echo hi there", "hi there"),
    Turn("true", "", {"context_only": "time-out\nof the harness"}),
]
SMALL = Trajectory("id\u202e2", "terminal", "here", "group", SYSTEM, TURNS)
# By hand: {cat, a} and {hello, 2j} share no word, 17 / 5 characters. {echo, hi, there} and {hi, there} share 2 of 3,
# none is new: boilerplate, kept below 0.1, and the draw of this id, turn 1 and seed 0 is 0.27.
SHOWN = """\
trajectory id⟨U+202E⟩2
domain terminal, source here, split group group, 3 turns
mask cpt, seed 0, default settings: 1 of 3 observations carry loss, 17 of 25 characters

system prompt v1 of set brief
    │ A shell.
    │ 
    │ Actions: Commands.

turn #0  retrieval  carries loss
  overlap 0.00  novelty 1.00  Jaccard 0.00  length ratio 3.40  keep ratio 1.00
  deterministic: true
  action
    │ cat a
  observation
    │ hello⟨ESC⟩[2J hello⟨CR⟩
    │ 

turn #1  boilerplate  context, no loss
  overlap 0.67  novelty 0.00  Jaccard 0.67  length ratio 0.62  keep ratio 0.10
  action
    │ echo hi there
  observation
    │ hi there

turn #2  other  context, no loss
  overlap 0.00  novelty 0.00  Jaccard 0.00  length ratio 0.00  keep ratio 1.00
  context_only: time-out⟨LF⟩of the harness
  action
    │ true
  observation
    (empty)
"""


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.jsonl"
    write_jsonl(path, [SMALL, replace(SMALL, id="other")])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run directory as far as `show` reads it: the recipe with a seed of its own, the data, no model."""
    root = tmp_path_factory.mktemp("run")
    config = compose(["recipe=smoke", "seed=3", "data.mask.enabled=false", "data.sft_row_tokens=100"])
    (root / "recipe.yaml").write_text(to_yaml(config))
    prepare_from(write_source(root), root / "data", seed=3)
    return root


def shown(capsys, *arguments: object) -> str:
    assert cli.main(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def hidden_free(text: str) -> bool:
    """Whether a screen shows every character: Python's own rule, and no selector, filler or joiner."""
    unseen = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x034F, 0x115F, 0x1160, 0x3164, 0x2800, 0xFFA0}
    return all(char == "\n" or (char.isprintable() and ord(char) not in unseen) for char in text)


def test_a_small_trajectory_reads_exactly_so_in_a_pipe(small, capsys):
    assert shown(capsys, small) == SHOWN


def test_every_character_is_shown_or_named_and_can_be_told_from_text_that_looks_like_its_name():
    by_name = {name: char for char, name in _NAMES.items()}

    def read_back(text: str) -> str:
        return re.sub("⟨(?:U\\+([0-9A-F]+)|([A-Z]+))⟩", lambda m: chr(int(m[1], 16)) if m[1] else by_name[m[2]], text)

    for start in (*range(0, 0x20000, 0x1000), 0xE0000, 0xF0000, sys.maxunicode - 0xFFF):
        text = "".join(map(chr, range(start, start + 0x1000)))
        assert hidden_free(visible(text)), hex(start)
        assert read_back(visible(text)) == text, hex(start)
    for text in ("⟨ESC⟩", "⟨⟨NUL⟩", "\x1b]0;x\a", "a\u200d\u2066b\u2028"):
        assert read_back(visible(text)) == text
    assert visible("a\tb é 中 ─ 😀") == "a⟨TAB⟩b é 中 ─ 😀"
    assert visible("a\nb", keep_newlines=False) == "a⟨LF⟩b"


def test_hostile_text_anywhere_reaches_the_screen_escaped(tmp_path, capsys):
    hostile = "".join(c for c in map(chr, range(0x30000)) if unicodedata.category(c)[0] in "CZ" and not c.isprintable())
    hostile = "".join(c for c in hostile if unicodedata.category(c) not in ("Cs", "Cn", "Co")) + "\nturn #9  echo"
    system = System(hostile, hostile, hostile, hostile, hostile)
    turn = Turn(hostile, hostile, {hostile: hostile, "context_only": hostile})
    write_jsonl(tmp_path / "a.jsonl", [Trajectory(hostile, "terminal", hostile, hostile, system, [turn] * 2)])
    text = shown(capsys, tmp_path / "a.jsonl", "--full")
    assert hidden_free(text)
    assert [line.split("  ")[0] for line in text.splitlines() if line.startswith("turn ")] == ["turn #0", "turn #1"]
    assert text.count(f"{show.MARGIN}turn #9  echo\n") >= 4
    assert cli.main(["show", str(tmp_path / "a.jsonl"), "--trajectory", "x"]) == 2
    assert hidden_free(capsys.readouterr().err)


def test_long_texts_are_cut_with_their_size_and_full_shows_them(tmp_path, capsys):
    many, wide = "\n".join(map(str, range(100))), "x" * 1_000_000
    write_jsonl(tmp_path / "a.jsonl", [Trajectory("a", "web", "s", "g", SYSTEM, [Turn("go", many), Turn("go", wide)])])
    text = shown(capsys, tmp_path / "a.jsonl")
    assert f"{show.MARGIN}39\n    … 180 of 289 characters left out; --full shows all\n" in text  # "\n40" ... "\n99"
    assert f"{show.MARGIN}{'x' * 4000}\n    … 996,000 of 1,000,000 characters left out; --full shows all\n" in text
    full = shown(capsys, tmp_path / "a.jsonl", "--full")
    assert f"{show.MARGIN}99\n" in full and wide in full and "left out" not in full


def test_in_a_terminal_no_line_leaves_its_margin():
    turns = [Turn("x" * 95 + "中" * 30, "spoof " * 100)] * 2
    view = show.look(replace(SMALL, turns=turns), show.Source(Path("a.jsonl")))
    lines = [line.plain for line in show.terminal_lines(view, width=60)]
    body = [line for line in lines if line.startswith(show.MARGIN)]
    assert "".join(line.removeprefix(show.MARGIN) for line in body[3:]) == (turns[0].action + turns[0].observation) * 2
    wide = [sum(2 if unicodedata.east_asian_width(char) == "W" else 1 for char in line) for line in body]
    assert max(wide) == 60


def test_an_unknown_id_names_the_near_ones(tmp_path, capsys):
    ids = [f"swe-{number:03}" for number in range(50)] + ["tau:airline[7]", "tau:airline[8]"]
    write_jsonl(tmp_path / "a.jsonl", [replace(SMALL, id=name) for name in ids])
    assert cli.main(["show", str(tmp_path / "a.jsonl"), "--trajectory", "airline[7]"]) == 2
    error = capsys.readouterr().err
    assert "no trajectory --trajectory airline[7]; near ones: tau:airline[7], tau:airline[8], swe-" in error
    assert error.count("swe-") == show.NEAR_IDS - 2
    assert shown(capsys, tmp_path / "a.jsonl", "--trajectory", "tau:airline[8]").startswith(
        "trajectory tau:airline[8]\n"
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_the_turns_said_to_carry_loss_are_those_of_the_rows(enabled):
    rng = random.Random(5)
    renderer = Renderer(TOKENIZERS["trained"]())
    settings = DataSettings(
        mask=MaskSettings(enabled=enabled, keep=dict.fromkeys(("action", "retrieval", "echo"), 0.5))
    )
    decisions = set()
    for number in range(30):
        turns = [Turn(random_text(rng) + "a", random_text(rng) + "b c") for _ in range(4)]
        trajectory = replace(SMALL, id=str(number), turns=turns)
        losses = turn_losses(trajectory, settings.mask, 7)
        row, _ = cpt_document(trajectory, losses, renderer, settings, seed=7)
        ends = [keep for token, keep in zip(row.input_ids, row.trained, strict=True) if token == renderer.end_id]
        kept = [item.kept for item in show.turn_views(trajectory, show.Source(Path("a"), settings, 7))]
        assert kept == ends[2::2]
        decisions |= set(kept)
    assert decisions == ({True, False} if enabled else {True})


def test_a_pool_of_a_run_is_shown_with_the_settings_the_seed_and_the_traces_of_the_run(run, capsys):
    config = load_recipe(run)
    source = source_of(run / "data" / "sft.jsonl", None, None)
    assert (source.in_run, source.seed, source.settings) == (True, 3, config.data)
    assert [source_of(source.path, seed, None).seed for seed in (9, 0)] == [9, 0]
    outside = show.look(next(iter(read_jsonl(source.path))), show.Source(source.path), "sft")
    assert outside.chosen is None and outside.traces == {}
    traced = {line.split('"')[3] for line in (run / "data" / "traces.jsonl").read_text().splitlines()}
    views = [show.look(trajectory, source) for trajectory in read_jsonl(source.path)]
    sampled = [view for view in views if view.chosen is not None]
    assert {f"{view.trajectory.id}#{view.chosen}" for view in sampled} <= traced
    assert len(sampled) > 5 and all(view.mask == "sft" for view in views)
    text = shown(capsys, source.path, "--trajectory", sampled[0].trajectory.id)
    assert f"mask sft, seed 3, settings of the run: turn #{sampled[0].chosen} is the sample; its thought" in text
    assert "  thought (carries loss)\n    │ print " in text
    drawn = next(iter(read_jsonl(run / "data" / "rl.jsonl")))
    assert f"turn #{one_turn(drawn, 3)} is drawn; what the model answers" in shown(capsys, run / "data" / "rl.jsonl")
    assert "(data.mask.enabled=false: the mask masks nothing)" in shown(capsys, run / "data" / "cpt.jsonl")


def test_the_prompt_set_that_is_asked_for_is_what_the_model_is_shown_to_see(small, run, tmp_path, capsys):
    trajectory = next(iter(read_jsonl(small)))
    for name in prompt_sets():
        text = shown(capsys, small, "--prompt-set", name, "--mask", "rl", "--full")
        prompt = system_prompt(trajectory, "v0", name)
        assert f"system prompt v0 of set {name}\n" in text
        assert "".join(f"{show.MARGIN}{visible(line)}\n" for line in prompt.split("\n")) in text
        assert shown(capsys, small, "--prompt-set", name, "--html", tmp_path / "a.html")
        assert f"v1 of set {name}, " in (tmp_path / "a.html").read_text()
    assert "of set domains\n" in shown(capsys, run / "data" / "cpt.jsonl", "--prompt-set", "domains")


def test_wrong_requests_end_with_2_and_damaged_files_with_1(small, tmp_path, capsys):
    (tmp_path / "log.json").write_text('{"messages": []}\n')
    (tmp_path / "half.jsonl").write_text(small.read_text()[:-20])
    for code, said, arguments in (
        (2, "No such file", ["no.jsonl"]),
        (2, "is a folder: name one of its files", [tmp_path]),
        (2, "--prompt-set brief-: no such set; known: brief, domains", [small, "--prompt-set", "brief-"]),
        (2, "--stats counts the observations", [small, "--stats", "--prompt-set", "brief"]),
        (2, "--stats counts the observations of the whole file", [small, "--stats", "--html", tmp_path / "a.html"]),
        (2, "--tokenizer shows tokens in --html", [small, "--tokenizer", tmp_path]),
        (2, "no such directory", [small, "--html", tmp_path / "a.html", "--tokenizer", tmp_path / "no"]),
        (2, "does not exist; make it", [small, "--html", tmp_path / "no" / "a.html"]),
        (2, "would be replaced", [small, "--html", small]),
        (1, "`agentworld import` makes trajectories", [tmp_path / "log.json"]),
        (1, "half.jsonl:2: not JSON", [tmp_path / "half.jsonl", "--trajectory", "other"]),
        (1, "half.jsonl:2: not JSON", [tmp_path / "half.jsonl", "--stats"]),
    ):
        assert cli.main(["show", *map(str, arguments)]) == code, arguments
        found = capsys.readouterr()
        assert said in found.err and found.err.count("\n") == 1 and found.out == "", arguments
    assert not (tmp_path / "a.html").exists()


def test_help_has_examples_that_are_valid_requests(capsys):
    with pytest.raises(SystemExit):
        cli.main(["show", "--help"])
    lines = [line.split() for line in capsys.readouterr().out.partition("example:\n")[2].split("\n\n")[0].splitlines()]
    assert len(lines) == 4
    for words in lines:
        assert words[:2] == ["agentworld", "show"]
        assert cli._parser().parse_args(words[1:]).file.suffix == ".jsonl"
