"""A stage goes on in another number of processes or at another degree of expert parallelism as if nothing had changed
(faults 15 and 19), and refuses what DeepSpeed cannot convert."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from agentworld.data.errors import ContentError, RequestError
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import base, checkpoint, resume
from agentworld.train.compose import to_yaml
from agentworld.train.config import ArchitectureSettings, Config, CptSettings, EngineSettings
from agentworld.train.launch import free_port, rank_environment
from agentworld.train.resume import Resumption, Topology

STEPS, RESUMED_AT, ROWS_PER_STEP = 6, 4, 4
# (processes, expert parallelism) of a run, and of the start that continues it.
WAYS = [((2, 2), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (2, 1))]
STAGES = (1, 3)

WORKER = """
import sys
from pathlib import Path
from agentworld.train import worker
from agentworld.train.compose import load_recipe
worker.quiet_libraries()
from accelerate.state import AcceleratorState, GradientState
from agentworld.train import cpt, engine
for run in sys.argv[1:]:
    config = load_recipe(run)
    engine.start_rank(config.engine)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    cpt.run(config, Path(run))
engine.leave()
"""


def config_of(stage: int, ranks: int, degree: int) -> Config:
    config = Config(recipe="test", stage="cpt", nproc=ranks)
    config.model.dtype, config.model.export_layout = "float32", "release"
    config.model.architecture = ArchitectureSettings(
        hidden_size=32, num_hidden_layers=2, full_attention_interval=2, num_experts=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, initializer_range=0.08,
    )  # fmt: skip
    config.engine = EngineSettings(zero_stage=stage, expert_parallel=degree, device="cpu")
    config.cpt = CptSettings(
        learning_rate=5e-3, max_steps=STEPS, warmup_steps=2, router_aux_loss_coef=0.0, save_steps=1,
        save_total_limit=STEPS + 1, gradient_accumulation_steps=ROWS_PER_STEP // ranks,
    )  # fmt: skip
    config.wandb.mode = "disabled"
    return config


def prepared(root: Path) -> Path:
    """What preparation leaves: a tokenizer, packed rows (three steps an epoch) and a manifest."""
    data = root / "data"
    (data / "rows").mkdir(parents=True)
    train_tokenizer(["echo apple\n"], 300).save_pretrained(data / "tokenizer")
    draw = torch.Generator().manual_seed(2)
    rows = []
    for _ in range(3 * ROWS_PER_STEP):
        lengths = torch.randint(8, 24, (2,), generator=draw).tolist()
        ids = torch.randint(5, 250, (sum(lengths),), generator=draw).tolist()
        labels = [-100 if place in (0, lengths[0]) else token for place, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels, "seq_lengths": lengths})
    Dataset.from_list(rows).to_parquet(str(data / "rows" / "cpt.parquet"))
    Dataset.from_list(rows[:2]).to_parquet(str(data / "rows" / "cpt_heldout.parquet"))
    (data / "manifest.json").write_text('{"sha256": "data"}')
    return data


def work(ranks: int, runs: list[Path]) -> str:
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, runs)],
            env=rank_environment(shared, rank, ranks) | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        texts = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(texts)[-5000:]
    return "\n".join(texts)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "cpt" / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict:
    """(ZeRO stage, way) -> the uninterrupted run and the one continued elsewhere; "said" -> what was printed."""
    root = tmp_path_factory.mktemp("elastic")
    data = prepared(root)
    made, starts = {}, {1: [], 2: []}
    for stage in STAGES:
        for (ranks, degree), _ in WAYS:
            run = root / f"zero{stage}-{ranks}-{degree}"
            run.mkdir()
            (run / "data").symlink_to(data)
            config = config_of(stage, ranks, degree)
            (run / "recipe.yaml").write_text(to_yaml(config))
            base.run(config, run)
            starts[ranks].append(run)
    for ranks, straight in starts.items():
        work(ranks, straight)
    again = {1: [], 2: []}
    for stage in STAGES:
        for way in WAYS:
            (before, degree_before), (ranks, degree) = way
            straight = root / f"zero{stage}-{before}-{degree_before}"
            resumed = shutil.copytree(straight, root / f"{straight.name}-then-{ranks}-{degree}", symlinks=True)
            shutil.rmtree(resumed / "cpt" / "export")
            for directory in checkpoint.checkpoints(resumed / "cpt" / "checkpoints"):
                if checkpoint.step_of(directory) > RESUMED_AT:
                    shutil.rmtree(directory)
            config = config_of(stage, before, degree_before)
            config.engine.expert_parallel = degree
            (resumed / "recipe.yaml").write_text(to_yaml(config))
            again[ranks].append(resumed)
            made[stage, way] = (straight, resumed)
    made["said"] = "".join(work(ranks, resumed) for ranks, resumed in again.items())
    return made


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_losses_go_on_in_other_processes(runs, stage, way) -> None:
    straight, resumed = runs[stage, way]
    expected, found = metrics(straight), metrics(resumed)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    for before, after in zip(expected, found, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-5), before["step"]
        assert after["lr"] == pytest.approx(before["lr"], rel=1e-9)
        assert after["grad_norm"] == pytest.approx(before["grad_norm"], rel=1e-3)
    assert len({round(row["loss"], 3) for row in expected}) == STEPS, "equal steps would hide a replay"
    newest = resumed / "cpt" / "checkpoints" / f"checkpoint-{STEPS}"
    assert resume.saved_topology(newest).world_size == way[1][0]
    assert resume.saved_topology(newest).rows_per_step == ROWS_PER_STEP
    handoffs = [checkpoint.verify_handoff(run / "cpt" / "export") for run in (straight, resumed)]
    assert handoffs[0]["files"].keys() == handoffs[1]["files"].keys() and handoffs[1]["step"] == STEPS
    held_out = [json.loads((run / "cpt" / "training.json").read_text())["heldout_loss"] for run in (straight, resumed)]
    assert held_out[1] == pytest.approx(held_out[0], abs=1e-4)


def test_the_accumulation_that_keeps_the_batch_is_said(runs) -> None:
    assert "cpt: 4 accumulation steps, so that a step keeps its 4 rows" in runs["said"]
    assert "cpt: 2 accumulation steps, so that a step keeps its 4 rows" in runs["said"]


def written(root: Path, **changes) -> Path:
    """A checkpoint of two processes at ZeRO-1, with other values where `changes` says so."""
    checkpoint.begin(root, needed=1)
    directory = root / checkpoint.UNFINISHED / "checkpoint-3"
    (directory / "global_step3").mkdir(parents=True)
    (directory / "latest").write_text("global_step3")
    replace(Topology(2, 1, 2, 8), **changes).write(directory)
    checkpoint.complete(root, directory.name)
    return root / directory.name


def test_what_cannot_be_resumed_is_refused_with_the_keys(tmp_path) -> None:
    same = EngineSettings(zero_stage=1, expert_parallel=2)
    assert resume.plan(tmp_path, same, 2, pytest.fail) == Resumption()
    made = written(tmp_path)
    assert resume.plan(tmp_path, same, 2, pytest.fail) == Resumption(made, elastic=False, auto_ep=True)
    assert resume.plan(tmp_path, same, 4, pytest.fail) == Resumption(made, elastic=True, auto_ep=True)
    with pytest.raises(RequestError, match=r"was written with ZeRO-1 .* resume with engine\.zero_stage=1"):
        resume.plan(tmp_path, replace(same, zero_stage=3), 2, pytest.fail)
    (made / "rollout_0.pt").write_text("")
    assert not resume.plan(tmp_path, same, 2, pytest.fail).elastic
    with pytest.raises(RequestError, match=r"inside a rollout.*nproc=2 engine\.expert_parallel=2"):
        resume.plan(tmp_path, same, 4, pytest.fail)
    written(tmp_path, expert_parallel=None)
    with pytest.raises(RequestError, match=r"without expert parallelism.*engine\.expert_parallel=1"):
        resume.plan(tmp_path, same, 2, pytest.fail)
    written(tmp_path)
    size = (made / resume.TOPOLOGY).stat().st_size
    (made / resume.TOPOLOGY).write_text("{" * size)  # of another size it would be no whole checkpoint
    with pytest.raises(ContentError, match=r"topology\.json"):
        resume.plan(tmp_path, same, 2, pytest.fail)


def test_the_batch_of_a_step_is_kept_or_the_start_refused(tmp_path) -> None:
    resumption = Resumption(written(tmp_path))
    settings = CptSettings(rows_per_device=2, gradient_accumulation_steps=2)
    said: list[str] = []
    assert resume.keep_batch("cpt", settings, Resumption(), 3, said.append) is settings
    assert resume.keep_batch("cpt", settings, resumption, 2, said.append) == settings and not said
    assert resume.keep_batch("cpt", settings, resumption, 1, said.append).gradient_accumulation_steps == 4
    with pytest.raises(RequestError, match=r"8 rows a step do not divide .* resume with cpt\.rows_per_device=1"):
        resume.keep_batch("cpt", settings, resumption, 8, said.append)
    with pytest.raises(RequestError, match="nproc=N with N a divisor of 8"):
        resume.keep_batch("cpt", settings, resumption, 3, said.append)
    assert said == ["cpt: 4 accumulation steps, so that a step keeps its 8 rows"]


def test_a_checkpoint_that_deepspeed_cannot_convert_is_named(tmp_path) -> None:
    made = written(tmp_path)
    (made / ".universal").mkdir()  # of a conversion that was cut short
    with pytest.raises(ContentError, match=r"could not convert it .*universal\.log"):
        resume.convert(made, rank=0)
    assert "can't find" in (made / "universal.log").read_text() and not (made / resume.UNIVERSAL).exists()
    assert checkpoint.damage(made) is None, "it can still be resumed natively"


def test_the_parameter_groups_get_steps_of_their_own() -> None:
    shared = torch.tensor(3.0)
    states = {0: {"step": shared, "exp_avg": shared}, 1: {"step": shared}, 2: {}}
    resume.own_steps(states)
    states[0]["step"] += 1
    assert (states[0]["step"].item(), states[1]["step"].item(), shared.item()) == (4.0, 3.0, 3.0)
    assert states[0]["exp_avg"] is shared
