"""Evaluation: what a kill leaves."""

from pathlib import Path

import pytest
from preparation import trajectory

from agentworld.data.schema import write_jsonl
from agentworld.train import evaluate
from agentworld.train.config import Config


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def test_a_kill_before_the_baselines_leaves_no_evaluation_that_counts_as_done(tmp_path: Path, monkeypatch) -> None:
    """The next start does the base's evaluation again when evaluation.json is missing, and only then."""
    monkeypatch.setattr(evaluate.kernels, "install", lambda: None)
    monkeypatch.setattr(evaluate, "Generator", lambda *_: None)
    monkeypatch.setattr(evaluate, "_examples", lambda _: ([], 0))
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
