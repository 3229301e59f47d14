"""Evaluation: which turns fit, and what a kill leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from preparation import trajectory
from renderers import TOKENIZERS

from agentworld.data.errors import ContentError
from agentworld.data.examples import Example, Selection
from agentworld.data.examples import example as make_example
from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.schema import write_jsonl
from agentworld.train import cli, evaluate
from agentworld.train.config import Config


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def test_a_kill_before_the_baselines_leaves_no_evaluation_that_counts_as_done(tmp_path: Path, monkeypatch) -> None:
    """The next start does the base's evaluation again when evaluation.json is missing, and only then."""
    monkeypatch.setattr(evaluate.kernels, "install", lambda: None)
    monkeypatch.setattr(evaluate, "Generator", lambda *_: None)
    monkeypatch.setattr(evaluate, "_selection", lambda _: Selection([], 0, 0))
    monkeypatch.setattr(evaluate, "_predictions", lambda *_: [])
    monkeypatch.setattr(evaluate, "_training_observations", lambda _: [])
    with monkeypatch.context() as killing:
        killing.setattr(evaluate.fidelity, "baselines", lambda *_: raise_killed())
        with pytest.raises(Killed):
            evaluate.run(Config(), tmp_path, "base")
    assert not (tmp_path / "base" / "evaluation.json").exists()
    evaluate.run(Config(), tmp_path, "base")
    assert (tmp_path / "base" / "evaluation.json").exists() and (tmp_path / "baselines.json").exists()


def raise_killed() -> None:
    raise Killed


def test_a_pool_without_a_share_of_the_data_gives_the_baselines_nothing(tmp_path: Path) -> None:
    """data.split.sft=0 writes an empty file, which is no damage."""
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "cpt.jsonl", [trajectory(0), trajectory(1)])
    for pool in ("sft", "rl"):
        (tmp_path / "data" / f"{pool}.jsonl").touch()
    expected = [turn.observation for index in (0, 1) for turn in trajectory(index).turns]
    assert list(evaluate._training_observations(tmp_path)) == expected


def test_the_limit_of_evaluation_is_its_own_key_and_what_it_changes_is_told(tmp_path: Path) -> None:
    """Held against the lengths of all prompts of the pool."""
    (tmp_path / "data").mkdir()
    pool = [trajectory(index) for index in range(30)]
    write_jsonl(tmp_path / "data" / "eval.jsonl", pool)
    config = Config()
    config.data.rl_prompt_tokens = 10**6
    generator = SimpleNamespace(config=config, run_dir=tmp_path, renderer=Renderer(TOKENIZERS["trained"]()))

    def length(example: Example) -> int:
        return len(evaluate._prompt(generator, example, "v0"))

    free = evaluate._selection(generator)
    assert (len(free.examples), free.earlier, free.too_long) == (30, 0, 0)
    limit = config.eval.prompt_tokens = sorted(map(length, free.examples))[10]
    some = evaluate._selection(generator)
    assert max(map(length, some.examples)) <= limit
    assert some.earlier == sum(
        length(example) > limit for example in free.examples if not alone(example, length, limit)
    )
    assert some.too_long == sum(alone(example, length, limit) for example in free.examples)
    assert len(some.examples) == 30 - some.too_long and some.earlier > 5
    config.eval.prompt_tokens = 1
    with pytest.raises(ContentError, match=r"no turn of the 30 held-out trajectories .* at most 1 tokens"):
        evaluate._selection(generator)
    config.eval.prompt_tokens, config.data.rl_prompt_tokens = 0, limit
    assert evaluate._selection(generator) == some


def alone(example: Example, length: Callable[[Example], int], limit: int) -> bool:
    """Not even the first turn of the trajectory fits."""
    return length(make_example(example.trajectory, 0)) > limit


def test_predictions_are_rows_that_score_reads(tmp_path: Path, capsys) -> None:
    """With the history that guards and verifiers need, and raw: the thought, the tag and the end stand in it."""
    item = trajectory(0)
    examples = [make_example(item, 2), make_example(item, 1)]
    raw = [f"<think>\nx\n</think>\n\n{OPEN_TAG}{one.observation}{CLOSE_TAG}" for one in examples]
    shown = [{"raw": raw[0] + "<|im_end|>", "ended": True}, {"raw": raw[1], "ended": False}]
    path, out = tmp_path / "predictions.parquet", tmp_path / "scored.jsonl"
    evaluate.write_predictions(path, examples, shown, seed=0)
    assert cli.main(["score", str(path), "--out", str(out)]) == 0
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert (first["id"], first["turn"], first["reward"]) == (item.id, 2, 25.0)
    assert first["history"] == [[turn.action, turn.observation] for turn in item.turns[:2]]
    assert (second["turn"], second["reward"]) == (1, 0.0) and "not_ended" in {hit["name"] for hit in second["guards"]}
