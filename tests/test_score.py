"""`agentworld score`: every row with its reward and why, stored completions as they were scored, a proof on gold."""

import json
import os
from datetime import datetime
from pathlib import Path
from statistics import mean, stdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hack_outputs import CASES, HACKS, said

from agentworld.data.schema import DOMAINS, System, Trajectory, Turn, write_jsonl
from agentworld.rewards import completions, hybrid, verifiers
from agentworld.rewards.corruptions import CORRUPTIONS
from agentworld.train import cli
from agentworld.train.compose import compose, to_yaml

STORED = {"prompt": "t#3", "reward": 7.5, "rubric": 7.5, "rule": None, "reason": "7.50: because"}


def row(case: str, prediction: str, number: int = 0) -> dict:
    given = CASES[case]
    history = [[turn.action, turn.observation] for turn in given.history]
    asked = {"id": f"t{number}", "domain": given.domain, "turn": 1, "action": given.action, "truth": given.truth}
    return {
        **asked,
        "prediction": prediction,
        "history": history,
        "deterministic": given.deterministic,
        "mine": [number],
    }


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_scored_with_parts_and_reasons(tmp_path, capsys) -> None:
    rows = [row("cat", said(CASES["cat"].truth), 0), row("cat", said(CASES["cat"].wrong), 1), row("cat", "x", 2)]
    rows += [row("cat", said(CASES["cat"].truth), 3) | {"ended": False}, row("order", said("{}"), 4)]
    out = tmp_path / "out.jsonl"
    assert cli.main(["score", str(written(tmp_path / "in.jsonl", rows)), "--out", str(out)]) == 0
    got = read(out)
    assert [one["mine"] for one in got] == [[number] for number in range(5)]  # order and unknown fields are kept
    assert [one["reward"] for one in got] == pytest.approx([25.0, 14.625, 0.0, 0.0, 4.5])
    assert [[hit["name"] for hit in one["guards"]] for one in got] == [
        [],
        [],
        ["no_tag"],
        ["not_ended"],
        ["format_only"],
    ]
    assert [verdict["name"] for verdict in got[1]["verdicts"]] == ["output", "error_class", "directory"]
    assert got[1]["rule"] == 0 and "output: output 'quartz zebra" in got[1]["reason"]
    screen = capsys.readouterr().out
    terminal = next(line for line in screen.splitlines() if line.lstrip().startswith("terminal")).split()
    assert terminal[:4] == ["terminal", "4", "4", f"{mean([25, 14.625, 0, 0]):.2f}"]
    assert terminal[4] == f"{stdev([25, 14.625, 0, 0]) / 2:.2f}"
    assert terminal[6] == "1/2" and "no_tag 1" in screen


def test_the_reward_of_a_run_is_found_in_its_directory(tmp_path) -> None:
    """Another weight of the rule than the default, given on the command line or by the run, gives the same."""
    path = written(tmp_path / "in.jsonl", [row("cat", said(CASES["cat"].wrong))])
    run = tmp_path / "run"
    run.mkdir()
    keys = ["reward.rubric_weight=0.5", "reward.rule_weight=0.5"]
    (run / "recipe.yaml").write_text(to_yaml(compose(["recipe=smoke", *keys])))
    found = []
    for number, given in enumerate((["--reward", "offline", *keys], ["--reward", str(run)], [])):
        out = tmp_path / f"{number}.jsonl"
        assert cli.main(["score", str(path), "--out", str(out), *given]) == 0
        found.append(read(out)[0]["reward"])
    assert found[0] == found[1] != found[2]
    (run / "recipe.yaml").write_text("[1]\n")
    assert cli.main(["score", str(path), "--out", str(out), "--reward", str(run)]) == 2


def test_the_error_is_over_prompts_not_samples(tmp_path, capsys) -> None:
    """Four samples of one prompt are one observation of the mean over prompts."""
    rows = [row("cat", said(text), number) for number in (0, 1) for text in [CASES["cat"].truth, ""] * (number + 1)]
    assert cli.main(["score", str(written(tmp_path / "in.jsonl", rows)), "--out", str(tmp_path / "o.jsonl")]) == 0
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[:5] == ["terminal", "6", "2", "14.75", "0.00"]


def test_stored_completions_are_shown_as_they_were_scored(tmp_path, capsys) -> None:
    texts = {"completion": said("a<b>") + "<|im_end|>", "truth": "a\x1b[2J"}
    old = {**STORED, **texts}  # of a run before guards were stored
    new = {**old, "reward": None, "domain": "web", "action": "click", "guards": [{"name": "empty", "reason": "why"}]}
    folder = tmp_path / "completions"
    folder.mkdir()
    written(folder / "step_00000_rank_0.jsonl", [old])
    completions.write(folder / "step_00001_rank_0.parquet", [{**new, "scores": None, "verdicts": []}])
    out, html = tmp_path / "o.jsonl", tmp_path / "o.html"
    assert cli.main(["score", str(folder), "--out", str(out), "--html", str(html)]) == 0
    assert [one["reward"] for one in read(out)] == [7.5, None]
    assert all((one["prompt"], one["reason"]) == ("t#3", "7.50: because") for one in read(out))
    screen, page = capsys.readouterr().out, html.read_text()
    assert "web" in screen and "empty 1" in screen
    assert "7.50: because" in page and "a&lt;b&gt;" in page and "⟨ESC⟩[2J" in page and "failed" in page
    assert cli.main(["score", str(folder), "--out", str(out), "--reward", "offline"]) == 2
    assert "leave --reward out" in capsys.readouterr().err


def test_the_page_shows_every_reason_and_runs_nothing(tmp_path) -> None:
    evil = "<script>alert(1)</script>\u202e<b onload=x>"
    rows = [row(hack.case, hack.completion, number) for number, hack in enumerate(HACKS)]
    rows.append(row("article", said(evil, thinking=evil), 99) | {"id": evil})
    out, html = tmp_path / "o.jsonl", tmp_path / "o.html"
    assert cli.main(["score", str(written(tmp_path / "i.jsonl", rows)), "--out", str(out), "--html", str(html)]) == 0
    page = html.read_text()
    assert "<script" not in page and "onload=x>" not in page and "\u202e" not in page
    assert "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<details>") == len(rows)
    for one in read(out):
        assert all(hit["name"] in page for hit in one["guards"])
    few = ["score", str(tmp_path / "i.jsonl"), "--out", str(out), "--html", str(html), "--html-rows", "5"]
    assert cli.main(few) == 0
    assert html.read_text().count("<details>") == 5 and f"{len(rows) - 5} more rows" in html.read_text()


BAD_ROWS = [
    ({"prediction": 3}, "prediction: expected a string, found 3"),
    ({"domain": "shell"}, "domain: expected one of mcp"),
    ({"turn": "1"}, "turn: expected an integer"),
    ({"turn": True}, "turn: expected an integer"),
    ({"id": True}, "id: expected a string or a number"),
    ({"other": float("nan")}, "NaN is no number of JSON"),
    ({"history": [["a"]]}, "history[0]: expected [action, observation]"),
    ({"deterministic": 1}, "deterministic: expected a boolean"),
    ({"ended": "yes"}, "ended: expected a boolean"),
]


@pytest.mark.parametrize(("change", "said_of_it"), BAD_ROWS)
def test_a_bad_row_is_named_with_its_place(tmp_path, capsys, change: dict, said_of_it: str) -> None:
    path = written(tmp_path / "in.jsonl", [row("cat", said("x")), row("cat", said("x")) | change])
    assert cli.main(["score", str(path), "--out", str(tmp_path / "o")]) == 1
    error = capsys.readouterr().err
    assert f"{path}:2" in error and said_of_it in error
    assert not (tmp_path / "o").exists()


def test_a_row_without_fields_is_told_which_it_needs(tmp_path, capsys) -> None:
    path = written(tmp_path / "in.jsonl", [{"id": "a", "turn": 1}])
    assert cli.main(["score", str(path), "--out", str(tmp_path / "o")]) == 1
    error = capsys.readouterr().err
    assert "has no domain, action, truth, prediction; a row to score needs id, domain, turn" in error
    path.write_text(json.dumps(row("cat", "x")) + "\n\n")
    assert cli.main(["score", str(path), "--out", str(tmp_path / "o")]) == 1
    assert f"{path}:2: a blank line" in capsys.readouterr().err


def test_parquet_that_json_cannot_hold_is_refused_before_the_scoring(tmp_path, capsys) -> None:
    for number, value in enumerate((datetime(2026, 11, 30), b"x", float("nan"))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([row("cat", said("x")) | {"other": value}]), path)
        assert cli.main(["score", str(path), "--out", str(tmp_path / "o")]) == 1
        assert f"{path}: row 0: other: expected what JSON can hold" in capsys.readouterr().err


def test_half_of_a_surrogate_pair_is_scored_and_written(tmp_path) -> None:
    """JSON has it as an escape, UTF-8 does not have it at all."""
    rows = [row("cat", said("a\ud800b")) | {"id": "\udfff", "other": "\ud83d"}]
    out, html = tmp_path / "o.jsonl", tmp_path / "o.html"
    assert cli.main(["score", str(written(tmp_path / "i", rows)), "--out", str(out), "--html", str(html)]) == 0
    assert read(out)[0].items() >= rows[0].items() and "⟨U+D800⟩" in html.read_text()


BAD_STORED = [
    ({"guards": ["empty"]}, "guards: expected a list of objects with name, reason"),
    ({"verdicts": [{"name": "a", "reason": "b"}]}, "verdicts: expected a list of objects with name, reason, passed"),
    ({"rubric": "5"}, "rubric: expected a number or null"),
    ({"rule": "0"}, "rule: expected a number or null"),
    ({"scores": [1]}, "scores: expected an object of numbers"),
    (dict.fromkeys(completions.SCHEMA.names) | {"details": "{"}, "details: expected a JSON object"),
]


@pytest.mark.parametrize(("change", "said_of_it"), BAD_STORED)
def test_a_damaged_stored_completion_is_named(tmp_path, capsys, change: dict, said_of_it: str) -> None:
    path = written(tmp_path / "in.jsonl", [change | {**STORED, "completion": "x", "truth": "y"} | change])
    assert cli.main(["score", str(path), "--out", str(tmp_path / "o")]) == 1
    assert f"{path}:1: {said_of_it}" in capsys.readouterr().err


def test_wrong_requests_and_content_end_in_one_line(tmp_path, capsys) -> None:
    path, out = written(tmp_path / "in.jsonl", [row("cat", "plain text")]), str(tmp_path / "o")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": ')
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "x.parquet").write_text("no parquet")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # as /dev/null, which root would lose
    (tmp_path / "rl" / "completions").mkdir(parents=True)
    for code, words, *arguments in (
        (2, "--validate", "--out", out),
        (2, "--out SCORED.jsonl", str(path)),
        (2, "no such reward and no run directory; available: ", str(path), "--out", out, "--reward", "best"),
        (2, "no such file", str(tmp_path / "gone.jsonl"), "--out", out),
        (2, "does not exist; make it", str(path), "--out", str(tmp_path / "no" / "o")),
        (2, "would be replaced", str(path), "--out", str(path)),
        (2, "name two", str(path), "--out", out, "--html", out),
        (2, "judge's verdicts", str(path), "--out", out, "--html", str(tmp_path / "judge_cache.sqlite")),
        (2, "would be replaced", str(path), "--out", str(broken), f"reward.verifiers=[{broken}]"),
        (2, "in the folder that is read", str(tmp_path / "folder"), "--out", str(tmp_path / "folder" / "o.jsonl")),
        (2, "not a regular file", str(path), "--out", str(tmp_path / "pipe")),
        (2, "not a regular file", str(path), "--out", out, "--html", str(tmp_path / "pipe")),
        (2, "holds no .jsonl", str(tmp_path / "folder"), "--out", out),
        (2, "rl is the folder of a stage; its completions lie in", str(tmp_path / "rl"), "--out", out),
        (2, "goes without --validate", "--validate", str(path), "--html", out),
        (1, "add --form plain", str(path), "--out", out),
        (1, "broken.jsonl:1: not JSON", str(broken), "--out", out),
        (1, "no rows", str(tmp_path / "none.jsonl"), "--out", out),
        (1, "no Parquet file", str(tmp_path / "x.parquet"), "--out", out),
    ):
        assert cli.main(["score", *arguments]) == code, arguments
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, error
    assert cli.main(["score", str(path), "--out", out, "--form", "plain"]) == 0
    assert read(Path(out))[0]["guards"] == [] and read(Path(out))[0]["reward"] > 0


@pytest.fixture
def trajectories(tmp_path) -> Path:
    """One turn of each domain with a turn before, and a JSON one for the renamed key."""
    cases = {case.domain: case for case in CASES.values()} | {"json": CASES["user"]}
    system = System("A world.", "Actions.")
    found = [
        Trajectory(name, case.domain, "made", name, system, [
            Turn(case.history[-1].action, case.history[-1].observation, {"context_only": "history"}),
            Turn(case.action, case.truth, {} if case.deterministic is None else {"deterministic": case.deterministic}),
        ])
        for name, case in cases.items()
    ]  # fmt: skip
    write_jsonl(tmp_path / "gold.jsonl", found)
    return tmp_path / "gold.jsonl"


def test_the_reward_holds_on_gold(trajectories, tmp_path, capsys) -> None:
    """Every corruption changes some text, and the proof sees each of those."""
    out = tmp_path / "proof.jsonl"
    assert cli.main(["score", "--validate", str(trajectories), "--out", str(out), "--turns", "0"]) == 0
    proofs = {(one["domain"], one["corruption"]): one for one in read(out)}
    assert {name for _, name in proofs} == {"truth", *CORRUPTIONS}
    assert {domain for domain, _ in proofs} == set(DOMAINS)
    assert all(one["margins"] and not one["failed"] for one in proofs.values())
    assert all(min(one["margins"]) > 0 for (_, name), one in proofs.items() if name != "truth")
    assert all(one["margins"] == [0.0] * len(one["margins"]) for (_, name), one in proofs.items() if name == "truth")
    screen = capsys.readouterr().out
    assert "the reward holds on 8 turns" in screen and "renamed key" in screen


@pytest.mark.parametrize("fault", ["blind to the end", "truth refused"])
def test_a_reward_that_does_not_hold_is_found(trajectories, monkeypatch, capsys, fault: str) -> None:
    real = hybrid.reward

    def blind(prediction, reference, *rest):
        cut = type(prediction)(prediction.text[:4], None, True, True)
        return real(cut, reference[:4], *rest)

    if fault == "blind to the end":
        monkeypatch.setattr(hybrid, "reward", blind)
    else:
        monkeypatch.setitem(
            verifiers.DOMAIN_VERIFIERS, "terminal", (lambda item: verifiers.Verdict("no", False, "no"),)
        )
    assert cli.main(["score", "--validate", str(trajectories), "--turns", "0"]) == 1
    found = capsys.readouterr()
    assert "FAILS" in found.out
    expected = "scores no less than the truth" if fault.startswith("blind") else "truth does not score the maximum"
    assert "does not hold" in found.err and expected in found.err
