"""The pilot of RL: what is sampled and kept, what a stop and a judge's failures leave, and what RL reads of it.

The model is replaced by a list of answers where a model of a few steps would only give broken forms; the rest is the
real pilot.
"""

import json
from copy import deepcopy
from itertools import combinations
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset

from agentworld.data.errors import ContentError
from agentworld.data.render import Renderer
from agentworld.data.rows import Prompt, write_prompts
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import train_tokenizer
from agentworld.rewards import completions, hybrid, turn_verifiers
from agentworld.rewards.judge import Outcome, Panel, Verdict
from agentworld.rewards.rubric import RubricScores
from agentworld.rewards.turn_verifiers import TurnVerifier, TurnVerifiers, truth_hash
from agentworld.train import cli, evaluate, generation, pilot, pilot_groups, pipeline, prompt_stream, rl, stage
from agentworld.train.compose import compose
from agentworld.train.stop import StoppedError

PROMPTS = 7
SETTINGS = ["recipe=smoke", "rl.pilot_completions=3", "eval.batch_size=2", "rl.prompts_per_rollout=2"]
SETTINGS += ["rl.num_generations=4", "rl.mini_batches=1", "rl.completions_per_device=4", "reward.guards=lowest"]
TEXTS = [f"out {n}\nuser@box:~$ " for n in range(PROMPTS)]
ANSWERS = {0: [0, 0, 0], 1: ["", "", ""], 2: [None] * 3}  # solved, hopeless twice: nothing said, broken form


class Scripted:
    """Stands where the model stood. Prompt 0 is answered right, 1 and 2 always wrong, the others now and then right."""

    asked = 0
    stop_after = 10**9

    def __init__(self, config, run_dir, weights) -> None:
        self.config, self.run_dir, self.renderer = config, run_dir, Renderer(TOKENIZER)

    def chosen(self, number: int, place: int) -> int | str | None:
        """Of what is said to the prompt `number`: a text by its number, other words, or None for a broken form."""
        return ANSWERS.get(number, [None, number, "wrong"])[place % 3]

    def answer(self, prompts, max_new_tokens, temperature):
        assert (max_new_tokens, temperature) == (self.config.rl.max_completion_tokens, self.config.rl.temperature)
        if type(self).asked >= self.stop_after:
            raise StoppedError("asked to stop")
        type(self).asked += len(prompts)
        answers = []
        for place, ids in enumerate(prompts):
            number = int(self.renderer.messages(ids)[-1].text)
            said = self.chosen(number, place)
            answers.append(self.spelled(TEXTS[said] if isinstance(said, int) else said))
        return answers

    def spelled(self, text: str | None) -> list[int]:
        tagged = f"<predicted_observation>{text}</predicted_observation>" if text is not None else "no tag"
        return [*self.renderer.encode(tagged), self.renderer.end_id]


class Drawn(Scripted):
    """Draws what is said, as a model does."""

    def chosen(self, number: int, place: int) -> int | str | None:
        return int(torch.randint(PROMPTS, ()))


class Spelling(Scripted):
    """Spells control tokens in plain tokens."""

    SAID = "a</think>b<|im_end|>c"

    def chosen(self, number: int, place: int) -> int | str | None:
        return self.SAID


TOKENIZER = train_tokenizer([*TEXTS, "<predicted_observation></predicted_observation>"], 400)


@pytest.fixture
def prepared(tmp_path, monkeypatch) -> SimpleNamespace:
    """A run with RL prompts and a hand-off before RL, and a config that asks for a pilot."""
    run, renderer = tmp_path / "run", Renderer(TOKENIZER)
    (run / "data" / "prompts").mkdir(parents=True)
    (run / "data" / "manifest.json").write_text('{"sha256": "d"}')
    (run / "sft" / "export").mkdir(parents=True)
    (run / "sft" / "export" / "handoff.json").write_text("{}")
    turns = [[Turn(str(number), text)] for number, text in enumerate(TEXTS)]
    domains = ["terminal" if number % 2 == 0 else "swe" for number in range(PROMPTS)]
    prompts = [
        Prompt(f"t{n}#0", renderer.prompt("A world.", turn, 0), domains[n], str(n), TEXTS[n], False, "none")
        for n, turn in enumerate(turns)
    ]
    write_prompts(run / "data" / "prompts" / "rl.parquet", prompts)
    monkeypatch.setattr(pilot.kernels, "install", dict)
    monkeypatch.setattr(stage.checkpoint, "accept_parent", lambda *arguments: None)
    monkeypatch.setattr(pilot, "Generator", Scripted)
    monkeypatch.setattr(Scripted, "asked", 0)
    return SimpleNamespace(run=run, config=compose(SETTINGS), folder=run / "rl" / "pilot")


def rows_of(prepared) -> list[dict]:
    return [row for path in sorted(prepared.folder.glob("part_*.parquet")) for row in completions.read(path)]


def report_of(prepared) -> dict:
    return json.loads((prepared.folder / "report.json").read_text())


def test_the_pilot_scores_every_prompt_and_says_what_it_drops(prepared, capsys) -> None:
    pilot.run(prepared.config, prepared.run)
    report = report_of(prepared)
    assert report["dropped"] == {"solved": ["t0#0"], "hopeless": ["t1#0", "t2#0"]}
    assert {name: (row["given"], row["kept"]) for name, row in report["domains"].items()} == {
        "terminal": (4, 2), "swe": (3, 2),
    }  # fmt: skip
    assert "all: 4 of 7 prompts kept; 1 solved, 2 hopeless, 0 without verdicts" in capsys.readouterr().out
    rows = rows_of(prepared)
    assert [row["prompt"] for row in rows] == [f"t{n}#0" for n in range(PROMPTS) for _ in range(3)]
    assert all(row["truth"] == TEXTS[int(row["action"])] and row["reason"] for row in rows)
    mean = sum(row["reward"] for row in rows) / len(rows)
    assert report["total"]["mean_reward"] == pytest.approx(mean)
    assert cli.main(["score", str(prepared.folder), "--out", str(prepared.run / "scored.jsonl")]) == 0
    answers = pilot.reference_answers(prepared.run)
    assert answers["t0#0"] == TEXTS[0] and answers["t2#0"] == "no tag" and answers["t1#0"] == ""
    assert answers["t3#0"] == TEXTS[3], "the first completion is of broken form, the second is taken"
    assert pilot_groups.dropped_prompts(prepared.config, prepared.run) == {"t0#0", "t1#0", "t2#0"}


def test_a_stopped_pilot_goes_on_with_the_parts_that_are_missing(prepared, monkeypatch) -> None:
    parent = prepared.run / "sft" / "export"
    monkeypatch.setattr(Scripted, "stop_after", 9)
    with pytest.raises(StoppedError):
        pilot.run(prepared.config, prepared.run)
    assert len(list(prepared.folder.glob("part_*"))) == 2 and Scripted.asked == 12
    assert not pilot_groups.is_done(prepared.config, prepared.run, parent)
    monkeypatch.setattr(Scripted, "stop_after", 10**9)
    pilot.run(prepared.config, prepared.run)
    assert Scripted.asked == PROMPTS * 3 and pilot_groups.is_done(prepared.config, prepared.run, parent)
    pilot.run(prepared.config, prepared.run)
    assert Scripted.asked == PROMPTS * 3, "what is whole is not sampled again"


def test_a_resumed_pilot_finds_what_it_would_have_found(prepared, monkeypatch) -> None:
    """What is drawn depends on the part, not on what this process has drawn before."""
    monkeypatch.setattr(pilot, "Generator", Drawn)
    pilot.run(prepared.config, prepared.run)
    straight = rows_of(prepared)
    said = [row["completion"] for row in straight]
    assert len(set(said)) > 3 and said[:6] != said[6:12], "each part draws from a stream of its own"
    (prepared.folder / "report.json").unlink()
    (prepared.folder / "part_00002.parquet").unlink()
    (prepared.folder / "part_00001.parquet").unlink()
    pilot.run(prepared.config, prepared.run)
    assert rows_of(prepared) == straight


def test_a_resume_with_another_batch_keeps_what_is_whole(prepared) -> None:
    """A smaller eval.batch_size is how one goes on after memory ran out."""
    pilot.run(prepared.config, prepared.run)
    (prepared.folder / "report.json").unlink()
    (prepared.folder / "part_00001.parquet").unlink()
    prepared.config.eval.batch_size = 1
    pilot.run(prepared.config, prepared.run)
    assert Scripted.asked == (PROMPTS + 2) * 3 and report_of(prepared)["parts"] == 4
    assert [row["prompt"] for row in rows_of(prepared)] == [f"t{n}#0" for n in range(PROMPTS) for _ in range(3)]


def test_a_start_that_rl_would_refuse_is_refused_before_anything_is_sampled(prepared, monkeypatch) -> None:
    asked = []

    def refuse(*arguments):
        asked.append(arguments)
        raise ContentError("made by stage rl")

    monkeypatch.setattr(stage.checkpoint, "accept_parent", refuse)
    with pytest.raises(ContentError, match="made by stage rl"):
        pilot.run(prepared.config, prepared.run)
    parent, tokenizer = prepared.run / "sft" / "export", prepared.run / "data" / "tokenizer"
    assert asked == [(parent, "rl", tokenizer, stage.architecture_to_check(prepared.config))] and Scripted.asked == 0


def test_control_strings_that_were_spelled_stay_text_in_the_reference_answer(prepared, monkeypatch) -> None:
    monkeypatch.setattr(pilot, "Generator", Spelling)
    prepared.config.rl.drop_hopeless = False
    pilot.run(prepared.config, prepared.run)
    assert set(pilot.reference_answers(prepared.run).values()) == {Spelling.SAID}


@pytest.mark.parametrize("change", ["hand-off", "recipe", "verifier"])
def test_completions_of_another_start_or_recipe_do_not_count(prepared, change, monkeypatch) -> None:
    verifiers = prepared.run / "verifiers.jsonl"
    if change == "verifier":
        verifiers.write_text("old")
        prepared.config.reward.verifiers = [str(verifiers)]
        monkeypatch.setattr(generation, "load", lambda paths: None)
    pilot.run(prepared.config, prepared.run)
    parent = prepared.run / "sft" / "export"
    if change == "hand-off":
        (parent / "handoff.json").write_text('{"step": 2}')
    elif change == "recipe":
        prepared.config.reward.guards = "zero"
    else:
        verifiers.write_text("new")
    assert not pilot_groups.is_done(prepared.config, prepared.run, parent)
    pilot.run(prepared.config, prepared.run)
    assert Scripted.asked == 2 * PROMPTS * 3 and pilot_groups.is_done(prepared.config, prepared.run, parent)
    prepared.config.reward.judge.base_url = "https://elsewhere/v1"
    assert pilot_groups.is_done(prepared.config, prepared.run, parent), "a judge may move between starts"


def test_what_completions_and_rewards_depend_on_is_in_the_settings_and_nothing_else(prepared, tmp_path) -> None:
    parent, manifest = prepared.run / "sft" / "export", prepared.run / "data" / "manifest.json"

    def settings(parent=parent, data: str = "d", **rl) -> dict:
        config = deepcopy(prepared.config)
        config.seed = rl.pop("seed", config.seed)
        config.reward.judge.on_failure = rl.pop("on_failure", config.reward.judge.on_failure)
        for key, value in rl.items():
            setattr(config.rl, key, value)
        manifest.write_text(json.dumps({"sha256": data}))
        return pilot_groups.settings_of(config, prepared.run, parent)

    for same in ({"drop_solved": False}, {"on_failure": "zero"}, {"prompts_per_rollout": 4}):
        assert settings(**same) == settings()
    others = [{"seed": 1}, {"pilot_completions": 4}, {"temperature": 0.5}, {"max_completion_tokens": 7}, {"data": "e"}]
    others += [{}, {"parent": tmp_path / "a"}, {"parent": tmp_path / "b"}]  # directories without a hand-off
    found = [settings(**other) for other in others]
    assert all(one != other for one, other in combinations(found, 2))


def test_too_few_prompts_stop_the_run_and_name_counts_and_keys(prepared) -> None:
    prepared.config.rl.prompts_per_rollout = 5
    with pytest.raises(ContentError, match=r"leaves 4 of 7 prompts.*prompts_per_rollout=5: 1 are solved .*2 hopeless"):
        pilot.run(prepared.config, prepared.run)
    assert report_of(prepared)["total"]["kept"] == 4, "what was found can be looked at"
    prepared.config.rl.prompts_per_rollout = 4
    assert len(pilot_groups.dropped_prompts(prepared.config, prepared.run)) == 3, "just enough is enough"
    prepared.config.rl.prompts_per_rollout = 5
    prepared.config.rl.drop_hopeless = False
    assert not pilot_groups.is_done(prepared.config, prepared.run, prepared.run / "sft" / "export")
    pilot.run(prepared.config, prepared.run)
    assert Scripted.asked == PROMPTS * 3, "another drop_* makes another report of the same completions"
    assert pilot_groups.dropped_prompts(prepared.config, prepared.run) == {"t0#0"}


class Judge:
    """Answers in the panel's place; on the completions of `lost` (prompt: how many) it fails."""

    def __init__(self, prepared, monkeypatch, lost: dict[str, int]) -> None:
        self.lost, self.asked, reward = lost, 0, prepared.config.reward
        reward.rubric, reward.judge.base_url, reward.judge.model = "judge", "http://127.0.0.1:1/v1", "m"
        monkeypatch.setattr(Panel, "judge", lambda panel, cases: [self.verdict(case) for case in cases])

    def verdict(self, case) -> Verdict:
        self.asked += 1
        number = case.messages[-1].text
        if self.lost.get(number):
            self.lost[number] -= 1
            return Verdict(None, "m: HTTP 500")
        return Verdict(RubricScores(*[5.0 if case.prediction == case.truth else 1.0] * 5), "")


@pytest.mark.parametrize("on_failure", ["leave_out", "zero"])
def test_a_few_failed_judgements_leave_their_groups(prepared, monkeypatch, on_failure) -> None:
    """Two of a part of six fail, of 12 that a rollout has: that is no outage, and nobody knows what the group is."""
    prepared.config.reward.judge.on_failure, prepared.config.rl.num_generations = on_failure, 6
    Judge(prepared, monkeypatch, {"0": 2})
    pilot.run(prepared.config, prepared.run)
    report = report_of(prepared)
    assert report["dropped"] == {"solved": [], "hopeless": ["t1#0", "t2#0"]}
    assert report["total"]["unjudged"] == 1 and report["total"]["kept"] == 5
    prepared.config.reward.judge.on_failure = "leave_out" if on_failure == "zero" else "zero"
    assert pilot_groups.is_done(prepared.config, prepared.run, prepared.run / "sft" / "export"), "RL's, not the pilot's"


@pytest.mark.parametrize(("on_failure", "noticed_within"), [("leave_out", 6), ("zero", 6), ("leave_out", 1000)])
def test_a_judge_that_is_out_stops_the_pilot_and_a_resume_asks_again(
    prepared, monkeypatch, on_failure, noticed_within
) -> None:
    prepared.config.reward.judge.on_failure = on_failure
    prepared.config.rl.prompts_per_rollout, prepared.config.rl.num_generations = 2, noticed_within // 2
    judge = Judge(prepared, monkeypatch, {"3": 9, "4": 9, "5": 9})
    with pytest.raises(ContentError, match=r"the judge failed on \d of \d+ .*failed_limit=0\.2.*resume=true"):
        pilot.run(prepared.config, prepared.run)
    names = {path.name for path in prepared.folder.glob("part_*")}
    early = noticed_within == 6
    assert names == {"part_00000.parquet"} | (set() if early else {"part_00003.parquet"}), "whole, without failures"
    assert judge.asked == (12 if early else 14), "parts that follow are not sampled"
    judge.lost.clear()
    prepared.config.rl.prompts_per_rollout = 2
    pilot.run(prepared.config, prepared.run)
    assert report_of(prepared)["dropped"] == {"solved": ["t0#0"], "hopeless": ["t1#0", "t2#0"]}


def test_more_failures_than_the_limit_can_be_accepted(prepared, monkeypatch) -> None:
    prepared.config.reward.judge.failed_limit = 1.0
    Judge(prepared, monkeypatch, {"0": 3, "3": 9})
    pilot.run(prepared.config, prepared.run)
    assert report_of(prepared)["total"]["unjudged"] == 2, "of prompt 3 one is of broken form, and alone has a reward"


def test_a_dead_judge_stops_the_pilot_and_an_evaluation_whatever_a_failure_scores(prepared, monkeypatch) -> None:
    """With `on_failure=zero` the zeros would drop every prompt as hopeless, or be the measured reward."""
    reward = prepared.config.reward
    reward.rubric, reward.judge.on_failure = "judge", "zero"
    reward.judge.base_url, reward.judge.model = "http://127.0.0.1:9/v1", "m"  # the discard port: nobody listens
    reward.judge.attempts = 1
    with pytest.raises(ContentError, match=r"the judge failed on [0-9]+ of [0-9]+ completions.*failed_limit=0\.2"):
        pilot.run(prepared.config, prepared.run)
    zero = Outcome(hybrid.nothing("0: the judge failed"), Verdict(None, "m: HTTP 500"))
    good = Outcome(hybrid.nothing("0: another reason"), Verdict(RubricScores(5, 5, 5, 5, 5), ""))
    evaluate._require_judgements(reward, [good] * 4 + [zero])
    with pytest.raises(ContentError, match="the judge failed on 2 of 5 completions"):
        evaluate._require_judgements(reward, [good] * 3 + [zero] * 2)
    # A limit that lets it pass keeps the prompts: nothing is known of them.
    reward.judge.failed_limit = 1.0
    pilot.run(prepared.config, prepared.run)
    assert report_of(prepared)["dropped"] == {"solved": [], "hopeless": ["t2#0"]}, "the one with broken forms alone"


def test_verifiers_of_other_trajectories_are_refused_before_anything_is_trained(prepared, monkeypatch, capsys) -> None:
    """RL asks again when it starts, which is after CPT, SFT and the pilot."""
    (prepared.run / "data" / "report.json").write_text('{"rl": {"kept": 7}}')
    prepared.config.reward.verifiers = ["verifiers.jsonl"]
    for truth in (TEXTS[0], "of other data"):
        known = TurnVerifiers([TurnVerifier("t0#0", truth_hash(truth), "long_context", "")])
        monkeypatch.setattr(turn_verifiers, "read", lambda paths, known=known: known)
        if truth == TEXTS[0]:
            pipeline._require_prompts(prepared.config, prepared.run)
            assert "1 of 7 turns have a synthesised verifier" in capsys.readouterr().out
        else:
            with pytest.raises(ContentError, match=r"none of the 1 synthesised verifiers .* 7 turns \(1 have one"):
                pipeline._require_prompts(prepared.config, prepared.run)


def test_rl_reads_the_kept_prompts_with_a_reference_answer_in_the_order_of_the_weights(prepared) -> None:
    config, rl_folder = prepared.config, prepared.run / "rl"
    config.seed = 5
    before_rl = SimpleNamespace(
        config=config, run_dir=prepared.run, parent=prepared.run / "sft" / "export", directory=rl_folder
    )
    rows = pq.read_table(prepared.run / "data" / "prompts" / "rl.parquet", columns=list(rl.COLUMNS)).to_pylist()
    given = Dataset.from_list(rows)
    with pytest.raises(ContentError, match=r"rl/pilot is no pilot of .*sft/export"):
        rl.training_prompts(before_rl, config.rl, given)
    pilot.run(config, prepared.run)
    kept = rl.training_prompts(before_rl, config.rl, given)
    assert kept["prompt"][:] == [f"t{n}#0" for n in (3, 4, 5, 6)] and kept.column_names == list(rl.COLUMNS)
    config.rl.domain_weights, config.rl.max_steps = {"terminal": 1.0, "swe": 1.0}, 6
    drawn = rl.training_prompts(before_rl, config.rl, given)
    order = [
        prompt_stream.draw(kept["domain"][:], config.rl.domain_weights, rollouts=6, per_rollout=2, seed=seed)
        for seed in (5, 0)
    ]
    assert drawn["prompt"][:] == kept.select(order[0])["prompt"][:] and order[0] != order[1]
    assert len(drawn) == 6 * 2 and drawn["domain"][:].count("swe") == 6
    assert all(set(drawn["domain"][n : n + 2]) == {"terminal", "swe"} for n in range(0, 12, 2)), "every rollout"
    facts = json.loads((rl_folder / "prompts.json").read_text())
    half = {"prompts": 2, "drawn": 6, "share": 0.5}
    assert facts == {"prompts": 4, "domains": {"swe": half, "terminal": half}}
    config.rl.domain_weights, config.rl.pilot_completions = {}, 0
    assert rl.training_prompts(before_rl, config.rl, given) is given


def test_reference_reward_reads_the_answers_of_the_pilot_and_says_which_part_lacks(prepared, monkeypatch) -> None:
    config = prepared.config
    Judge(prepared, monkeypatch, {})
    config.reward.rubric = "reference"
    before_rl = SimpleNamespace(
        config=config, run_dir=prepared.run, parent=prepared.run / "sft" / "export", directory=prepared.run / "rl"
    )
    rows = pq.read_table(prepared.run / "data" / "prompts" / "rl.parquet", columns=list(rl.COLUMNS)).to_pylist()
    pilot.run(config, prepared.run)
    kept = rl.training_prompts(before_rl, config.rl, Dataset.from_list(rows))
    assert kept["reference_answer"][:] == [TEXTS[n] for n in (3, 4, 5, 6)]
    (prepared.folder / "part_00003.parquet").unlink()
    with pytest.raises(ContentError, match=r"part_00003\.parquet is not there, one of the 4 .*delete .*report\.json"):
        rl.training_prompts(before_rl, config.rl, Dataset.from_list(rows))
    (prepared.folder / "report.json").unlink()
    asked = Scripted.asked
    pilot.run(config, prepared.run)
    assert Scripted.asked == asked + 3
    assert rl.training_prompts(before_rl, config.rl, Dataset.from_list(rows))["reference_answer"][3] == TEXTS[6]


def test_a_stream_that_holds_a_prompt_repeatedly_counts_its_verifier_once() -> None:
    stream = Dataset.from_dict({"prompt": ["a", "b", "a", "a"], "observation": ["x", "y", "x", "x"]})
    assert rl.coverage(SimpleNamespace(coverage=list), stream) == [("a", "x"), ("b", "y")]
