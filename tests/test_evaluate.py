"""Evaluation: which turns fit, how answers are read and rewarded, and what a kill leaves."""

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
from agentworld.data.system_prompts import EVALUATION_VERSION, system_prompt
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


class Scripted:
    """A Generator that answers by a script: to each temperature and action its completions, in order."""

    def __init__(self, run_dir: Path) -> None:
        self.config, self.run_dir, self.renderer = Config(), run_dir, Renderer(TOKENIZERS["trained"]())
        self.script: dict[tuple[float, str], list[list[int]]] = {}
        self.calls: list[tuple[list[str], int, float]] = []  # actions asked for, new tokens, temperature
        self.systems: list[str] = []  # the system prompts of all calls

    def answer(self, prompts: list[list[int]], max_new_tokens: int, temperature: float) -> list[list[int]]:
        messages = [self.renderer.messages(prompt) for prompt in prompts]
        actions = [found[-1].text for found in messages]
        self.calls.append((actions, max_new_tokens, temperature))
        self.systems += [found[0].text for found in messages]
        return [self.script[temperature, action].pop(0) for action in actions]

    def right(self, item: Example) -> list[int]:
        """What SFT trains for this turn: a thought, the observation in its tag, the end id."""
        whole = self.renderer.final_turn("", item.trajectory.turns, item.index, "x", item.observation)
        return [token for token, trained in zip(whole.input_ids, whole.trained, strict=True) if trained]


def test_what_is_dealt_out_over_ranks_comes_back_in_its_order(monkeypatch) -> None:
    """7 items over 3 ranks, whose parts differ in length."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    parts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        parts.append(evaluate._dealt(range(7)))
    assert sorted(len(part) for part in parts) == [2, 2, 3]

    def gather(into: list, mine: list) -> None:
        assert len(into) == 3 and mine in parts
        into[:] = parts

    monkeypatch.setattr(evaluate.dist, "all_gather_object", gather)
    assert [evaluate._collected(part, 7) for part in parts] == [list(range(7))] * 3


def test_the_sampled_reward_is_that_of_each_prompt_s_own_draws_and_greedy_answer(tmp_path: Path) -> None:
    """A right answer has 25, one that never ends 0; one that is right for another prompt neither."""
    generator = Scripted(tmp_path)
    generator.config.eval.reward_draws, generator.config.eval.max_new_tokens = 2, 77
    items = [make_example(trajectory(index), 1) for index in range(3)]
    actions = [item.action for item in items]
    assert len(set(actions)) == 3
    for item, draws in zip(items, ((0, 1), (1, 1), (0, 0)), strict=True):
        right = generator.right(item)
        generator.script[1.0, item.action] = [right if good else right[:-1] for good in draws]
        generator.script[0.0, item.action] = [right]
    found = evaluate._sampled_reward(generator, items)
    assert found["per_prompt"] == [12.5, 25.0, 0.0] and (found["mean"], found["n"], found["draws"]) == (12.5, 3, 2)
    assert found["standard_error"] == pytest.approx(12.5 / 3**0.5)
    assert found["greedy_mean"] == 25.0 and found["failed"] == 0
    assert generator.calls == [([action for action in actions for _ in range(2)], 77, 1.0), (actions, 77, 0.0)]
    rl_form = [system_prompt(item.trajectory, "v0", generator.config.data.prompt_set) for item in items]
    assert set(generator.systems) == set(rl_form)


@pytest.mark.parametrize("stage", ["base", "cpt", "sft", "rl"])
def test_each_stage_is_read_in_the_form_that_it_was_trained_in(stage: str, tmp_path: Path) -> None:
    """Base and CPT answer with the observation alone, in which a tag is text; SFT and RL in a tag, which must close and
    end."""
    generator, form = Scripted(tmp_path), EVALUATION_VERSION[stage]
    items = [make_example(trajectory(index), 1) for index in range(4)]
    encode, end = generator.renderer.encode, generator.renderer.end_id
    completions = [
        [*encode(items[0].observation), end],
        generator.right(items[1]),
        generator.right(items[2])[:-1],
        [*encode(f"{OPEN_TAG}open"), end],
    ]
    texts = [items[0].observation, items[1].observation, items[2].observation, "open"]
    valid: list[bool | None] = [False, True, False, False]
    if stage in ("base", "cpt"):
        texts[1:] = [generator.renderer.decode(ids).removesuffix("<|im_end|>") for ids in completions[1:]]
        valid = [None] * 4
    generator.script = {(0.0, item.action): [ids] for item, ids in zip(items, completions, strict=True)}
    found = evaluate._predictions(generator, items, form)
    assert [(scored.prediction, scored.reference, scored.tag_valid) for scored, _ in found] == [
        (text, item.observation, tag) for text, item, tag in zip(texts, items, valid, strict=True)
    ]
    assert [(shown["prediction"], shown["tag_valid"]) for _, shown in found] == list(zip(texts, valid, strict=True))
    assert [shown["ended"] for _, shown in found] == [True, True, False, True]
    prompt_set = generator.config.data.prompt_set
    assert generator.systems == [system_prompt(item.trajectory, form, prompt_set) for item in items]
    assert generator.calls == [([item.action for item in items], generator.config.eval.max_new_tokens, 0.0)]
