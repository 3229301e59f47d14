"""`agentworld show --stats` against counts made by hand."""

import random

from renderers import TOKENIZERS

from agentworld.data import draws, show_stats
from agentworld.data.render import Renderer
from agentworld.data.schema import System, Trajectory, Turn, write_jsonl
from agentworld.data.show import Source
from agentworld.data.show_stats import FileStatistics, Lengths, Share
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import cli

SYSTEM = System("a", "b")
ECHO = Turn("say one two three", "one two three say")  # overlap 1, novelty 0: kept where the draw is below 0.05
TRANSFORM = Turn("put a b c d e f g h", "b")  # novelty 0, overlap 1/9, shorter: kept where it is below 0.5
RETRIEVAL = Turn("cat x", "alpha beta gamma", {"context_only": "cut"})
TRAJECTORIES = [
    *(Trajectory(f"t{i}", "terminal", "s", "g", SYSTEM, [ECHO, TRANSFORM]) for i in range(40)),
    Trajectory("m", "mcp", "s", "g", SYSTEM, [RETRIEVAL, ECHO, RETRIEVAL]),
]


def test_shares_by_domain_and_category(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", TRAJECTORIES)
    renderer = Renderer(TOKENIZERS["trained"]())
    found = show_stats.file_statistics(tmp_path / "a.jsonl", Source(tmp_path / "a.jsonl", seed=5), renderer)

    def share(turn: Turn, count: int, kept: int) -> Share:
        tokens = len(renderer.encode(turn.observation)) + 1  # the end mark
        return Share(count, kept, tokens * count, tokens * kept)

    echoes = sum(draws.uniform("mask", 5, f"t{i}", 0) < 0.05 for i in range(40))
    transforms = sum(draws.uniform("mask", 5, f"t{i}", 1) < 0.5 for i in range(40))
    assert 0 < echoes < transforms < 40
    assert found.shares == {
        ("terminal", "echo"): share(ECHO, 40, echoes),
        ("terminal", "transform"): share(TRANSFORM, 40, transforms),
        ("mcp", "(context only)"): share(RETRIEVAL, 2, 0),
        ("mcp", "echo"): share(ECHO, 1, int(draws.uniform("mask", 5, "m", 1) < 0.05)),
    }
    assert found.trajectories == {"terminal": 40, "mcp": 1}
    echo, transform = renderer.encode(ECHO.observation), renderer.encode(TRANSFORM.observation)
    assert found.total("terminal") == Share(
        80,
        echoes + transforms,
        40 * (len(echo) + len(transform) + 2),
        echoes * (len(echo) + 1) + transforms * (len(transform) + 1),
    )
    assert found.total().turns == 83


def test_lengths_are_exact_below_a_thousand_and_to_one_percent_above():
    small = Lengths()
    values = list(range(1, 101))
    random.Random(0).shuffle(values)
    for value in values:
        small.add(value)
    assert (small.quantile(0.5), small.quantile(0.9), small.maximum) == (50, 90, 100)
    large = Lengths()
    for value in range(0, 3_000_000, 7):
        large.add(value)
    for part in (0.1, 0.5, 0.9):
        assert 0.99 * part * 3_000_000 <= large.quantile(part) <= part * 3_000_000 + 7
    assert large.maximum == 2_999_997 and len(large.counts) < 4000  # memory: classes, not values
    assert Lengths().quantile(0.5) == 0


def test_the_table_is_printed_in_a_pipe(tmp_path, capsys):
    """Tokens are those of the tokenizer that is named, here a byte-level one without merges: a token a byte."""
    path = tmp_path / "a.jsonl"
    write_jsonl(path, TRAJECTORIES[-1:])
    train_tokenizer([], 261).save_pretrained(tmp_path / "bytes")
    assert cli.main(["show", str(path), "--stats", "--tokenizer", str(tmp_path / "bytes")]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert " ".join(lines[0]) == f"{path}: 1 trajectory, 3 turns; mask of CPT, seed 0, default settings"
    assert ["mcp", "echo", "0.05", "1", "0.0", "%", "18", "0.0", "%"] in lines  # 17 bytes and the end mark
    assert ["mcp", "(context", "only)", "-", "2", "0.0", "%", "34", "0.0", "%"] in lines  # 2 x (16 + 1)
    assert ["mcp", "all", "of", "1", "trajectory", "3", "0.0", "%", "52", "0.0", "%"] in lines
    assert f"tokenizer of {tmp_path / 'bytes'}." in text
    assert ["turns", "of", "a", "trajectory", "3", "3", "3"] in lines
    assert ["characters", "of", "a", "trajectory", "76", "76", "76"] in lines  # 2 x (5 + 16) + 17 + 17
    assert ["characters", "of", "an", "observation", "16", "17", "17"] in lines
    assert cli.main(["show", str(path), "--stats"]) == 0
    assert "trained on this file" in capsys.readouterr().out


def test_an_empty_count_has_no_shares():
    assert FileStatistics().total() == Share()
