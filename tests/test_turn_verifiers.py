"""Synthesised verifiers in the reward: beside the domain's own, for one turn and one truth, and never silently."""

import json
from types import SimpleNamespace

import pytest

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.render import Renderer
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import train_tokenizer
from agentworld.rewards import completions, sandbox, turn_verifiers
from agentworld.rewards.sandbox import Limits
from agentworld.rewards.settings import RewardSettings
from agentworld.rewards.turn_verifiers import Asked, TurnVerifier, TurnVerifiers, load, shares, truth_hash
from agentworld.rewards.verdicts import NO_RULING
from agentworld.train import cli, rl

ACTION = json.dumps([{"keystrokes": "cat a.txt\n", "duration": 0.1}])
TRUTH = "cat a.txt\napple\nuser@box:~$ "
WRONG = "cat a.txt\nquartz\nuser@box:~$ "
APPLE = "def verify(prediction):\n    return 'apple' in prediction\n"
NO = "def verify(prediction):\n    return False\n"
HANGS = "def verify(prediction):\n    while 'quartz' in prediction: pass\n    return True\n"


def row(code: str, **more) -> dict:
    found = {"id": "t", "turn": 1, "truth_sha256": truth_hash(TRUTH), "axis": "long_context", "code": code}
    return found | more


def written(path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


@pytest.mark.usefixtures("sandboxed")
def test_the_reward_of_rl_takes_their_verdicts_and_tells_where_there_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(turn_verifiers, "LIMITS", Limits(seconds=0.5, batch_seconds=2.0))
    tokenizer = train_tokenizer([ACTION, TRUTH, WRONG, "<predicted_observation></predicted_observation>"], 400)
    renderer = Renderer(tokenizer)
    turns = [Turn("ls", "ls\na.txt\nuser@box:~$ "), Turn(ACTION, TRUTH)]
    prompt = renderer.prompt("A terminal.", turns, 1)
    texts = [TRUTH, WRONG, TRUTH]
    ids = [renderer.final_turn("A terminal.", turns, 1, "hm", text).input_ids[len(prompt) :] for text in texts]
    ids[2] = ids[2][:-1]  # did not end: of broken form

    def rewarded(*rows: dict) -> tuple[list[float], dict, list[dict]]:
        verifiers = load([written(tmp_path / "v.jsonl", *rows)])
        logged: dict[str, float] = {}
        settings, prompts = RewardSettings(guards="report"), {"t#1": prompt}
        reward = rl.reward_function(tokenizer, settings, tmp_path / "completions", prompts, None, verifiers=verifiers)
        got = reward(
            prompts=["t#1"] * 3, completions=[""] * 3, completion_ids=ids, domain=["terminal"] * 3, action=[ACTION] * 3,
            observation=[TRUTH] * 3, deterministic=[None] * 3, trainer_state=SimpleNamespace(global_step=3),
            log_metric=logged.__setitem__,
        )  # fmt: skip
        stored = completions.read(tmp_path / "completions" / "step_00003_rank_0.parquet")
        return got, {name: logged[name] for name in logged if name.startswith("synth")}, stored

    alone, _, before = rewarded(row(APPLE, turn=0))  # of another turn
    rule = [verdict["name"] for verdict in before[0]["verdicts"]]
    got, metrics, stored = rewarded(row(APPLE))
    assert got[0] == alone[0] == 25.0 and got[2] == 0.0
    assert [verdict["name"] for verdict in stored[0]["verdicts"]] == [*rule, "synthesised long_context"]
    assert stored[1]["rule"] == 0 and "synthesised long_context: says no" in stored[1]["reason"]
    assert metrics == {
        "synthesised/judged": pytest.approx(2 / 3), "synthesised/yes": pytest.approx(1 / 3),
        "synthesised/no_verdict": 0.0, "synthesised/stale": 0.0,
    }  # fmt: skip
    got, _, stored = rewarded(row(APPLE), row(NO, axis="error_handling"))  # one no is enough
    assert got[0] == pytest.approx(22.5) and stored[0]["rule"] == 0
    got, metrics, stored = rewarded(row(NO, truth_sha256=truth_hash(TRUTH + " ")))  # of another text
    assert got == alone and metrics["synthesised/stale"] == 1.0 and metrics["synthesised/judged"] == 0.0
    got, metrics, stored = rewarded(row(HANGS))
    assert got[1] == alone[1] and stored[1]["rule"] == before[1]["rule"]
    assert "no verdict of synthesised long_context: no answer within 0.5 s" in stored[1]["reason"]
    assert metrics["synthesised/no_verdict"] == pytest.approx(1 / 3)


def test_each_verifier_is_asked_once_about_each_text(monkeypatch) -> None:
    asked = []

    def run(tasks, limits):
        asked.extend(tasks)
        return [[text == "yes" for text in task.predictions] for task in tasks]

    monkeypatch.setattr(sandbox, "run", run)
    one = TurnVerifier("t#1", truth_hash(TRUTH), "long_context", APPLE)
    verifiers = TurnVerifiers([one, one, TurnVerifier("u#0", truth_hash("x"), "error_handling", NO)])
    assert len(verifiers) == 2
    texts = ["yes", "no", "yes", None, "no"]
    rulings = verifiers.rulings([*(Asked("t#1", TRUTH, text) for text in texts), Asked("v#1", TRUTH, "yes")])
    assert [task.predictions for task in asked] == [("yes", "no")]
    assert [[verdict.passed for verdict in ruling.verdicts] for ruling in rulings] == [
        [True], [False], [True], [], [False], [],
    ]  # fmt: skip
    assert rulings[3] == rulings[5] == NO_RULING
    assert shares(rulings)["synthesised/judged"] == pytest.approx(4 / 6)


def test_files_of_other_trajectories_are_refused_and_the_coverage_is_told() -> None:
    verifiers = TurnVerifiers([TurnVerifier("t#1", truth_hash(TRUTH), "long_context", APPLE)])
    assert verifiers.coverage([("t#1", TRUTH), ("u#1", "x")]).startswith("1 of 2 turns have")
    with pytest.raises(ContentError, match=r"none of the 1 .* \(1 have one for another text"):
        verifiers.coverage([("t#1", TRUTH + "x"), ("u#1", TRUTH)])


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "not JSON"), ("[]", "no synthesised verifier"), (json.dumps(row(NO, axis="speed")), "axis, one of"),
     (json.dumps(row(NO, turn="1")), "an integer")],
)  # fmt: skip
def test_a_damaged_line_names_its_place(tmp_path, line, said) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(row(APPLE)) + "\n" + line + "\n")
    with pytest.raises(ContentError, match=rf"v\.jsonl:2: .*{said}"):
        load([str(path)])


def test_without_files_nothing_is_started_and_a_system_without_sandbox_is_refused(tmp_path, monkeypatch) -> None:
    def unavailable(*_, **__) -> None:
        raise sandbox.UnavailableError("no namespaces")

    monkeypatch.setattr(sandbox, "run", unavailable)
    assert not load([])
    with pytest.raises(RequestError, match="no namespaces"):
        load([written(tmp_path / "v.jsonl", row(APPLE))])


@pytest.mark.usefixtures("sandboxed")
def test_score_takes_them_and_validate_refuses_them(tmp_path, capsys) -> None:
    path = written(tmp_path / "v.jsonl", row(APPLE))
    given = {"id": "t", "domain": "terminal", "turn": 1, "action": ACTION, "truth": TRUTH, "deterministic": None}
    rows = [given | {"prediction": f"<predicted_observation>{text}</predicted_observation>"} for text in (TRUTH, WRONG)]
    predictions = written(tmp_path / "p.jsonl", *rows)
    out = tmp_path / "out.jsonl"
    key = f"reward.verifiers=[{path}]"
    assert cli.main(["score", predictions, "--out", str(out), key]) == 0
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["verdicts"][-1]["name"] for one in scored] == ["synthesised long_context"] * 2
    assert [one["verdicts"][-1]["passed"] for one in scored] == [True, False]
    assert "2 of 2 turns have a synthesised verifier" in capsys.readouterr().err
    stale = written(tmp_path / "s.jsonl", row(APPLE) | {"truth_sha256": truth_hash(TRUTH + "x")})
    assert cli.main(["score", predictions, "--out", str(out), f"reward.verifiers=[{stale}]"]) == 1
    assert "2 have one for another text of the truth" in capsys.readouterr().err
    assert cli.main(["score", "--validate", predictions, key]) == 2
    assert "leave that key out" in capsys.readouterr().err
    assert cli.main(["score", predictions, "--out", str(out), "reward.verifiers=[nowhere.jsonl]"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
