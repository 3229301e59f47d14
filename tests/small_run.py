"""The smoke recipe at a size for tests, its processes, and copies of a run that a stage trains again in."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentworld.rewards import completions
from agentworld.train.compose import load_recipe, to_yaml
from agentworld.train.launch import launch

SMALL = [
    "recipe=smoke", "data.record.count=70", "data.tokenizer_vocab_size=500", "data.cpt_row_tokens=512",
    "data.split.cpt=0.4", "data.split.sft=0.25", "data.split.rl=0.2", "data.split.eval=0.15",
    "model.architecture.hidden_size=64", "model.architecture.moe_intermediate_size=32",
    "cpt.max_steps=12", "cpt.save_steps=3", "cpt.warmup_steps=2", "cpt.rows_per_device=2",
    "sft.max_steps=3", "sft.save_steps=3", "sft.warmup_steps=2",
    "rl.max_steps=4", "rl.save_steps=2", "rl.warmup_steps=1", "rl.prompts_per_rollout=2", "rl.num_generations=4",
    "rl.mini_batches=2", "rl.completions_per_device=2", "rl.max_completion_tokens=8",
    "eval.examples=4", "eval.reward_examples=2", "eval.max_new_tokens=8",
]  # fmt: skip


def start(root: Path, *overrides: str, **options) -> subprocess.Popen:
    command = Path(sys.executable).with_name("agentworld")
    arguments = [str(command), "train", *SMALL, f"run.root={root}", "run.name=chain", *overrides]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def completions_of(run: Path) -> list[dict]:
    """Every sample of RL, by step and rank."""
    return [
        row for path in sorted((run / "rl" / "completions").glob("step_*.parquet")) for row in completions.read(path)
    ]


def metrics(stage: Path) -> list[dict]:
    return rows_of(stage / "metrics.jsonl")


def wait_for_step(stage: Path, step: int, process: subprocess.Popen, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if (stage / "metrics.jsonl").exists() and any(row["step"] >= step for row in metrics(stage)):
            return
        time.sleep(0.02)
    pytest.fail(f"step {step} was not reached: {process.communicate()[0][-3000:]}")


def reopened(chain: dict, tmp_path: Path, name: str, drop: str, **changes: dict) -> Path:
    """A copy of the run without stage `drop` and with other settings, for a worker to run again."""
    run = tmp_path / name
    shutil.copytree(chain["run"], run, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.rmtree(run / drop)
    (run / drop).mkdir()
    config = load_recipe(run)
    for section, values in changes.items():
        for key, value in values.items():
            setattr(getattr(config, section), key, value)
    (run / "recipe.yaml").write_text(to_yaml(config))
    return run


def work(run: Path, stage: str, ranks: int) -> None:
    outcome = launch(["-m", "agentworld.train.worker", str(run), stage], ranks, run / stage, {"DS_ACCELERATOR": "cpu"})
    log = run / stage / "rank1.log"
    assert outcome.code == 0, log.read_text() if log.exists() else outcome
