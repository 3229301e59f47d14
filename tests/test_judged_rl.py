"""RL with an LLM judge, from the recipe to the trained step, on two ranks and a test server.

A model of a few steps never closes the answer's tag, so nothing would be judged: here the completions are drawn from a
list by torch's generator, as a model's would be; all else is the stage as it is: batches, and judging beside them.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from judge_server import KEY, judge_server, section, share_of
from small_run import SMALL, completions_of, metrics, reopened

from agentworld.data.errors import RequestError
from agentworld.data.render import Renderer
from agentworld.data.tokenizer import load_tokenizer
from agentworld.rewards.judge_checks import check_stop, silent_judges
from agentworld.rewards.rubric import reference_scores
from agentworld.train import checkpoint
from agentworld.train.compose import compose, load_recipe, to_yaml
from agentworld.train.contradictions import validate_processes
from agentworld.train.inputs import check_inputs
from agentworld.train.launch import launch

PROGRAM = """
import sys
import torch
from agentworld.train import worker
worker.quiet_libraries()
from trl import GRPOTrainer
from agentworld.data.render import Renderer
def drawn(self, prompt_ids, *_):
    renderer, words = Renderer(self.processing_class), ("apple", "river", "quartz", "salt")
    texts = [" ".join(words[i] for i in torch.randint(4, (2,)).tolist()) for _ in prompt_ids]
    tags = [f"<predicted_observation>{text}</predicted_observation>" for text in texts]
    return [[*renderer.encode(text), renderer.end_id] for text in tags], None
GRPOTrainer._generate_single_turn = drawn
sys.exit(worker.main(sys.argv[1:]))
"""
BROKEN = ("quartz", "salt")


def judged(chain: dict, root: Path, name: str, address: str, **judge) -> Path:
    """A copy of the small run, to be trained again with a judge."""
    run = reopened(chain, root, name, "rl", reward={"rubric": "judge"})
    config = load_recipe(run)
    config.rl.rollout.batch_size = 3  # of the 4 completions of a rank
    (run / "recipe.yaml").write_text(to_yaml(config))
    settle(run, base_url=address, model="test", key_variable="JUDGE_TEST_KEY", backoff=0.01, **judge)
    return run


def settle(run: Path, **judge) -> None:
    config = load_recipe(run)
    for key, value in judge.items():
        setattr(config.reward.judge, key, value)
    (run / "recipe.yaml").write_text(to_yaml(config))


def work(run: Path) -> int:
    environment = {"DS_ACCELERATOR": "cpu", "JUDGE_TEST_KEY": KEY}
    return launch(["-c", PROGRAM, str(run), "rl"], 2, run / "rl", environment).code


@pytest.fixture(scope="module")
def straight(chain, tmp_path_factory) -> tuple[Path, list]:
    """A run whose judge answers badly now and then, and what the server was asked."""
    with judge_server(fault=share_of(0.3, ("429", "500", "garbage", "half-json"))) as server:
        run = judged(chain, tmp_path_factory.mktemp("judged"), "straight", server.address, attempts=12)
        assert work(run) == 0
        return run, list(server.requests)


def test_rl_learns_from_the_judge(straight) -> None:
    run, requests = straight
    rows = completions_of(run)
    assert len(rows) == 16
    for row in rows:
        text = row["completion"].split("<predicted_observation>")[1].split("</predicted_observation>")[0]
        [prompt] = [r for r in prompts(run) if r["prompt"] == row["prompt"]]
        scores = reference_scores(text, row["truth"], prompt["action"])
        assert row["judges"]["test"]["scores"] == pytest.approx(vars(scores))
        assert row["rubric"] == pytest.approx(5 * scores.mean)
    logged = [row for row in metrics(run / "rl") if "judge/failed_share" in row]
    assert [row["step"] for row in logged] == [1, 3] and all(row["judge/failed_share"] == 0 for row in logged)
    assert sum(row["judge/requests"] for row in logged) == len(requests) > 8
    assert sum(row["judge/retries"] for row in logged) == sum(bool(request.fault) for request in requests) > 0
    assert [row["reward"] for row in logged] == pytest.approx(
        [sum(r["reward"] for r in part) / 8 for part in (rows[:8], rows[8:])], abs=1e-4
    )


def prompts(run: Path) -> list[dict]:
    return pq.read_table(run / "data" / "prompts" / "rl.parquet").to_pylist()


def test_the_judge_reads_the_history_of_the_model(straight) -> None:
    """Fault 12: every request holds what the renderer made of the trajectory, by the ids of the prompt."""
    run, requests = straight
    renderer = Renderer(load_tokenizer(run / "data" / "tokenizer"))
    known = {}
    for row in prompts(run):
        messages = renderer.messages(row["prompt_ids"])
        known[messages[0].text, tuple(m.text for m in messages[1:]), row["observation"]] = row
    for request in requests:
        turns = request.user.count("[ACTION ") - 1
        read = [section(request.user, f"{kind} {n}") for n in range(1, turns + 1) for kind in ("ACTION", "OBSERVATION")]
        read.append(section(request.user, "ACTION TO ANSWER"))
        assert (section(request.user, "WORLD"), tuple(read), section(request.user, "TRUTH")) in known


def test_the_key_is_in_no_file(straight) -> None:
    run, requests = straight
    assert {request.authorization for request in requests} == {f"Bearer {KEY}"}
    files = [path for path in run.rglob("*") if path.is_file()]
    assert (run / "judge_cache.sqlite") in files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_a_judge_that_fails_stops_the_run_and_a_resume_asks_for_the_rest_only(straight, chain, tmp_path, capfd) -> None:
    """The stopped and resumed run equals the other: same completions, same losses; no judgement is bought twice."""
    expected, _ = straight

    def broken(request) -> str:
        prediction = section(request.user, "PREDICTION")
        has_begun = (tmp_path / "stopped" / "rl" / "metrics.jsonl").exists()  # the second rollout, then
        return "400" if has_begun and any(word in prediction for word in BROKEN) else ""

    with judge_server(fault=broken) as server:
        run = judged(chain, tmp_path, "stopped", server.address)
        assert work(run) == 1
        before = [request for request in server.requests if not request.fault]
        refused = [request for request in server.requests if request.fault]
    said = "".join(capfd.readouterr()) + (run / "rl" / "rank1.log").read_text()
    assert "judgements failed, more than" not in said and "of the judgements of a rollout failed" in said
    assert "step 2 is saved" in said and "HTTP 400" in said and "Traceback" not in said and KEY not in said
    assert [row["step"] for row in metrics(run / "rl")] == [1, 2]
    newest = checkpoint.newest_checkpoint(run / "rl" / "checkpoints", pytest.fail)
    assert checkpoint.step_of(newest) == 2 and not (run / "rl" / "export").exists()
    lost = [row for row in completions_of(run) if row["reward"] is None]
    assert lost and all("the judge failed: test: HTTP 400" in row["reason"] for row in lost)

    with judge_server() as server:  # elsewhere
        settle(run, base_url=server.address)
        assert work(run) == 0
        asked = {request.user for request in server.requests}
    assert asked == {request.user for request in refused} and not asked & {request.user for request in before}
    assert completions_of(run) == completions_of(expected)
    for found, row in zip(metrics(run / "rl"), metrics(expected / "rl"), strict=True):
        assert found.get("tokens") == row.get("tokens"), "logged at a step that begins a rollout"
        assert [found[key] for key in ("step", "loss", "grad_norm", "reward")] == pytest.approx(
            [row[key] for key in ("step", "loss", "grad_norm", "reward")], abs=1e-6
        )


JUDGE = ["reward=judge", "reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.model=m"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["reward=judge"], "reward.judge.base_url must be the address"),
        ([*JUDGE[:2]], "reward.judge.model is empty"),
        ([*JUDGE, "reward.judge.base_url=judge.example/v1"], "base_url must be the address"),
        ([*JUDGE, f"reward.judge.base_url=https://user:{KEY}@host/v1"], "base_url must hold no user"),
        (["recipe=smoke", f"reward.judge.base_url=https://host/v1?key={KEY}"], "base_url must hold no user"),
        ([*JUDGE, f"reward.judge.key_variable={KEY}"], "must be the name of an environment variable"),
        ([*JUDGE, "reward.judge.more=[{base_url:'http://h/v1',model:m}]"], "another judge has this name"),
        ([*JUDGE, "reward.judge.watchers=[{base_url:'http://h/v1'}]"], r"watchers\[0\].model is empty"),
        ([*JUDGE, "reward.judge.deadline=1900"], "deadline=1900 must be at most 1800"),
        ([*JUDGE, "reward.judge.failed_limit=1.5"], "failed_limit is a share"),
        ([*JUDGE, "reward.judge.on_failure=ignore"], "on_failure=ignore is not one of"),
        ([*JUDGE, "reward.judge.attempts=0"], "attempts must be greater than 0"),
        ([*JUDGE, "reward.judge.concurrency=0"], "concurrency must be greater than 0"),
        ([*JUDGE, "reward.judge.price_prompt=-1"], "price_prompt must not be negative"),
        ([*JUDGE, "reward.judge.base_url=http://h:99999/v1"], "base_url must be the address"),
        ([*JUDGE, "reward.judge.base_url=http://[::1/v1"], "base_url must be the address"),
        ([*JUDGE, "reward.judge.base_url=http://h h/v1"], "base_url must be the address"),
        ([*JUDGE, "reward.judge.cache=/"], "reward.judge.cache=/ must be a file"),
        ([*JUDGE, "reward.judge.cache=/no/such/folder/c.sqlite"], "in a folder that exists"),
        (["recipe=smoke", *JUDGE[1:]], "base_url has no effect with reward.rubric=reference_scorer"),
        (["recipe=smoke", JUDGE[2]], "model has no effect"),
        ([*JUDGE, "reward.judge.both_orders=true"], "both_orders is for pairs"),
        (["reward=turing"], "reward.judge.base_url must be the address"),
        (["reward=reference", "rl.pilot_completions=2", JUDGE[1]], "reward.judge.model is empty"),
    ],
)
def test_recipes_that_cannot_be_judged_are_refused(overrides, said) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        check_inputs(compose([*SMALL, *overrides]))
    assert KEY not in str(refused.value)


def test_a_judge_that_does_not_answer_is_told_at_the_start() -> None:
    with judge_server() as server:
        watcher = f"reward.judge.watchers=[{{base_url:'{server.address}',model:w}}]"
        (line,) = silent_judges(compose([*SMALL, *JUDGE, watcher]).reward)
    assert line.startswith("WARNING: reward.judge.base_url=http://127.0.0.1:9/v1 does not answer (")
    assert silent_judges(compose([*SMALL]).reward) == []


def test_where_reference_reward_is_not_asked_no_endpoint_is_needed() -> None:
    """SFT's evaluation takes the reference scorer."""
    config = compose([*SMALL, "reward=reference", "rl.pilot_completions=2", "stage=eval", "run.name=x"])
    validate_processes(config, 2)
    with pytest.raises(RequestError, match="holds no finished export"):
        check_inputs(config)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["reward.judge.concurrency=1"], "concurrency=1 is less than the 2 processes"),
        (["reward.judge.requests_per_minute=0.5"], "takes 960 s for the 8 judgements"),
        (["reward=turing", "reward.judge.requests_per_minute=1", "reward.judge.both_orders=true"], "the 16 judgements"),
        (["reward.judge.prompt_tokens=8"], "prompt_tokens=8 must be more than 1 x rl.max_completion_tokens=8"),
        (
            ["reward=reference", "rl.pilot_completions=2", "reward.judge.prompt_tokens=16"],
            "must be more than 2 x rl.max_completion_tokens=8",
        ),
    ],
)
def test_limits_that_no_rollout_can_keep_are_refused(overrides, said) -> None:
    with pytest.raises(RequestError, match=said):
        validate_processes(compose([*SMALL, *JUDGE, *overrides]), 2)


def test_a_job_must_have_time_to_stop() -> None:
    reward = compose([*SMALL, *JUDGE]).reward
    with pytest.raises(RequestError, match=r"signal_seconds=300 must be more than .*deadline=480"):
        check_stop(reward, 300)
    check_stop(reward, 600)
    check_stop(reward, 0)
    check_stop(compose(SMALL).reward, 300)
    with pytest.raises(RequestError, match=r"signal_seconds=300"):
        check_stop(compose([*SMALL, "reward=turing", *JUDGE[1:]]).reward, 300)


def test_a_key_that_is_not_in_the_environment_is_refused_where_it_is_needed(monkeypatch) -> None:
    monkeypatch.delenv("JUDGE_TEST_KEY", raising=False)
    overrides = [*SMALL, *JUDGE, "reward.judge.key_variable=JUDGE_TEST_KEY"]
    with pytest.raises(RequestError, match="environment variable JUDGE_TEST_KEY is not set"):
        check_inputs(compose(overrides))
    check_inputs(compose([*overrides, "stage=cpt"]))
    monkeypatch.setenv("JUDGE_TEST_KEY", KEY)
    check_inputs(compose(overrides))
