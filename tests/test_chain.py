"""The whole chain with real processes: the smoke recipe at a smaller size, stopped, damaged, resumed, on two ranks."""

import json
import math
import os
import re
import shutil

import pytest
from small_run import completions_of, metrics, reopened, rows_of, start, work
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentworld.data.render import Renderer
from agentworld.data.schema import read_jsonl
from agentworld.data.system_prompts import system_prompt
from agentworld.train import checkpoint, kernels
from agentworld.train.compose import load_recipe
from agentworld.train.stage import open_stage


def test_a_signal_leaves_a_whole_checkpoint_and_says_how_to_go_on(chain) -> None:
    code, text = chain["stopped"]
    assert code == 3, text
    assert 7 <= checkpoint.step_of(chain["whole"]) < 12
    assert "resume=true" in text and "run.name=chain" in text


def test_a_cut_checkpoint_is_skipped_with_a_warning_and_no_step_is_lost(chain) -> None:
    text = chain["resumed"][1]
    assert f"{chain['whole']}: skipped" in text and "instead of" in text
    rows = metrics(chain["run"] / "cpt")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)


def test_the_report_is_complete(chain) -> None:
    report = json.loads((chain["run"] / "report.json").read_text())
    assert [entry["stage"] for entry in report["stages"]] == ["base", "cpt", "sft", "rl"]
    assert [entry["steps"] for entry in report["stages"]] == [0, 12, 3, 4]
    assert set(report["baselines"]) == {"copy_last_observation", "most_frequent_observation"}
    for entry in report["stages"]:
        assert entry["fidelity"]["n"] == 4
        assert (entry["heldout_loss"] is not None) == (entry["stage"] in ("cpt", "sft"))
        assert (entry["reward"] is not None) == (entry["stage"] in ("sft", "rl"))
    text = chain["resumed"][1]
    assert "exact" in text and "copy last" in text and "rl - sft" in text and "No row for" not in text
    assert report["held_out"] == {"turns": 4, "earlier_turn": 0, "too_long": 0, "prompt_tokens": 1024}
    for entry in report["stages"][1:3]:  # what takes time says that it runs, and then what came of it
        before, value = re.findall(rf"^{entry['stage']}  held-out loss (.*)$", text, re.MULTILINE)
        assert re.fullmatch(r"over \d+ rows", before) and float(value) == pytest.approx(entry["heldout_loss"], abs=1e-3)
    assert [line for line in text.splitlines() if line.endswith("held-out turns")] == [
        f"{stage}  4 held-out turns" for stage in ("cpt", "sft", "rl")
    ]


def test_every_step_has_the_load_of_the_router(chain) -> None:
    """8 experts, 2 a token, 4 layers: an even load is 1, and 4 is the most that one expert can have."""
    for name, steps in (("cpt", 12), ("sft", 3), ("rl", 4)):
        for row in metrics(chain["run"] / name):
            assert 0 <= row["router/load_min_over_mean"] <= 1 <= row["router/load_max_over_mean"] <= 4
            assert (row["router/dead_experts"] > 0) == (row["router/load_min_over_mean"] == 0)
        written = rows_of(chain["run"] / name / "router_load.jsonl")
        assert written[-1]["step"] == steps
        assert name == "cpt" or written[-1]["steps"] == steps, "cpt lost what came after its checkpoint"
        assert all(len(layer) == 8 for row in written for layer in row["counts"])
    tokens = sum(sum(row["counts"][0]) for row in rows_of(chain["run"] / "sft" / "router_load.jsonl")) / 2
    assert tokens == json.loads((chain["run"] / "sft" / "training.json").read_text())["tokens"]


def test_the_kernels_in_use_are_stored_and_a_slow_path_is_named(chain, tmp_path, monkeypatch, capsys) -> None:
    """Fault 29."""
    assert json.loads((chain["run"] / "run.json").read_text())["kernels"] == kernels.install()
    run = reopened(chain, tmp_path, "slow", "sft")
    slow = kernels.install() | {"delta_rule": "torch, documents as a padded batch", "device": "NVIDIA H200"}
    monkeypatch.setattr(kernels, "install", lambda: slow)
    open_stage("sft", load_recipe(run), run)
    warned = capsys.readouterr().err
    assert warned.count("WARNING") == 1 and "flash-linear-attention" in warned
    assert json.loads((run / "run.json").read_text())["kernels"] == slow


def test_each_stage_starts_fresh(chain) -> None:
    """Fault 18: warm-up from zero in every stage, whatever the stage before ended with."""
    run = chain["run"]
    for stage, peak, warmup in (("cpt", 3e-3, 2), ("sft", 2e-3, 2), ("rl", 2e-4, 1)):
        rows = metrics(run / stage)
        assert rows[0]["step"] == 1
        assert rows[0]["lr"] == pytest.approx(peak / warmup)
    handoffs = {name: checkpoint.verify_handoff(run / name / "export") for name in ("base", "cpt", "sft", "rl")}
    assert [handoffs[name]["step"] for name in handoffs] == [0, 12, 3, 4]
    for child, parent in (("cpt", "base"), ("sft", "cpt"), ("rl", "sft")):
        expected = checkpoint.sha256_file(run / parent / "export" / "handoff.json")
        assert handoffs[child]["parent"]["sha256"] == expected


def test_the_export_loads_elsewhere(chain) -> None:
    """Fault 21: nothing missing or unexpected, no trace of parts that are absent, and generation stops by itself."""
    path = str(chain["run"] / "rl" / "export")
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert type(model).__name__ == "Qwen3_5MoeForCausalLM"
    config = json.loads((chain["run"] / "rl" / "export" / "config.json").read_text())
    assert config == json.loads((chain["run"] / "base" / "export" / "config.json").read_text()), (
        "training leaves no trace"
    )
    assert config["use_cache"] is True
    assert "vision_config" not in config and config["architectures"] == ["Qwen3_5MoeForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == config["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_training_rollout_and_evaluation_see_the_same_history(chain) -> None:
    """Fault 12: the prompt ids that RL trains on are those of the one renderer, for the turn that the key names."""
    run = chain["run"]
    from datasets import Dataset

    renderer = Renderer(AutoTokenizer.from_pretrained(str(run / "data" / "tokenizer")))
    pool = {trajectory.id: trajectory for trajectory in read_jsonl(run / "data" / "rl.jsonl")}
    prompts = Dataset.from_parquet(str(run / "data" / "prompts" / "rl.parquet"), cache_dir=str(run / "cache"))
    recipe = load_recipe(run)
    for row in prompts:
        name, _, turn = row["prompt"].rpartition("#")
        trajectory = pool[name]
        system = system_prompt(trajectory, "v0", recipe.data.prompt_set)
        assert row["prompt_ids"] == renderer.prompt(system, trajectory.turns, int(turn))
        trained = renderer.conversation(system, trajectory.turns, [True] * len(trajectory.turns))
        assert trained.input_ids[: len(row["prompt_ids"])] == row["prompt_ids"]
    sampled = completions_of(run)
    assert len(sampled) == 2 * 2 * 4  # two rollouts of 2 prompts x 4 samples
    truths = {row["prompt"]: row["observation"] for row in prompts}
    assert all(row["truth"] == truths[row["prompt"]] and row["reason"] for row in sampled)


def test_a_finished_run_is_not_done_again(chain) -> None:
    before = (chain["run"] / "rl" / "export" / "handoff.json").stat().st_mtime_ns
    process = start(chain["root"], "resume=true")
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and text.count("done before") == 8
    assert (chain["run"] / "rl" / "export" / "handoff.json").stat().st_mtime_ns == before


def test_an_export_starts_another_run(chain, tmp_path) -> None:
    """With its handoff.json, and although this run's data is prepared anew with the tokenizer that it brings."""
    given = [
        f"model.path={chain['run'] / 'cpt' / 'export'}",
        f"data.trajectories=[{chain['run'] / 'data' / 'recorded.jsonl'}]",
    ]
    process = start(tmp_path / "runs", *given, "stage=sft")
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    made = checkpoint.verify_handoff(tmp_path / "runs" / "chain" / "sft" / "export")
    assert made["parent"]["path"] == str(chain["run"] / "cpt" / "export")
    assert made["tokenizer_sha256"] == checkpoint.verify_handoff(chain["run"] / "cpt" / "export")["tokenizer_sha256"]


def test_another_number_of_processes_goes_on(chain, tmp_path) -> None:
    """The chain ran in 2. RL goes on between two rollouts; test_elastic_resume says how well."""
    root = tmp_path / "runs"
    shutil.copytree(chain["run"], root / "chain")
    rl = root / "chain" / "rl"
    shutil.rmtree(rl / "export")
    for later in checkpoint.checkpoints(rl / "checkpoints")[:1]:
        shutil.rmtree(later)
    process = start(root, "resume=true", "nproc=1")
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0, text[-3000:]
    assert [row["step"] for row in metrics(rl)] == [1, 2, 3, 4] and checkpoint.verify_handoff(rl / "export")[
        "step"
    ] == 4


def test_a_cut_handoff_stops_the_next_stage(chain, tmp_path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(chain["run"], root / "chain")
    shard = next((root / "chain" / "cpt" / "export").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 10)
    shutil.rmtree(root / "chain" / "sft")
    process = start(root, "resume=true", "stage=sft")
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 1 and str(shard) in text and "cut or altered" in text
    assert not (root / "chain" / "sft" / "export").exists()


def test_a_kill_between_the_last_checkpoint_and_the_export_costs_no_step(chain, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(chain["run"], run)
    before = {name: (run / "rl" / name).read_bytes() for name in ("metrics.jsonl", "training.json")}
    handoff = json.loads((run / "rl" / "export" / "handoff.json").read_text())
    shutil.rmtree(run / "rl" / "export")
    (run / "rl" / "training.json").unlink()
    work(run, "rl", 2)
    assert (run / "rl" / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    again = json.loads((run / "rl" / "export" / "handoff.json").read_text())
    assert again["step"] == handoff["step"] == 4 and again["files"] == handoff["files"]
    assert (
        json.loads((run / "rl" / "training.json").read_text())["tokens"]
        == json.loads(before["training.json"])["tokens"]
    )
