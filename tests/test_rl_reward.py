"""The reward as TRL calls it: on sampled ids, with the model's own history, and stored so that `score` shows it."""

import json
from collections import defaultdict
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from agentworld.data.render import Renderer
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import train_tokenizer
from agentworld.rewards import completions
from agentworld.rewards.settings import RewardSettings
from agentworld.train import cli, rl

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

    answers = [sampled(TRUTH), sampled(LAST), sampled(TRUTH)[:-1], sampled("<|im_end|>" + TRUTH)]
    logged = defaultdict(list)
    folder = tmp_path / "completions"
    folder.mkdir()
    older = {"prompt": "t#0", "completion": "a", "truth": "b", "reward": 1.5, "reason": "1.50: a start before Parquet"}
    for name in ("step_00001_rank_0.jsonl", "step_00003_rank_0.jsonl"):
        (folder / name).write_text(json.dumps(older) + "\n")
    settings = RewardSettings(guards=guards)
    reward = rl.reward_function(tokenizer, settings, folder, {"t#1": prompt}, None)
    got = reward(
        prompts=["t#1"] * 4,
        completions=[""] * 4,
        completion_ids=answers,
        domain=["terminal"] * 4,
        action=[ACTION] * 4,
        observation=[TRUTH] * 4,
        deterministic=[True] * 4,
        trainer_state=SimpleNamespace(global_step=3),
        log_metric=lambda name, value: logged[name].append(value),
    )
    assert got[0] == 25.0 and got[2] == 0.0 and 4.5 < got[3] < 25.0
    assert (got[1] == pytest.approx(4.5)) == (guards == "lowest") and got[1] < 25.0
    assert [logged[f"guards/{name}"] for name in ("copy_of_last", "not_ended", "empty")] == [[0.25], [0.25], [0.0]]
    assert logged["domain/terminal/reward"] == got
    right, last, _, odd = got  # the third is of broken form: no rule and no dimension of it is counted
    assert logged["domain/terminal/rule"] == [25.0, 0.0, 0.0]
    assert logged["domain/terminal/rubric"] == pytest.approx([25.0, last / 0.9, 0.0, odd / 0.9])
    dimensions = [logged[f"domain/terminal/{name}"] for name in completions.DIMENSIONS]
    assert [5 * sum(one) / 5 for one in zip(*dimensions, strict=True)] == pytest.approx([25, last / 0.9, odd / 0.9])
    assert right == 25.0 and {len(values) for values in dimensions} == {3}
    out, page = tmp_path / "scored.jsonl", tmp_path / "page.html"
    assert cli.main(["score", str(folder), "--out", str(out), "--html", str(page)]) == 0
    earlier, *rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert earlier["reason"] == older["reason"], "the rollout of step 3 was sampled again, that of step 1 is kept"
    assert [row["reward"] for row in rows] == got
    assert [[hit["name"] for hit in row["guards"]] for row in rows] == [[], ["copy_of_last"], ["not_ended"], []]
    assert all(row["reason"] and row["domain"] == "terminal" for row in rows)
    assert {"output", "directory"} <= {verdict["name"] for verdict in rows[0]["verdicts"]}
    stored = folder / "step_00003_rank_0.parquet"
    filtered = pq.read_table(stored, filters=[("reward", ">", 24), ("ended", "=", True)]).to_pylist()
    assert [(one["rubric"], one["rule"], one["factuality"]) for one in filtered] == [(25.0, 25.0, 5.0)]
    assert [one["sampled_tokens"] for one in filtered] == [len(answers[0])]
    assert [one["guards"] for one in pq.read_table(stored).to_pylist()] == [
        [], ["copy_of_last"], ["not_ended"], [],
    ]  # fmt: skip
    assert "copy_of_last" in page.read_text() and "the last observation again" in page.read_text()
