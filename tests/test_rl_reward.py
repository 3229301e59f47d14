"""The reward as TRL calls it: on sampled ids, with the model's own history, and stored so that `score` shows it."""

import json
from collections import defaultdict
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from judge_server import judge_server, section

from agentworld.data.errors import ContentError
from agentworld.data.render import Renderer
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import train_tokenizer
from agentworld.rewards import completions, hybrid, judge_metrics
from agentworld.rewards.judge import Outcome, Panel
from agentworld.rewards.judge_client import Counts
from agentworld.rewards.settings import JudgeSettings, RewardSettings, reward_outside_rl
from agentworld.train import cli, rl, rl_reward
from agentworld.train.resume import Resumption
from agentworld.train.rl_reward import delete_abandoned

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
    assert got[0] == 25.0 and got[2] == 0.0
    for caught in (got[1], got[3]):  # a control token that is spelled in letters cuts nothing, and is no observation
        assert (caught == pytest.approx(4.5)) == (guards == "lowest") and 4.5 <= caught < 25.0
    assert [logged[f"guards/{name}"] for name in ("copy_of_last", "not_ended", "empty")] == [[0.25], [0.25], [0.0]]
    assert logged["domain/terminal/reward"] == got
    right, last, _, odd = got  # the third is of broken form: no rule and no dimension of it is counted
    assert logged["domain/terminal/rule"] == [25.0, 0.0, 0.0]
    assert logged["domain/terminal/rubric"] == pytest.approx([25.0, last / 0.9, 0.0, odd / 0.9])
    dimensions = [logged[f"domain/terminal/{name}"] for name in completions.DIMENSIONS]
    assert [5 * sum(one) / 5 for one in zip(*dimensions, strict=True)] == pytest.approx([25, last / 0.9, odd / 0.9])
    assert right == 25.0 and {len(values) for values in dimensions} == {3}
    fired = [[], ["copy_of_last"], ["not_ended"], ["thinking_inside"]]
    out, page = tmp_path / "scored.jsonl", tmp_path / "page.html"
    assert cli.main(["score", str(folder), "--out", str(out), "--html", str(page)]) == 0
    earlier, *rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert earlier["reason"] == older["reason"], "the rollout of step 3 was sampled again, that of step 1 is kept"
    assert [row["reward"] for row in rows] == got
    assert [[hit["name"] for hit in row["guards"]] for row in rows] == fired
    assert all(row["reason"] and row["domain"] == "terminal" for row in rows)
    assert {"output", "directory"} <= {verdict["name"] for verdict in rows[0]["verdicts"]}
    stored = folder / "step_00003_rank_0.parquet"
    filtered = pq.read_table(stored, filters=[("reward", ">", 24), ("ended", "=", True)]).to_pylist()
    assert [(one["rubric"], one["rule"], one["factuality"]) for one in filtered] == [(25.0, 25.0, 5.0)]
    assert [one["sampled_tokens"] for one in filtered] == [len(answers[0])]
    assert [one["guards"] for one in pq.read_table(stored).to_pylist()] == fired
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
    rl.require_reference_answers(prompts, settings)
    columns = {name: [value for value in prompts[name] for _ in range(2)] for name in prompts.column_names}
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
    assert [one["win"] for one in pq.read_table(path).to_pylist()] == [0.5, 0.0, 1.0, 0.5]
    rows = completions.read(path)
    assert [one["reference_answer"] for one in rows] == [near, near, far, far]
    assert [one["scores"]["win"] for one in rows] == [0.5, 0.0, 1.0, 0.5]


class Recorder:
    """In the panel's place: each of two judges makes a request for a completion when it is submitted."""

    def __init__(self) -> None:
        self.judges, self.watchers = ([SimpleNamespace(counts=Counts())] for _ in range(2))
        self.submitted, self.abandoned, self.now = [], 0, 0.0

    def submit(self, items) -> None:
        self.submitted += items
        self.now += 100.0
        for client in (*self.judges, *self.watchers):
            client.counts.requests += len(items)

    def rewards(self, items) -> list[Outcome]:
        assert self.submitted == items, "the judge is asked about what is rewarded"
        self.submitted = []
        self.now += 7.0
        return [Outcome(hybrid.nothing("")) for _ in items]

    def abandon(self) -> None:
        self.abandoned += 1


def test_what_is_judged_early_is_what_is_rewarded_and_each_rollout_counts_its_own(
    tokenizer, tmp_path, monkeypatch
) -> None:
    """With the answers of the pilot. A rank of four: TRL averages over ranks, so sums are told fourfold."""
    monkeypatch.setattr(rl_reward.engine, "rank", lambda: 3)
    monkeypatch.setattr(rl_reward.engine, "world_size", lambda: 4)
    renderer, panel = Renderer(tokenizer), Recorder()
    monkeypatch.setattr(judge_metrics, "time", SimpleNamespace(monotonic=lambda: panel.now))
    turns = [Turn(ACTION, TRUTH)]
    ids = renderer.prompt("A terminal.", turns, 0)
    sampled = renderer.final_turn("A terminal.", turns, 0, "hm", TRUTH).input_ids[len(ids) :]
    judging = rl_reward.EarlyJudging(panel, renderer, {"t#1": ids})
    reward = rl.reward_function(tokenizer, RewardSettings(), tmp_path, {"t#1": ids}, panel, judging)
    row = {"domain": "terminal", "action": ACTION, "observation": TRUTH, "deterministic": False}
    row["reference_answer"] = "near"
    for step in range(2):
        logged: dict[str, float] = {}
        for _ in range(2):  # batches
            judging.begin([{"prompt": "t#1", **row}] * 3, [sampled] * 3)
        reward(
            prompts=["t#1"] * 6,
            completion_ids=[sampled] * 6,
            trainer_state=SimpleNamespace(global_step=step),
            log_metric=logged.__setitem__,
            **{name: [value] * 6 for name, value in row.items()},
        )
        assert logged["judge/requests"] == 6 * 2 * 4
        assert logged["judge/seconds"] == 7.0, "what was judged while others were sampled made nobody wait"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_0000{n}_rank_3.parquet" for n in range(2)]
    judging.begin([{"prompt": "t#1", **row}], [sampled])
    judging.abandon()
    panel.submitted = []
    judging.begin([{"prompt": "t#1", **row}], [sampled])
    assert panel.abandoned == 1 and judging.watch().totals()["requests"] == 2, "what was given up is not counted"


def test_prompts_without_the_initial_answer_are_refused_at_the_start() -> None:
    row = {"prompt": ["x", "y"]}
    for prompts in (row, row | {"reference_answer": ["a", None]}):
        with pytest.raises(ContentError, match=r"set rl\.pilot_completions to at least 2"):
            rl.require_reference_answers(Dataset.from_dict(prompts), RewardSettings(rubric="reference"))
        rl.require_reference_answers(Dataset.from_dict(prompts), RewardSettings(rubric="turing"))
    whole = Dataset.from_dict(row | {"reference_answer": ["a", ""]})
    rl.require_reference_answers(whole, RewardSettings(rubric="reference"))


def test_an_evaluation_has_no_initial_answers_and_takes_the_reference_scorer() -> None:
    assert reward_outside_rl(RewardSettings(rubric="reference", rule="exact_match")) == RewardSettings(
        rubric="reference_scorer", rule="exact_match"
    )
    for rubric in ("reference_scorer", "judge", "turing"):
        assert reward_outside_rl(RewardSettings(rubric=rubric)) == RewardSettings(rubric=rubric)


@pytest.mark.parametrize(
    ("checkpoint", "left"),
    [
        ("checkpoint-8", {"step_00000_rank_0.parquet", "step_00004_rank_7.parquet"}),  # between two rollouts
        ("checkpoint-6", {"step_00000_rank_0.parquet", "step_00004_rank_7.parquet"}),  # that of step 4 is half used
        ("checkpoint-4", {"step_00000_rank_0.parquet"}),
        (None, set()),
    ],
)
def test_completions_that_will_be_sampled_again_do_not_stay(tmp_path, checkpoint, left) -> None:
    """Killed after the rollouts of steps 8 and 12 on 8 ranks: 4 ranks would not replace the files of ranks 4 to 7."""
    rollouts = ("step_00000_rank_0", "step_00004_rank_7", "step_00008_rank_0", "step_00008_rank_7", "step_00012_rank_3")
    for name in (*(f"{rollout}.parquet" for rollout in rollouts), "step_00008_rank_5.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / ".step_00004_rank_1.parquet.tmp-77").touch()
    delete_abandoned(tmp_path, Resumption(tmp_path / checkpoint if checkpoint else None).step)
    assert {path.name for path in tmp_path.iterdir()} == left
    delete_abandoned(tmp_path / "absent", 0)
