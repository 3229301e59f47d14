"""Rollouts in sorted batches: who stands with whom, what is sampled, when it stops, and judging meanwhile."""

import pytest
import torch
from judge_server import judge_server, section
from test_gspo import PROMPTS, made_trainer
from test_judge import ACTION, TRUTH, panel, settings

from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.schema import Turn
from agentworld.rewards import hybrid
from agentworld.rewards.settings import RewardSettings
from agentworld.train.gspo import GspoTrainer
from agentworld.train.rl_reward import EarlyJudging, reward_function
from agentworld.train.rollout_batches import BatchedRollouts


class Echo:
    """In place of TRL's trainer: a completion names its prompt."""

    def __init__(self, size: int) -> None:
        self.rollout_batch_size, self.calls, self._rows = size, [], [{}] * 100

    def _generate_single_turn(self, prompt_ids, *_):
        self.calls.append([len(ids) for ids in prompt_ids])
        return [[ids[0], len(ids)] for ids in prompt_ids], f"log-probabilities of call {len(self.calls)}"


class Batched(BatchedRollouts, Echo): ...


@pytest.mark.parametrize(
    ("size", "calls"),
    [(0, [[9, 2, 5, 2, 7]]), (5, [[9, 2, 5, 2, 7]]), (2, [[2, 2], [5, 7], [9]]), (3, [[2, 2, 5], [7, 9]])],
)
def test_batches_are_sorted_by_length_and_the_order_is_restored(size, calls) -> None:
    trainer = Batched(size)
    prompts = [[number] * length for number, length in enumerate([9, 2, 5, 2, 7])]
    completions, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
    assert trainer.calls == calls and logprobs == f"log-probabilities of call {len(calls)}"
    assert completions == [[number, len(ids)] for number, ids in enumerate(prompts)]


def test_a_rollout_that_fails_gives_its_judgements_up_and_no_other_does() -> None:
    """Also when it is interrupted; the error is told as it is."""

    class Scoring:
        def _generate_and_score_completions(self, inputs):
            if inputs[0]["error"]:
                raise inputs[0]["error"]
            return {"rows": self._rows}

    class Judging:
        abandoned = 0

        def abandon(self) -> None:
            self.abandoned += 1

    class Trainer(BatchedRollouts, Scoring): ...

    trainer, alone, judging = Trainer(), Trainer(), Judging()
    trainer.judging = judging
    assert trainer._generate_and_score_completions([{"error": None}]) == {"rows": [{"error": None}]}
    assert judging.abandoned == 0
    for number, error in enumerate((ValueError("x"), KeyboardInterrupt()), start=1):
        for one in (trainer, alone):
            with pytest.raises(type(error)):
                one._generate_and_score_completions([{"error": error}])
        assert judging.abandoned == number


def test_greedy_completions_do_not_depend_on_the_batch_and_sampling_on_the_seed_alone(tmp_path) -> None:
    """Real generation: no padding reaches a completion, and each ends at its first end of turn."""
    trainer = made_trainer(tmp_path, trainer_class=GspoTrainer, max_completion_length=12)
    trainer.model_wrapped = trainer.model.eval()
    prompts = [[5 + i] * (3 + 5 * i % 11) for i in range(7)]

    def sampled(size: int, greedy: bool) -> list[list[int]]:
        trainer.rollout_batch_size = size
        trainer.generation_config.do_sample = not greedy
        torch.manual_seed(3)
        return trainer._generate_single_turn(prompts, None, {}, 1)[0]

    whole = sampled(0, greedy=True)
    assert sampled(2, greedy=True) == whole and sampled(3, greedy=True) == whole
    assert sampled(2, greedy=False) == sampled(2, greedy=False) != whole
    end = whole[0][2]  # an id that greedy completions hold: now it ends them
    trainer.generation_config.eos_token_id = trainer.eos_token_ids = [end]
    assert sampled(2, greedy=True) == [ids[: ids.index(end) + 1] if end in ids else ids for ids in whole]


def test_a_completion_that_stops_at_the_closing_tag_earns_nothing(tmp_path) -> None:
    """Why the end of the turn is the one stop: the tag alone is no answer, and what follows it must be seen."""
    tokenizer = made_trainer(tmp_path).processing_class
    renderer = Renderer(tokenizer)
    rendered = renderer.final_turn("A terminal.", [Turn(ACTION, TRUTH)], 0, "", TRUTH)
    prompt = renderer.prompt("A terminal.", [Turn(ACTION, TRUTH)], 0)
    target = rendered.input_ids[len(prompt) :]
    assert target[-1] == renderer.end_id and renderer.decode(target[:-1]).endswith(CLOSE_TAG)

    def earned(ids: list[int]) -> float:
        prediction = renderer.parse(ids, tagged=True)
        refused = hybrid.without_rubric(prediction)
        whole = hybrid.reward(prediction, TRUTH, ACTION, True, RewardSettings())
        assert refused is None or refused.total == whole.total == 0
        return whole.total

    assert earned(target) > 0
    assert earned(target[:-1]) == 0, "stopped at the tag"
    assert earned([*target[:-1], *renderer.encode(f"\n{OPEN_TAG}b{CLOSE_TAG}"), renderer.end_id]) == 0
    assert earned([*target[:-1], *renderer.encode(" and so on"), renderer.end_id]) == 0


def columns(rows: list[dict]) -> dict:
    return {name: [row[name] for row in rows] for name in ("domain", "action", "observation", "deterministic")}


def test_the_judge_works_while_the_next_batch_is_sampled(tmp_path, monkeypatch) -> None:
    """Sampling of a batch does not end before the judge has the one before: it would wait for ever if the judge were
    asked at the end. None is asked twice, and rewards are those of a judge that is asked at the end."""
    logged: dict[str, float] = {}
    with judge_server() as server:
        tokenizer = made_trainer(tmp_path).processing_class
        renderer = Renderer(tokenizer)
        prompt_ids = {key: renderer.prompt("A terminal.", [Turn(f"{ACTION} {key}", TRUTH)], 0) for key in PROMPTS}
        rows = [
            {"prompt": key, "domain": "terminal", "action": ACTION, "observation": TRUTH, "deterministic": True}
            for key in PROMPTS
        ]
        answers = {key: f"{TRUTH}{number % 3}" for number, key in enumerate(PROMPTS)}
        begun: list[int] = []

        def sampled(self, prompts, *_):
            wait_for(lambda: len(server.requests) >= sum(begun))
            keys = [next(key for key, ids in prompt_ids.items() if ids == prompt) for prompt in prompts]
            begun.append(len(keys))
            texts = [f"{OPEN_TAG}{answers[key]}{CLOSE_TAG}" for key in keys]
            return [[*renderer.encode(text), renderer.end_id] for text in texts], None

        monkeypatch.setattr(Echo, "_generate_single_turn", sampled)
        judges = panel(server, tmp_path)
        judging = EarlyJudging(judges, renderer, prompt_ids)
        trainer = Batched(3)
        trainer.judging, trainer._rows = judging, rows
        completion_ids, _ = trainer._generate_single_turn([prompt_ids[key] for key in PROMPTS], None, {}, 1)
        assert begun == [3, 3, 2]

        class State:
            global_step = 1

        def rewarded(judges, judging, directory):
            function = reward_function(tokenizer, settings(server), directory, prompt_ids, judges, judging)
            return function(
                prompts=list(PROMPTS), completion_ids=completion_ids, **columns(rows), trainer_state=State(),
                log_metric=lambda name, value: logged.__setitem__(name, value),
            )  # fmt: skip

        found = rewarded(judges, judging, tmp_path / "early")
        assert logged["judge/requests"] == len(server.requests) == len(PROMPTS) and logged["judge/cached"] == 0
        asked = [(section(request.user, "PREDICTION"), request.user) for request in server.requests]
        assert len(set(asked)) == len(asked)
        (tmp_path / "cache.sqlite").unlink()
        later = rewarded(panel(server, tmp_path), None, tmp_path / "late")
        assert found == later and all(value is not None for value in found) and len(set(found)) > 1
        assert len(server.requests) == 2 * len(PROMPTS)


def wait_for(condition, seconds: float = 20.0) -> None:
    import time

    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.005)
