"""Preparation end to end on hand-made files: what is written, what is counted, and that it is always the same."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from preparation import prepare_from, settings_for, siblings, silent, teacher, trajectory, write_source

from agentworld.data import gathering
from agentworld.data.examples import one_turn
from agentworld.data.preparation_report import format_report
from agentworld.data.prepare import is_prepared, prepare
from agentworld.data.render import CLOSE_TAG, OPEN_TAG, Renderer
from agentworld.data.schema import Turn, read_jsonl, write_jsonl
from agentworld.data.settings import DataSettings, MaskSettings
from agentworld.data.splits import POOLS
from agentworld.data.system_prompts import sft_version, system_prompt
from agentworld.data.tokenizer import END_THINK, IM_END, THINK, load_tokenizer, train_tokenizer


@pytest.fixture
def source(tmp_path) -> Path:
    return write_source(tmp_path)


def segments(path: Path) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of every document in a parquet of rows."""
    table = pq.read_table(path)
    assert table.column_names == ["input_ids", "labels", "seq_lengths"]
    found = []
    for row in table.to_pylist():
        at = 0
        for length in row["seq_lengths"]:
            found.append((row["input_ids"][at : at + length], row["labels"][at : at + length]))
            at += length
        assert at == len(row["input_ids"]) == len(row["labels"]) <= 1024
    return found


def test_everything_is_written_and_accounted_for(source, tmp_path):
    out = tmp_path / "run" / "data"
    report = prepare_from(source, out)
    assert is_prepared(out)
    assert siblings(out) == []
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert names >= {f"{pool}.jsonl" for pool in POOLS} | {"traces.jsonl", "report.json", "manifest.json"}
    assert names >= {f"rows/{name}.parquet" for name in ("cpt", "sft", "cpt_heldout", "sft_heldout")}
    assert names >= {"prompts/rl.parquet", "tokenizer/tokenizer.json", "tokenizer/chat_template.jinja"}
    assert "recorded.jsonl" not in names
    assert json.loads((out / "report.json").read_text()) == report

    given = list(read_jsonl(source))
    pools = {pool: list(read_jsonl(out / f"{pool}.jsonl")) for pool in POOLS}
    assert report["read"] | {"reasons": 0} == {"read": 120, "kept": 120, "rejected": 0, "reasons": 0}
    counts = report["filters"]
    assert counts["read"] == counts["kept"] + counts["too_short"] + counts["without_target"] == 120
    same = report["duplicates"]
    assert counts["kept"] == same["read"] == sum(same[k] for k in ("kept", "exact", "prefix", "near", "held_out"))
    assert sum(len(pool) for pool in pools.values()) == same["kept"]
    assert all(t in given for pool in pools.values() for t in pool)
    groups = [{t.split_group for t in pool} for pool in pools.values()]
    assert all(groups)
    assert sum(len(group) for group in groups) == len(set().union(*groups))
    for name, pool in pools.items():
        assert report["pools"][name]["trajectories"] == len(pool)
        assert report["pools"][name]["turns"] == sum(len(t.turns) for t in pool)
    mask = report["mask"]["categories"]
    assert sum(c["turns"] for c in mask.values()) == report["pools"]["cpt"]["turns"]
    characters = sum(len(turn.observation) for t in pools["cpt"] for turn in t.turns)
    assert sum(c["characters"] for c in mask.values()) == characters
    for name, row in report["rows"].items():
        found = segments(out / "rows" / f"{name}.parquet")
        assert row["tokens"] == sum(len(ids) for ids, _ in found)
        assert row["trained_tokens"] == sum(label != -100 for _, labels in found for label in labels)
    assert report["rows"]["cpt"]["documents"] + report["rows"]["cpt"]["dropped_documents"] == len(pools["cpt"])
    assert report["rows"]["cpt_heldout"]["documents"] > 0


def test_sft_rows_are_the_correct_traces(source, tmp_path):
    """On the file that the trainer reads: one pair of think tags, and the end of turn is the last label."""
    report = prepare_from(source, tmp_path / "out")
    out = tmp_path / "out"
    renderer = Renderer(load_tokenizer(out / "tokenizer"))
    traces = [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]
    for pool, name in (("sft", "sft"), ("eval", "sft_heldout")):
        trajectories = {t.id: t for t in read_jsonl(out / f"{pool}.jsonl")}
        mine = {row["key"]: row for row in traces if row["key"].split("#")[0] in trajectories}
        assert len({key.split("#")[0] for key in mine}) == len(mine) == report["teacher"][pool]["samples"] > 0
        expected = {}
        for key, trace in mine.items():
            name_of, index = key.split("#")
            t, index = trajectories[name_of], int(index)
            truth = t.turns[index].observation
            assert trace["prediction"] == truth
            system = system_prompt(t, sft_version(t.id, 0), "brief")
            prompt = renderer.prompt(system, t.turns, index)
            answer = f"{THINK}\n{trace['thinking']}\n{END_THINK}\n\n{OPEN_TAG}{truth}{CLOSE_TAG}{IM_END}"
            expected[tuple(prompt)] = answer
        found = {}
        for ids, labels in segments(out / "rows" / f"{name}.parquet"):
            start = next(i for i, label in enumerate(labels) if label != -100)
            assert labels[start:] == ids[start:]
            assert labels[-1] == renderer.end_id
            assert labels.count(renderer.think_id) == labels.count(renderer.end_think_id) == 1
            found[tuple(ids[:start])] = renderer.decode(labels[start:])
        assert found == expected


def test_the_teacher_report_is_a_count_over_all_turns(source, tmp_path):
    report = prepare_from(source, tmp_path / "out")["teacher"]["sft"]
    turns = [turn for t in read_jsonl(tmp_path / "out" / "sft.jsonl") for turn in t.turns]
    traces = [(teacher([], turn.action), turn) for turn in turns]
    answered = [(trace, turn) for trace, turn in traces if trace]
    correct = [trace for trace, turn in answered if trace.prediction == turn.observation]
    assert (report["turns"], report["answered"], report["correct"]) == (len(turns), len(answered), len(correct))
    assert report["coverage"] == len(answered) / len(turns)
    assert report["precision"] == len(correct) / len(answered) < 1
    assert report["families"]["echo"]["precision"] == 1
    assert report["families"]["ls"]["correct"] == 0


def test_the_teacher_sees_the_past_and_nothing_else(source, tmp_path):
    asked = []

    def spy(history, action):
        assert all(turn.meta == {} for turn in history)
        asked.append((tuple((turn.action, turn.observation) for turn in history), action))
        return teacher(history, action)

    prepare(settings_for(source), 0, tmp_path / "out", spy, None, silent)
    expected = []
    for pool in ("sft", "eval"):
        for t in read_jsonl(tmp_path / "out" / f"{pool}.jsonl"):
            pairs = [(turn.action, turn.observation) for turn in t.turns]
            expected += [(tuple(pairs[:i]), turn.action) for i, turn in enumerate(t.turns)]
    assert asked == expected


def test_rl_prompts_are_one_turn_of_each_trajectory(source, tmp_path):
    """The ids on disk are those that the renderer gives for evaluation."""
    out = tmp_path / "out"
    report = prepare_from(source, out)
    renderer = Renderer(load_tokenizer(out / "tokenizer"))
    rows = pq.read_table(out / "prompts" / "rl.parquet").to_pylist()
    pool = list(read_jsonl(out / "rl.jsonl"))
    assert len(rows) == len(pool) == report["rl"]["kept"] == report["rl"]["given"]
    for row, t in zip(rows, pool, strict=True):
        index = one_turn(t, 0)
        turn = t.turns[index]
        assert row == {
            "prompt": f"{t.id}#{index}",
            "prompt_ids": renderer.prompt(system_prompt(t, "v0", "brief"), t.turns, index),
            "domain": "terminal",
            "action": turn.action,
            "observation": turn.observation,
            "deterministic": turn.meta["deterministic"],
        }


def test_cpt_rows_carry_the_unmasked_observations(source, tmp_path):
    for enabled in (True, False):
        out = tmp_path / str(enabled)
        mask = MaskSettings(enabled, {"boilerplate": 0.0, "retrieval": 0.5, "action": 0.5})
        report = prepare_from(source, out, mask=mask)
        renderer = Renderer(load_tokenizer(out / "tokenizer"))
        trained = {}
        for ids, labels in segments(out / "rows" / "cpt.parquet"):
            end = labels.count(renderer.end_id)
            trained[renderer.decode(ids)] = end
        pool = list(read_jsonl(out / "cpt.jsonl"))
        turns = sum(len(t.turns) for t in pool)
        kept = sum(c["kept_turns"] for c in report["mask"]["categories"].values())
        assert 0 < kept < turns
        assert sum(trained.values()) == (kept if enabled else turns)
        assert report["mask"]["enabled"] == enabled
        for t in pool:
            whole = renderer.conversation(system_prompt(t, "v1", "brief"), t.turns, [True] * len(t.turns))
            assert renderer.decode(whole.input_ids) in trained or enabled


def test_same_input_and_seed_give_the_same_bytes(source, tmp_path):
    first, second = prepare_from(source, tmp_path / "a"), prepare_from(source, tmp_path / "b")
    assert first["sha256"] == second["sha256"]
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()
    assert prepare_from(source, tmp_path / "c", seed=1)["sha256"] != first["sha256"]
    # Elsewhere on the disk, too.
    moved = source.rename(tmp_path / "moved.jsonl")
    assert prepare_from(moved, tmp_path / "d")["sha256"] == first["sha256"]


def test_an_altered_missing_or_unfinished_directory_is_not_prepared(source, tmp_path):
    out = tmp_path / "out"
    assert not is_prepared(out)
    prepare_from(source, out)
    for name in ("rows/cpt.parquet", "sft.jsonl", "tokenizer/tokenizer.json", "manifest.json"):
        path = out / name
        original = path.read_bytes()
        path.write_bytes(original[: len(original) // 2])
        assert not is_prepared(out), name
        path.write_bytes(bytes([original[0] ^ 1]) + original[1:])
        assert not is_prepared(out), name
        path.unlink()
        assert not is_prepared(out), name
        path.write_bytes(original)
        assert is_prepared(out)
    (out / "manifest.json").write_text('{"files": {}}')
    assert not is_prepared(out)


def test_the_models_own_tokenizer_is_used(source, tmp_path):
    own = train_tokenizer(["other words"] * 50, 300)
    own.chat_template = "{{ 'foreign' }}"
    report = prepare(settings_for(source), 0, tmp_path / "out", teacher, own, silent)
    assert report["tokenizer"] == {"size": len(own), "trained": False}
    saved = load_tokenizer(tmp_path / "out" / "tokenizer")
    assert saved.get_vocab() == own.get_vocab()
    assert "foreign" not in saved.chat_template
    assert own.chat_template == "{{ 'foreign' }}"


def test_tags_and_thoughts_cost_few_tokens(source, tmp_path):
    prepare_from(source, tmp_path / "out", tokenizer_vocab_size=1024)
    renderer = Renderer(load_tokenizer(tmp_path / "out" / "tokenizer"))
    # The splitting alone makes 6 + 5 of the tags: newlines, "<", word, "_", word, ">".
    assert len(renderer.encode(f"\n\n{OPEN_TAG}") + renderer.encode(CLOSE_TAG)) <= 12
    assert len(renderer.encode("\nprint alpha after 2 turns\n")) == 7  # each word and each newline


def test_observations_that_hold_the_tag_are_no_targets(tmp_path):
    """An answer could not be told from them; CPT, which has no tag, keeps them."""
    path = tmp_path / "in.jsonl"
    given = [trajectory(i) for i in range(60)]
    given = [replace(t, turns=[*t.turns[:1], Turn("x y", f"{CLOSE_TAG}"), *t.turns[1:]]) for t in given]
    write_jsonl(path, given)

    def knows_all(history, action):
        return None if action == "x y" else teacher(history, action)

    report = prepare(settings_for(path), 0, tmp_path / "out", knows_all, None, silent)
    assert report["teacher"]["sft"]["unsayable"] == report["pools"]["sft"]["trajectories"]
    rows = pq.read_table(tmp_path / "out" / "prompts" / "rl.parquet").to_pylist()
    assert 0 < report["rl"]["unsayable"] == report["rl"]["given"] - len(rows)
    assert all(CLOSE_TAG not in row["observation"] for row in rows)


def test_long_samples_and_prompts_are_dropped_and_counted(source, tmp_path):
    loose = prepare_from(source, tmp_path / "a")
    tight = prepare_from(source, tmp_path / "b", sft_row_tokens=150, rl_prompt_tokens=110)
    sft, rl = tight["rows"]["sft"], tight["rl"]
    assert 0 < sft["dropped_too_long"] == sft["dropped_documents"] < loose["rows"]["sft"]["documents"]
    assert sft["documents"] + sft["dropped_documents"] == loose["rows"]["sft"]["documents"]
    assert sft["tokens"] + sft["dropped_tokens"] == loose["rows"]["sft"]["tokens"]
    assert 0 < rl["too_long"] == rl["given"] - rl["kept"] < rl["given"]
    rows = pq.read_table(tmp_path / "b" / "prompts" / "rl.parquet").to_pylist()
    assert max(len(row["prompt_ids"]) for row in rows) <= 110
    none = prepare_from(source, tmp_path / "c", rl_prompt_tokens=20)["rl"]  # the stages before RL do not need one
    assert (none["kept"], none["too_long"]) == (0, none["given"])
    assert none["shortest_tokens"] == min(len(row["prompt_ids"]) for row in rows)


def test_without_files_the_recorder_is_called(source, tmp_path, monkeypatch):
    asked = []

    def record(settings, seed, out, say):
        asked.append((settings.count, seed))
        out.write_bytes(source.read_bytes())
        return {"sessions": 120}

    monkeypatch.setattr(gathering, "record", record)
    settings = DataSettings(tokenizer_vocab_size=400)
    report = prepare(settings, 3, tmp_path / "out", teacher, None, silent)
    assert asked == [(settings.record.count, 3)]
    assert report["recorded"] == {"sessions": 120}
    assert (tmp_path / "out" / "recorded.jsonl").read_bytes() == source.read_bytes()
    assert "recorded.jsonl" in json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]


def test_the_report_reads_on_one_screen(source, tmp_path):
    report = prepare_from(source, tmp_path / "out")
    text = format_report(report)
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(len(line) for line in lines) <= 120
    for value in (report["pools"]["cpt"]["trajectories"], report["rows"]["sft"]["rows"], report["rl"]["kept"]):
        assert str(value) in text
    assert f"{report['teacher']['sft']['coverage']:.1%}" in text
    assert report["sha256"][:16] in text
    shown = {line.split()[0] for line in lines if line.startswith(" ") and "of turns," in line}
    assert shown == {name for name, category in report["mask"]["categories"].items() if category["turns"]}
