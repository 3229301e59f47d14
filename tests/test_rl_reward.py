"""The reward as TRL calls it: on sampled ids, with the model's own history, and stored so that `score` shows it."""

import json
from types import SimpleNamespace

import pytest
from datasets import Dataset
from judge_server import judge_server, section

from agentworld.data.errors import ContentError
from agentworld.data.render import Renderer
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import train_tokenizer
from agentworld.rewards.judge import Panel
from agentworld.rewards.settings import JudgeSettings, RewardSettings
from agentworld.train import cli, rl
from agentworld.train.evaluate import evaluated_reward

ACTION = json.dumps([{"keystrokes": "cat a.txt\n", "duration": 0.1}])
TRUTH = "cat a.txt\napple\nuser@box:~$ "
LAST = "ls\na.txt\nuser@box:~$ "


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([ACTION, TRUTH, LAST, "<predicted_observation></predicted_observation>"], 400)


@pytest.mark.parametrize("guards", ["lowest", "report"])
def test_rewards_are_computed_on_ids_and_stored_with_their_reasons(tokenizer, tmp_path, capsys, guards) -> None:
    renderer = Renderer(tokenizer)
    turns = [Turn("ls", LAST), Turn(ACTION, TRUTH)]
    prompt = renderer.prompt("A terminal.", turns, 1)

    def sampled(text: str) -> list[int]:
        return renderer.final_turn("A terminal.", turns, 1, "hm", text).input_ids[len(prompt) :]

    completions = [sampled(TRUTH), sampled(LAST), sampled(TRUTH)[:-1], sampled("<|im_end|>" + TRUTH)]
    logged: dict[str, float] = {}
    settings = RewardSettings(guards=guards)
    reward = rl.reward_function(tokenizer, settings, tmp_path / "completions", {"t#1": prompt}, None)
    got = reward(
        prompts=["t#1"] * 4,
        completions=[""] * 4,
        completion_ids=completions,
        domain=["terminal"] * 4,
        action=[ACTION] * 4,
        observation=[TRUTH] * 4,
        deterministic=[True] * 4,
        trainer_state=SimpleNamespace(global_step=3),
        log_metric=logged.__setitem__,
    )
    assert got[0] == 25.0 and got[2] == 0.0 and 4.5 < got[3] < 25.0
    assert (got[1] == pytest.approx(4.5)) == (guards == "lowest") and got[1] < 25.0
    assert (logged["guards/copy_of_last"], logged["guards/not_ended"], logged["guards/empty"]) == (0.25, 0.25, 0.0)
    out, page = tmp_path / "scored.jsonl", tmp_path / "page.html"
    assert cli.main(["score", str(tmp_path / "completions"), "--out", str(out), "--html", str(page)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["reward"] for row in rows] == got
    assert [[hit["name"] for hit in row["guards"]] for row in rows] == [[], ["copy_of_last"], ["not_ended"], []]
    assert all(row["reason"] and row["domain"] == "terminal" for row in rows)
    assert {"output", "directory"} <= {verdict["name"] for verdict in rows[0]["verdicts"]}
    assert "copy_of_last" in page.read_text() and "the last observation again" in page.read_text()


def test_reference_reward_compares_with_the_column_of_the_prompts(tokenizer, tmp_path) -> None:
    """The pilot's answer of each prompt reaches the judge beside the truth, and the row that is stored."""
    renderer = Renderer(tokenizer)
    turns = [Turn("ls", LAST), Turn(ACTION, TRUTH)]
    ids = renderer.prompt("A terminal.", turns, 1)
    near, far = TRUTH.replace("apple", "apples"), TRUTH.replace("apple", "user")
    row = {"domain": "terminal", "action": ACTION, "observation": TRUTH, "deterministic": False}
    prompts = Dataset.from_list([
        {"prompt": "t#1", "reference_answer": near, **row}, {"prompt": "t#2", "reference_answer": far, **row}
    ])  # fmt: skip
    settings = RewardSettings(rubric="reference", judge=JudgeSettings(model="test"))
    chosen = prompts.select_columns(rl.reward_columns(prompts, settings))
    columns = {name: [value for value in chosen[name] for _ in range(2)] for name in chosen.column_names}
    sampled = [
        renderer.final_turn("A terminal.", turns, 1, "hm", text).input_ids[len(ids) :] for text in (near, far) * 2
    ]
    logged: dict[str, list[float]] = {}
    with judge_server() as server:
        settings.judge.base_url = server.address
        panel = Panel(settings, tmp_path / "cache.sqlite", renderer.count)
        reward = rl.reward_function(tokenizer, settings, tmp_path / "completions", {"t#1": ids, "t#2": ids}, panel)
        got = reward(
            prompts=columns.pop("prompt"),
            completion_ids=sampled,
            trainer_state=SimpleNamespace(global_step=0),
            log_metric=lambda name, value: logged.setdefault(name, []).append(value),
            **columns,
        )
        asked = [{section(request.user, f"ANSWER {letter}") for letter in "AB"} for request in server.requests]
    assert got == [12.5, 0.0, 25.0, 12.5] and asked == [{near, far}] * 2
    assert sorted(logged["judge/win/test"]) == [0, 1] and logged["judge/requests"] == [2]
    [path] = (tmp_path / "completions").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["reference_answer"] for one in rows] == [near, near, far, far]
    assert [one["scores"]["win"] for one in rows] == [0.5, 0.0, 1.0, 0.5]


def test_prompts_without_the_initial_answer_are_refused_at_the_start() -> None:
    row = {name: ["x", "y"] for name in ("prompt", "domain", "action", "observation", "deterministic")}
    settings = RewardSettings(rubric="reference")
    for prompts in (row, row | {"reference_answer": ["a", None]}):
        with pytest.raises(ContentError, match=r"set rl\.pilot_completions to at least 1"):
            rl.reward_columns(Dataset.from_dict(prompts), settings)
    whole = Dataset.from_dict(row | {"reference_answer": ["a", ""]})
    assert rl.reward_columns(whole, settings)[-1] == "reference_answer"
    assert "reference_answer" not in rl.reward_columns(whole, RewardSettings(rubric="turing"))


def test_an_evaluation_has_no_initial_answers_and_takes_the_reference_scorer() -> None:
    assert evaluated_reward(RewardSettings(rubric="reference", rule="exact_match")) == RewardSettings(
        rubric="reference_scorer", rule="exact_match"
    )
    for rubric in ("reference_scorer", "judge", "turing"):
        assert evaluated_reward(RewardSettings(rubric=rubric)) == RewardSettings(rubric=rubric)
