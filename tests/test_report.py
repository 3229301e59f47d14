"""The report: what it holds, what it leaves out, and that it fits a terminal."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import report
from agentworld.train.compose import to_yaml
from agentworld.train.config import Config
from agentworld.train.fidelity import Scored, fidelity, reward_summary

LONG = "x" * 300


def evaluation(stage: str, rewards: list[list[float]] | None, **changes) -> dict:
    examples = [
        {
            "key": f"terminal-0-0000{i}#2",
            "action": '[{"keystrokes": "cat notes.txt\\n", "duration": 0.1}]',
            "truth": f"cat notes.txt\n[bold]a\tb\x1b[0m\n{LONG}\n" + "\n".join(map(str, range(20))) + "\nuser@box:~$ ",
            "prediction": "" if i == 0 else f"cat notes.txt\n{i}",
            "tag_valid": None if stage in ("base", "cpt") else i != 1,
        }
        for i in range(5)
    ]
    items = [Scored("a", "a", True, "terminal", None), Scored("a", "b", False, "terminal", None)]
    return {
        "stage": stage,
        "steps": 1234,
        "seconds": 1234.5,
        "tokens": 900000,
        "form": "v1",
        "heldout_loss": None if stage == "rl" else 1.25,
        "fidelity": fidelity(items),
        "reward": None if rewards is None else reward_summary(rewards, [sum(row) / len(row) for row in rewards]),
        "examples": examples,
        "held_out": {"turns": 2, "earlier_turn": 0, "too_long": 0, "prompt_tokens": 1024},
        **changes,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run_dir = tmp_path / "first"
    run_dir.mkdir()
    config = Config(recipe="smoke", seed=7)
    (run_dir / "recipe.yaml").write_text(to_yaml(config))
    rewards = {"base": None, "cpt": None, "sft": [[10.0, 12.0], [20.0, 20.0]], "rl": [[13.0, 13.0], [21.0, 23.0]]}
    for stage in ("rl", "sft", "base", "cpt"):
        (run_dir / stage).mkdir()
        (run_dir / stage / "evaluation.json").write_text(json.dumps(evaluation(stage, rewards[stage])))
    names = ("copy_last_observation", "most_frequent_observation")
    (run_dir / "baselines.json").write_text(json.dumps({name: fidelity([]) for name in names}))
    return run_dir


def shown(content: dict, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(report.render(content))
    return console.file.getvalue()


def test_the_report_has_the_documented_form(run: Path) -> None:
    got = report.write(run)
    assert json.loads((run / "report.json").read_text()) == got
    assert (got["run"], got["recipe"], got["seed"]) == ("first", "smoke", 7)
    assert [stage["stage"] for stage in got["stages"]] == ["base", "cpt", "sft", "rl"]
    for stage in got["stages"]:
        assert set(stage) == {"stage", "steps", "seconds", "tokens", "form", "heldout_loss", "fidelity", "reward"}
        assert stage["fidelity"]["exact_match"] == 0.5
    assert got["stages"][0]["reward"] is None
    assert set(got["stages"][3]["reward"]) == {"mean", "standard_error", "n", "draws", "greedy_mean"}
    assert got["stages"][3]["reward"]["mean"] == 17.5
    assert set(got["baselines"]) == {"copy_last_observation", "most_frequent_observation"}


def test_rewards_of_different_settings_are_not_compared(run: Path) -> None:
    """`stage=rl overwrite=true reward=judge` leaves the evaluation of SFT as it was rewarded before."""
    path = run / "rl" / "evaluation.json"
    content = json.loads(path.read_text())
    content["reward"]["settings_sha256"] = "a"
    path.write_text(json.dumps(content))
    got = report.build(run)
    assert got["paired"] == [] and not got["one_reward"] and "do not compare; stage=eval" in shown(got, 150)
    path = run / "sft" / "evaluation.json"
    content = json.loads(path.read_text())
    content["reward"]["settings_sha256"] = "a"
    path.write_text(json.dumps(content))
    got = report.build(run)
    assert len(got["paired"]) == 1 and got["one_reward"] and "do not compare" not in shown(got)


def test_the_paired_difference_is_over_the_same_prompts(run: Path) -> None:
    assert report.build(run)["paired"] == [{"after": "rl", "before": "sft", "mean": 2.0, "standard_error": 0.0, "n": 2}]
    path = run / "rl" / "evaluation.json"
    path.write_text(json.dumps(evaluation("rl", [[1.0]])))
    assert report.build(run)["paired"] == []


def test_a_missing_stage_is_left_out(run: Path) -> None:
    (run / "cpt" / "evaluation.json").unlink()
    (run / "rl" / "evaluation.json").unlink()
    (run / "baselines.json").unlink()
    got = report.build(run)
    assert [stage["stage"] for stage in got["stages"]] == ["base", "sft"]
    assert got["baselines"] == {} and got["paired"] == []
    assert got["examples"][0]["stage"] == "sft"
    assert "rl" not in shown(got).split("\n\n")[0].split()


def test_what_the_limit_of_the_prompt_left_out_is_told(run: Path) -> None:
    got = report.build(run)
    assert got["held_out"] == {"turns": 2, "earlier_turn": 0, "too_long": 0, "prompt_tokens": 1024}
    assert "Greedy predictions of 2 held-out turns.\n" in shown(got)
    path = run / "rl" / "evaluation.json"
    limited = {"turns": 180, "earlier_turn": 1200, "too_long": 17, "prompt_tokens": 2048}
    path.write_text(json.dumps(evaluation("rl", None, held_out=limited)))
    got = report.build(run)
    assert got["held_out"] == limited
    assert (
        "180 held-out turns; for the limit of 2,048 prompt tokens (eval.prompt_tokens), of 1,200 trajectories an "
        "earlier turn is taken, 17 trajectories have no turn that fits and are left out."
    ) in " ".join(shown(got).split())


def test_a_row_that_is_absent_has_its_reason(run: Path) -> None:
    assert "No row for" not in shown(report.build(run))
    (run / "base" / "evaluation.json").unlink()
    assert "No row for base: the base was not evaluated in this run; stage=eval does it." in shown(report.build(run))
    (run / "baselines.json").unlink()
    text = shown(report.build(run))
    assert "No row for base, copy last, most frequent: the base was not evaluated" in text
    assert "that of the training pools" not in text


@pytest.mark.parametrize("width", [100, 120, 200])
def test_it_fits_the_terminal_and_nothing_is_cut_off(run: Path, width: int) -> None:
    text = shown(report.build(run), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text  # rich cuts cells that are too narrow with this sign
    row = next(line for line in text.splitlines() if line.startswith("rl "))
    assert row.split() == re.split(" +", "rl v1 1,234 1,234 - 0.500 1.000 0.500 0.500 - 17.50 ± 4.50 (17.50)")
    assert "copy last" in text and "most frequent" in text
    assert "rl - sft: +2.00 ± 0.00" in text
    assert "temperature 1" in text and "2 held-out prompts x 2 draws" in text.replace("\n", " ")


def test_examples_are_escaped_and_cut(run: Path) -> None:
    text = shown(report.build(run))
    assert text.count("example ") == 3
    assert "\x1b" not in text and "\t" not in text
    assert "[bold]a\\tb\\x1b[0m" in text  # no console markup, no escape sequence
    assert "(16 more lines)" in text and "(140 more)" in text
    assert "(empty)" in text and "no valid tag" in text and "different" in text


def test_numbers_are_read_where_there_are_none(run: Path) -> None:
    path = run / "base" / "evaluation.json"
    nothing = evaluation("base", [], fidelity=fidelity([]), examples=[], steps=0)
    path.write_text(json.dumps(nothing))
    row = next(line for line in shown(report.build(run)).splitlines() if line.startswith("base"))
    assert row.split() == ["base", "v1", "0", "1,234", "1.250", *["-"] * 6]


def test_refusals_name_the_file(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such run directory"):
        report.build(tmp_path / "absent")
    with pytest.raises(RequestError):
        report.build(tmp_path)  # a folder that is no run
    (run / "sft" / "evaluation.json").write_text('{"stage": "sft"')
    with pytest.raises(ContentError, match=r"sft/evaluation\.json: not JSON"):
        report.write(run)
    (run / "sft" / "evaluation.json").write_text('{"stage": "sft"}')
    with pytest.raises(ContentError, match=r"sft/evaluation\.json: lacks steps, seconds"):
        report.write(run)
    assert not (run / "report.json").exists()


def test_a_run_without_evaluations_is_content_that_cannot_be_used(run: Path) -> None:
    for stage in ("base", "cpt", "sft", "rl"):
        (run / stage / "evaluation.json").unlink()
    with pytest.raises(ContentError, match=r"no stage has an evaluation\.json"):
        report.build(run)
