"""The benchmark of a whole model on one host: on two gloo ranks its numbers are those of the files that it leaves."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentworld.data.render import Renderer
from agentworld.data.tokenizer import CONTROL_TOKENS, load_tokenizer
from agentworld.train import model
from agentworld.train.architecture import count, text_config
from agentworld.train.compose import compose, load_recipe
from agentworld.train.compute import flops_per_token
from agentworld.train.shards import Entry
from bench import full_depth, full_depth_cases, full_depth_lines, full_depth_setup, process_tree, rank_processes
from bench.rank_processes import RankError

TINY = Namespace(gpus=2, tiny=True, offload=False, overrides=[], layers=4, disk=None, out=None, limit=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With a tokenizer and random weights, written as on one rank."""
    folder = tmp_path_factory.mktemp("depth")
    TINY.folder, TINY.sizes, TINY.logs = folder, full_depth_setup.TINY, folder
    tokenizer = full_depth_setup.tokenizer_of(folder / "tokenizer", full_depth_setup.TINY.vocabulary)
    (folder / "base-4").mkdir()
    config = compose([*full_depth_setup.overrides(TINY, 4), "stage=cpt"])
    full_depth_setup.write_base(config, tokenizer, folder / "base-4")
    return folder


def test_weights_are_those_of_the_base_stage_and_made_where_they_are_written(folder) -> None:
    config = compose([*full_depth_setup.overrides(TINY, 4), "stage=cpt"])
    expected = model.build(config.model, load_tokenizer(folder / "tokenizer"), config.seed).state_dict()
    written = {
        name: tensor for path in (folder / "base-4").glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    assert written.keys() == expected.keys() - {"lm_head.weight"}, "tied to the embedding"
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())
    entry = full_depth_setup.drawn_by_its_writer(Entry("a", (1,), torch.float32, lambda writer: torch.ones(1)), rank=1)
    assert entry.fetch(0) is None and entry.fetch(1) == torch.ones(1)


def test_the_tokenizer_has_the_whole_vocabulary_and_texts_keep_out_of_its_filling(folder) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer")
    size = full_depth_setup.TINY.vocabulary
    assert len(tokenizer) == size and sorted(tokenizer.get_vocab().values()) == list(range(size))
    assert sorted(tokenizer.get_added_vocab().values()) == list(range(size - len(CONTROL_TOKENS), size))
    renderer = Renderer(tokenizer)
    text = "@unused@5 and words"
    assert renderer.decode(renderer.encode(text)) == text and max(renderer.encode(text)) < 300
    assert renderer.decode([size - 6]).startswith("@unused@"), "a sampled id has a text"


def test_layers_and_rows_are_the_most_that_fit(folder) -> None:
    four, eight = (full_depth_setup.parameters_of(compose(full_depth_setup.overrides(TINY, n))).total for n in (4, 8))
    within = [
        full_depth_setup.layers_within(10 * budget, 10, 40, TINY) for budget in (four - 1, four, eight - 1, eight)
    ]
    assert within == [0, 4, 4, 8]
    assert full_depth_setup.layers_within(1000 * eight, 10, 40, TINY) == 40
    config = compose([*full_depth_setup.overrides(TINY, 4), "stage=cpt", "data.cpt_row_tokens=4096"])
    config.cpt.rows_per_device = 4
    card = int(full_depth_setup.planned_peak(config, "cpt") / 0.9) + 2
    config.cpt.rows_per_device = 1
    assert full_depth_setup.fitting_rows(config, "cpt", (8, 4, 2), card) == 4
    assert full_depth_setup.fitting_rows(config, "cpt", (8, 4, 2), 1) is None and config.cpt.rows_per_device == 1


def found_by_a_rank(seconds: list[float]) -> dict:
    steps = {"losses": [1.0] * 7, "norms": [1.0] * 7, "load_max_over_mean": [1.0] * 7, "seconds": seconds}
    steps |= {"peak_gib": 4.0, "reserved_gib": 5.0, "communication": {"exposed_share": 0.25}}
    calls = {"load": [seconds[0]]}
    return {"steps": steps, "seconds_of_calls": calls, "matrix_product_flops": 1e12, "parameters": 7, "machine": {}}


def test_speed_is_that_of_the_slowest_rank_without_the_warm_steps(folder, monkeypatch) -> None:
    ranks = [found_by_a_rank([90.0, 9, 2, 2, 2, 2]), found_by_a_rank([80.0, 9, 1, 4, 2, 1])]
    started = []

    def start(options, run_dir, stage, watch):
        started.append(load_recipe(run_dir).cpt.rows_per_device)
        if len(started) == 1:
            raise RankError("a rank failed; rank 1: torch.OutOfMemoryError: CUDA out of memory.")
        return ranks, {}

    monkeypatch.setattr(full_depth_lines, "start_ranks", start)
    line = full_depth_cases.rows4k(TINY)
    assert started == [2, 1]
    assert (line["rows_out_of_memory"], line["rows_per_device"], line["tokens_a_step"]) == ([2], 1, 256)
    assert line["tokens_per_s_a_gpu"] == {"median": 64.0, "range": [32.0, 64.0]}
    assert line["mfu"] == pytest.approx(line["operations_a_gpu"] / 2 / 1e12)
    assert line["load"]["seconds"] == 90.0 and line["load"]["gb_per_s"] == line["load"]["bytes"] / 90e9
    assert line["planned_over_measured"] == line["planned_gib"] / 4.0


def test_a_rollout_is_divided_into_what_its_seconds_went_to(tmp_path) -> None:
    calls = {"rollout": [5.0, 2.0], "reward": [1.0, 0.5], "rollout_and_scoring": [9.0, 3.0]}
    slow = {"seconds_of_calls": calls, "steps": {"seconds": [8.0, 2.0, 4.0, 1.0]}}
    fast = {"seconds_of_calls": {name: [0.1, 0.1] for name in calls}, "steps": {"seconds": [7.0, 2.5, 3.5, 1.0]}}
    for rank in range(2):
        for step in (0, 2):
            path = tmp_path / f"step_{step:05d}_rank_{rank}.parquet"
            pq.write_table(pa.table({"sampled_tokens": [7, 1 + step]}), path)
    first, second = full_depth_lines.rollouts([fast, slow], tmp_path, count=2, mini_batches=2)
    seconds = {"sampling": 5, "reward": 1, "log_probs": 3, "training": 1}
    assert first == seconds | {"sampled_tokens": 16, "tokens_per_s": 3.2}
    assert (second["log_probs"], second["training"], second["sampled_tokens"]) == (0.5, 2.0, 20)


def test_a_rank_that_fails_ends_the_others_and_is_named(tmp_path) -> None:
    fails = "import os; assert os.environ['WORLD_SIZE'] == '2'; raise ValueError('no such thing')"
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    with pytest.raises(RankError, match="a rank failed; rank 1: ValueError: no such thing"):
        rank_processes.run([["-c", "import time; time.sleep(60)"], ["-c", fails]], logs, 50, {})
    with pytest.raises(RankError, match="not done after 0 s"):
        rank_processes.run([["-c", "import time; time.sleep(60)"]], logs[:1], 0.3, {})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    with pytest.raises(RankError, match="a process that the ranks need has ended; rank 0: no output"):
        rank_processes.run([["-c", "import time; time.sleep(60)"]], logs[:1], 50, {}, beside=[ended])
    assert not process_tree.below(os.getpid())


def test_operations_are_those_of_the_plan() -> None:
    """Both count the matrix products of a token; they differ in the delta rule and in what attention computes again."""
    options = Namespace(**vars(TINY) | {"tiny": False, "sizes": full_depth_setup.Sizes()})
    config = compose([*full_depth_setup.overrides(options, 40), "stage=cpt", "data.cpt_row_tokens=4096"])
    config.cpt.rows_per_device = 3
    architecture, _ = text_config(config)
    expected = 3 * 4096 * flops_per_token(architecture, count(architecture), 2048)
    assert full_depth_lines.operations(config, packed=False) == pytest.approx(expected, rel=0.1)


def test_tiny_run(folder, monkeypatch) -> None:
    """The checkpoint's case is the one with all in it: steps, a save, an export, a resume in new processes."""
    out = folder / "out.jsonl"
    arguments = ["--tiny", "--gpus", "2", "--cases", "checkpoint", "--keep", "--folder", str(folder), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["full_depth", *arguments])
    assert full_depth.main() == 0, out.read_text()
    (line,) = map(json.loads, out.read_text().splitlines())
    cpt = folder / "runs" / "checkpoint" / "cpt"
    logged = [json.loads(row) for row in (cpt / "metrics.jsonl").read_text().splitlines()]
    assert line["losses"] == [row["loss"] for row in logged] and len(logged) == 3
    assert all(5 < loss < 8 for loss in line["losses"]), "about the logarithm of the vocabulary"
    assert line["resume"]["losses"] == [line["losses"][2]], "the resumed processes take the third step again"
    assert logged[-1]["tokens"] == 3 * line["tokens_a_step"]

    saved = cpt / "checkpoints" / "checkpoint-2"
    sizes = json.loads((saved / "COMPLETE").read_text())
    size = sum(sizes.values()) + (saved / "COMPLETE").stat().st_size
    assert line["checkpoint"]["bytes"] == line["resume"]["bytes"] == size > 12 * line["parameters"]
    assert [path.name for path in (cpt / "checkpoints").iterdir()] == ["checkpoint-2"]

    files = json.loads((cpt / "export" / "handoff.json").read_text())["files"]
    shards = {name: file for name, file in files.items() if name.endswith(".safetensors")}
    assert line["export"]["bytes"] == sum(file["bytes"] for file in shards.values()) > 4 * line["parameters"]
    loaded = line["export"]["in_transformers"]
    assert (loaded["missing"], loaded["unexpected"], loaded["mismatched"]) == (0, 0, 0)
    assert loaded["parameters"] == line["parameters"] and loaded["layers"] == 4
    for part in (line["load"], line["checkpoint"], line["export"], line["resume"]):
        assert part["gb_per_s"] == part["bytes"] / 1e9 / part["seconds"]

    (name,) = shards
    tensors = load_file(cpt / "export" / name)
    tensors.pop("model.norm.weight")
    save_file(tensors, cpt / "export" / name, {"format": "pt"})
    assert full_depth_lines.in_transformers(cpt / "export")["missing"] == 1
