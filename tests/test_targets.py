"""Turns that are history only, and instructions read off the truth: where they reach the rows and where they do not."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
from preparation import settings_for, silent, teacher, trajectory

from agentworld.data.prepare import prepare
from agentworld.data.render import Renderer
from agentworld.data.schema import Turn, read_jsonl, write_jsonl
from agentworld.data.settings import DuplicateSettings, MaskSettings
from agentworld.data.tokenizer import load_tokenizer

SPOKEN = "the harness gave up"


def test_words_of_the_harness_are_history_and_never_a_target(tmp_path) -> None:
    given = []
    for index in range(90):
        whole = trajectory(index)
        turns = [*whole.turns[:1], Turn("ls zzz", SPOKEN, {"context_only": "time-out"}), *whole.turns[1:]]
        given.append(replace(whole, turns=turns))
    given.append(replace(trajectory(90), turns=[Turn("a", SPOKEN, {"context_only": "x"})] * 2))
    path = tmp_path / "in.jsonl"
    write_jsonl(path, given)

    def knows_all(history, action):
        assert action != "ls zzz", "the teacher is not asked about it"
        return teacher(history, action) if all(turn.action != "ls zzz" for turn in history) else None

    out = tmp_path / "out"
    report = prepare(settings_for(path, mask=MaskSettings(enabled=False)), 0, out, knows_all, None, silent)
    assert report["filters"]["without_target"] == 1
    assert report["mask"]["context_only_turns"] == report["pools"]["cpt"]["trajectories"]
    renderer = Renderer(load_tokenizer(out / "tokenizer"))
    spoken = renderer.encode(SPOKEN)
    seen = 0
    for row in pq.read_table(out / "rows" / "cpt.parquet").to_pylist():
        ids, labels = row["input_ids"], row["labels"]
        for place in range(len(ids) - len(spoken) + 1):
            if ids[place : place + len(spoken)] == spoken:
                seen += 1
                assert set(labels[place : place + len(spoken) + 1]) == {-100}, "and its end-of-turn token"
    assert seen == report["pools"]["cpt"]["trajectories"]
    prompts = pq.read_table(out / "prompts" / "rl.parquet").to_pylist()
    assert prompts and all(row["observation"] != SPOKEN for row in prompts)


def test_instructions_reach_training_and_nothing_that_is_held_out(tmp_path) -> None:
    path = tmp_path / "in.jsonl"
    write_jsonl(path, (trajectory(index) for index in range(120)))
    reports, texts = {}, {}
    for share in (0.0, 1.0):
        out = tmp_path / f"out-{share}"
        settings = settings_for(path, simulation_share=share, cpt_row_tokens=4096, sft_row_tokens=4096)
        reports[share] = prepare(replace(settings, rl_prompt_tokens=4096), 0, out, teacher, None, silent)
        tokenizer = load_tokenizer(out / "tokenizer")
        for name in ("cpt", "cpt_heldout", "sft", "sft_heldout"):
            rows = pq.read_table(out / "rows" / f"{name}.parquet").to_pylist()
            texts[share, name] = "".join(tokenizer.decode(row["input_ids"]) for row in rows)
        rows = pq.read_table(out / "prompts" / "rl.parquet").to_pylist()
        texts[share, "rl"] = "".join(tokenizer.decode(row["prompt_ids"]) for row in rows)
    told = "counted from the first action"
    for name in ("cpt", "sft", "rl"):
        assert told not in texts[0.0, name] and texts[1.0, name].count(told) > 5, name
    for name in ("cpt_heldout", "sft_heldout"):
        assert texts[0.0, name] == texts[1.0, name] and told not in texts[1.0, name], name
    counts = reports[1.0]["instructions"]
    assert counts["cpt"]["controlled"] == texts[1.0, "cpt"].count(told)
    assert counts["rl"]["controlled"] == texts[1.0, "rl"].count(told)
    assert json.loads((tmp_path / "out-1.0" / "report.json").read_text())["instructions"] == counts


def test_what_was_said_before_or_is_held_out_reaches_no_pool(tmp_path) -> None:
    given = [trajectory(index) for index in range(120)]
    longest = max(given, key=lambda t: len(t.turns))
    copies = [replace(given[3], id="z-copy"), replace(longest, id="z-beginning", turns=longest.turns[:-1])]
    path, held_out = tmp_path / "in.jsonl", tmp_path / "held_out.txt"
    write_jsonl(path, [*copies, *given])
    held_out.write_text("# a group and all whose name begins so\ng7\ng3*\n")
    settings = settings_for(path, held_out=[str(held_out)], duplicates=DuplicateSettings(near=False))
    report = prepare(settings, 0, tmp_path / "out", teacher, None, silent)
    pools = [t for name in ("cpt", "sft", "rl", "eval") for t in read_jsonl(tmp_path / "out" / f"{name}.jsonl")]
    assert {t.id for t in pools}.isdisjoint({"z-copy", "z-beginning"})
    assert not {t.split_group for t in pools} & {"g7", "g3", *(f"g3{digit}" for digit in range(10))}
    same = report["duplicates"]
    assert same["held_out"] == sum(t.split_group == "g7" or t.split_group.startswith("g3") for t in given)
    assert same["exact"] >= 1 and same["prefix"] >= 1
    assert same["kept"] == len(pools) == same["read"] - same["exact"] - same["prefix"] - same["near"] - same["held_out"]
