"""`agentworld score` with a judge: costs first, verdicts kept, failures told and written, a proof by a judge."""

import json
from pathlib import Path

import pytest
from hack_outputs import CASES, said
from judge_server import KEY, JudgeServer, judge_server, section

from agentworld.data.schema import System, Trajectory, Turn, write_jsonl
from agentworld.rewards.rubric import RubricScores
from agentworld.train import cli


def row(case: str, prediction: str, number: int = 0, **more) -> dict:
    given = CASES[case]
    history = [[turn.action, turn.observation] for turn in given.history]
    asked = {"id": f"t{number}", "domain": given.domain, "turn": 1, "action": given.action, "truth": given.truth}
    return {**asked, "prediction": prediction, "history": history, "deterministic": given.deterministic, **more}


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def keys(server: JudgeServer, *more: str) -> list[str]:
    waits = ("reward.judge.backoff=0.005", "reward.judge.backoff_limit=0.01", "reward.judge.attempts=2")
    return [f"reward.judge.base_url={server.address}", "reward.judge.model=test", *waits, *more]


def rows_of_cat() -> list[dict]:
    return [
        row("cat", said(CASES["cat"].truth), 0, action_space="Keys.", simulation_instruction="Be exact."),
        row("cat", said(CASES["cat"].wrong, thinking="SECRET THOUGHT"), 1, system="All of it."),
        row("cat", "x", 2),
        row("article", said(CASES["article"].wrong), 3),
    ]


def test_a_judge_that_scores_like_the_scorer_gives_its_rewards(tmp_path, capsys, monkeypatch) -> None:
    """Keys may stand before and after flags; the second run asks nothing; the key is told nowhere."""
    monkeypatch.setenv("JUDGE_TEST_KEY", KEY)
    source = written(tmp_path / "in.jsonl", rows_of_cat())
    assert cli.main(["score", str(source), "--out", str(tmp_path / "offline.jsonl")]) == 0
    out, prices = tmp_path / "o.jsonl", ("reward.judge.price_prompt=1000", "reward.judge.price_completion=10000")
    with judge_server() as server:
        first, *others = keys(server, *prices, "reward.judge.key_variable=JUDGE_TEST_KEY")
        words = ["score", str(source), first, "--reward", "judge", "--out", str(out), *others]
        capsys.readouterr()
        assert cli.main(words) == 0
        told = capsys.readouterr()
        requests = list(server.requests)
        assert cli.main(words) == 0
        assert len(server.requests) == 3
    assert [one["reward"] for one in read(out)] == [one["reward"] for one in read(tmp_path / "offline.jsonl")]
    assert read(out)[1]["judges"]["test"]["scores"] == read(out)[1]["scores"] and "judges" not in read(out)[2]
    assert "test: 3 judgements to ask for, 0 in" in told.err and "which cost" in told.err
    assert "test: 3 judged, 0 cached, 0 failed; 3 requests" in told.out and "300 + 30 tokens, cost 0.6" in told.out
    assert "0 judgements to ask for, 3 in" in (again := capsys.readouterr()).err and "3 cached" in again.out
    assert (tmp_path / "judge_cache.sqlite").exists(), "beside --out"
    worlds = sorted(section(request.user, "WORLD") for request in requests)
    assert worlds == ["", "All of it.", "Keys.\n\nBe exact."]
    assert not any("SECRET THOUGHT" in request.user for request in requests)
    histories = {section(request.user, "OBSERVATION 1") for request in requests}
    assert histories == {CASES[name].history[0].observation for name in ("cat", "article")}
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir()) and KEY not in str(told)


def test_failures_are_null_and_above_the_limit_the_command_fails(tmp_path, capsys) -> None:
    source, out = written(tmp_path / "in.jsonl", rows_of_cat()), tmp_path / "o.jsonl"
    cache = tmp_path / "elsewhere.sqlite"
    with judge_server(fault=lambda request: "400" if "quartz" in request.user else "") as server:
        words = ["score", str(source), "--out", str(out), "--reward", "judge"]
        words += keys(server, f"reward.judge.cache={cache}")
        assert cli.main(words) == 1
        told = capsys.readouterr()
        assert [one["reward"] is None for one in read(out)] == [False, True, False, False]
        assert "the judge failed: test: HTTP 400" in read(out)[1]["reason"]
        assert "the judge failed on 1 of 3 predictions, more than reward.judge.failed_limit=0.2" in told.err
        terminal = next(line for line in told.out.splitlines() if line.lstrip().startswith("terminal")).split()
        assert terminal[:2] == ["terminal", "3"] and terminal[7] == "1", "counted in the table"
        asked = len(server.requests)
        assert cli.main([*words, "reward.judge.failed_limit=0.5"]) == 0
        assert len(server.requests) == asked + 1, "only what failed is asked again"
        zero = [*words, "reward.judge.failed_limit=1", "reward.judge.on_failure=zero"]
        assert cli.main(zero) == 0 and read(out)[1]["reward"] == 0.0
    assert cache.exists() and not (tmp_path / "judge_cache.sqlite").exists()


@pytest.mark.parametrize("reward", ["turing", "reference"])
def test_pairs_are_scored_too(tmp_path, reward: str) -> None:
    case = CASES["cat"]
    rows = [row("cat", said(text), n, reference_answer=case.wrong) for n, text in enumerate((case.truth, case.wrong))]
    rows.append(row("cat", said(case.truth.replace("apple", "apples")), 2, reference_answer=case.wrong))
    source, out = written(tmp_path / "in.jsonl", rows), tmp_path / "o.jsonl"
    with judge_server() as server:
        words = ["score", str(source), "--out", str(out), "--reward", reward]
        assert cli.main([*words, *keys(server, "reward.judge.both_orders=true")]) == 0
        assert len(server.requests) == (4 if reward == "turing" else 2)
    wins = [one["scores"]["win"] for one in read(out)]
    # In the Turing test the server takes both wrong ones, the longer ones, for real; a guard lets one of them win.
    assert wins == ([1.0, 0.5, 1.0] if reward == "reference" else [1.0, 0.0, 1.0])


def test_wrong_requests_of_a_judge_end_in_one_line(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    path, out = written(tmp_path / "in.jsonl", rows_of_cat()), str(tmp_path / "o")
    stored = {"prompt": "t#3", "completion": "x", "truth": "y", "reward": 1.0, "reason": "z"}
    old = written(tmp_path / "old.jsonl", [stored])
    judge = ["reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.model=m"]
    for code, words, *arguments in (
        (2, "base_url must be the address", "--reward", "judge"),
        (2, "did you mean reward.judge.model", "--reward", "judge", "reward.judge.modell=m"),
        (2, "reward.judge.attempts: expected an integer", "--reward", "judge", "reward.judge.attempts=x"),
        (2, "only keys of reward can be set", "--reward", "judge", "seed=1"),
        (2, "NO_SUCH_KEY is not set", "--reward", "judge", *judge, "reward.judge.key_variable=NO_SUCH_KEY"),
        (2, "both_orders is for pairs", "--reward", "judge", *judge, "reward.judge.both_orders=true"),
        (2, "reward.guards=none is not one of", "reward.guards=none"),
        (2, "verdicts; name another", "--reward", "judge", *judge, f"reward.judge.cache={out}"),
        (2, "one file or folder", str(old)),
        (1, "in.jsonl:1: reference_answer", "--reward", "reference", *judge),
    ):
        assert cli.main(["score", str(path), "--out", out, *arguments]) == code, arguments
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
    assert cli.main(["score", str(old), "--out", out, "reward.guards=zero"]) == 2
    assert "shown with the reward that it was trained on" in capsys.readouterr().err
    assert cli.main(["score", "--validate", str(path), "--reward", "reference", *judge]) == 2
    assert "trajectories do not hold" in capsys.readouterr().err


def test_keys_change_the_offline_reward_too(tmp_path) -> None:
    source, out = written(tmp_path / "in.jsonl", [row("article", said("The prediction is correct."))]), tmp_path / "o"
    for policy, reward in (("lowest", 5.0), ("zero", 0.0)):
        assert cli.main(["score", str(source), "--out", str(out), f"reward.guards={policy}"]) == 0
        assert read(out)[0]["reward"] == pytest.approx(reward)
    assert cli.main(["score", "reward.guards=lowest", "--out", str(out), str(source)]) == 0, "in any order"
    assert read(out)[0]["reward"] == pytest.approx(5.0)


@pytest.fixture
def gold(tmp_path) -> Path:
    turns = [Turn("ls", "a.txt  b.txt\n$ "), Turn("cat a.txt", "cat a.txt\napple river 42\nstone\n$ ")]
    made = Trajectory("t", "terminal", "made", "t", System("A world.", "Actions."), turns)
    write_jsonl(tmp_path / "gold.jsonl", [made])
    return tmp_path / "gold.jsonl"


def test_a_reward_is_proved_with_a_judge(gold, tmp_path, capsys, monkeypatch) -> None:
    """A judge that scores like the scorer proves the reward, one that sees nothing does not, one that fails says so."""
    monkeypatch.chdir(tmp_path)
    offline, judged = tmp_path / "offline.jsonl", tmp_path / "judged.jsonl"
    assert cli.main(["score", "--validate", str(gold), "--out", str(offline)]) == 0
    with judge_server() as server:
        words = ["score", "--validate", str(gold), "--reward", "judge", *keys(server)]
        assert cli.main([*words, "--out", str(judged)]) == 0
        told, count = capsys.readouterr(), len(server.requests)
        assert f"{count} judgements to ask for" in told.err and f"{count} judged" in told.out
        assert read(judged) == read(offline)
        assert {"A world." in section(request.user, "WORLD") for request in server.requests} == {True}
        server.score = lambda *_: RubricScores(5, 5, 5, 5, 5)
        blind = [*words, f"reward.judge.cache={tmp_path / 'other.sqlite'}", "reward.guards=report"]
        assert cli.main(blind) == 1
        assert "the reward does not hold" in (told := capsys.readouterr()).err and "FAILS" in told.out
        server.fault = lambda request: "400"
        failing = [*words, f"reward.judge.cache={tmp_path / 'third.sqlite'}"]
        assert cli.main(failing) == 1
        assert "the judge failed on" in (told := capsys.readouterr()).err and "UNJUDGED" in told.out
