"""A stage that is stopped or killed goes on as if it had not been: same rows, same losses, same weights (fault 19)."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import completions_of, metrics, reopened, wait_for_step

from agentworld.rewards import completions
from agentworld.train import checkpoint
from agentworld.train.launch import free_port, rank_environment

# Several (run, stage) one after the other in the processes of one start, which takes longer than the stages themselves.
# A model of a few steps never closes the answer's tag: every reward would be 0, and so every gradient. Here the reward
# of a completion comes from its ids; the real one runs too, and writes the completions.
WORKER = """
import sys
from pathlib import Path
from agentworld.train import stop, worker
from agentworld.train.compose import load_recipe
stop.install()
worker.quiet_libraries()
from accelerate.state import AcceleratorState, GradientState
from agentworld.train import cpt, engine, rl, sft
real = rl.reward_function
def varied(*given):
    score = real(*given)
    def reward(completion_ids, **columns):
        score(completion_ids=completion_ids, **columns)
        return [float(sum(ids) % 7) for ids in completion_ids]
    return reward
rl.reward_function = varied
for run, stage in zip(sys.argv[1::2], sys.argv[2::2]):
    config = load_recipe(run)
    engine.start_rank(config.engine)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    {"cpt": cpt, "sft": sft, "rl": rl}[stage].run(config, Path(run))
engine.leave()
"""
# Steps of a run, and the one it is resumed at: CPT and SFT cross the end of an epoch before and after it, RL is in the
# middle of a rollout (two steps each).
RANKS = 2
LENGTHS = {"cpt": (9, 5), "sft": (7, 3), "rl": (6, 3)}


def started(arguments: list[str], ranks: int) -> list[subprocess.Popen]:
    """The processes of a stage, without the launcher: signals can be sent to one of them."""
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu"}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=rank_environment(shared, rank, ranks),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def finished(processes: list[subprocess.Popen], code: int = 0) -> str:
    texts = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), "\n".join(texts)[-5000:]
    return "\n".join(texts)


def cut_back(straight: Path, resumed: Path, stage: str, step: int) -> None:
    """A copy of a finished stage as a kill after the checkpoint of `step` would have left it: later lines of the
    metrics and later completions are there, the export is not."""
    shutil.copytree(straight, resumed)
    shutil.rmtree(resumed / stage / "export")
    (resumed / stage / "training.json").unlink()
    for directory in checkpoint.checkpoints(resumed / stage / "checkpoints"):
        if checkpoint.step_of(directory) > step:
            shutil.rmtree(directory)
    assert checkpoint.step_of(checkpoint.newest_checkpoint(resumed / stage / "checkpoints", pytest.fail)) == step


def comparable(run: Path, stage: str) -> list[dict]:
    """The metrics without what a clock decides."""
    clock = ("time", "tokens_per_s")
    return [{key: value for key, value in row.items() if key not in clock} for row in metrics(run / stage)]


@pytest.fixture(scope="module")
def runs(chain, tmp_path_factory) -> dict:
    """Stage -> it uninterrupted, the same one resumed, and the step that it was resumed at."""
    made = {}
    root = tmp_path_factory.mktemp("resume")
    for stage, (steps, step) in LENGTHS.items():
        settings = {"max_steps": steps, "save_steps": 1, "save_total_limit": steps + 1, "warmup_steps": 2}
        run = reopened(chain, root, stage, stage, **{stage: settings})
        made[stage] = (run, root / f"{stage}-resumed", step)
    for place in (0, 1):
        pairs = [(str(made[stage][place]), stage) for stage in LENGTHS]
        finished(started(["-c", WORKER, *(word for pair in pairs for word in pair)], RANKS))
        if place == 0:
            for stage, (straight, resumed, step) in made.items():
                cut_back(straight, resumed, stage, step)
    return made


@pytest.mark.parametrize("stage", LENGTHS)
def test_a_resumed_stage_equals_an_uninterrupted_one(runs, stage) -> None:
    straight, resumed, _ = runs[stage]
    expected, found = comparable(straight, stage), comparable(resumed, stage)
    assert [row["step"] for row in found] == list(range(1, LENGTHS[stage][0] + 1))
    for before, after in zip(expected, found, strict=True):
        assert before.keys() == after.keys()
        for key in before:
            assert after[key] == (pytest.approx(before[key], abs=1e-6) if key != "stage" else before[key]), key
    assert len({row["loss"] for row in expected}) == len(expected), "equal steps would hide a replay"
    handoffs = [checkpoint.verify_handoff(run / stage / "export") for run in (straight, resumed)]
    assert handoffs[0]["files"] == handoffs[1]["files"]
    training = [json.loads((run / stage / "training.json").read_text()) for run in (straight, resumed)]
    assert training[0]["tokens"] == training[1]["tokens"] > 0
    assert training[0]["heldout_loss"] == training[1]["heldout_loss"]


def test_the_stream_of_prompts_goes_on(runs) -> None:
    """Every rollout has the same prompts and samples: the resumed run wrote those after step 3 itself."""
    straight, resumed, step = runs["rl"]
    names = sorted(path.name for path in (straight / "rl" / "completions").glob("step_*"))
    assert len(names) == 3 * RANKS and names == sorted(path.name for path in (resumed / "rl" / "completions").iterdir())
    for name in names:
        assert completions.read(resumed / "rl" / "completions" / name) == completions.read(
            straight / "rl" / "completions" / name
        )
        rewritten = (resumed / "rl" / "completions" / name).stat().st_mtime > (
            resumed / "rl" / "checkpoints" / f"checkpoint-{step}" / checkpoint.COMPLETE
        ).stat().st_mtime
        assert rewritten == (int(name.split("_")[1]) > step), name


def test_two_ranks_share_whole_groups_of_a_rollout(runs) -> None:
    straight, _, _ = runs["rl"]
    keys = [row["prompt"] for row in completions_of(straight) if row["step"] == 0]
    assert len(keys) == 8 and {keys.count(key) for key in keys} == {4}, "groups of 4 over both ranks"


def test_a_signal_to_one_rank_stops_all_at_one_step(chain, tmp_path) -> None:
    """SIGUSR1, as SLURM warns; the `chain` fixture sends SIGTERM through the launcher to all."""
    run = reopened(chain, tmp_path, "one", "cpt", cpt={"max_steps": 5000, "save_steps": 5000})
    processes = started(["-m", "agentworld.train.worker", str(run), "cpt"], 2)
    wait_for_step(run / "cpt", 3, processes[0])
    processes[1].send_signal(signal.SIGUSR1)
    text = finished(processes, code=3)
    last = metrics(run / "cpt")[-1]["step"]
    assert f"cpt stopped at step {last}" in text
    assert [path.name for path in (run / "cpt" / "checkpoints").iterdir()] == [f"checkpoint-{last}"]
    assert checkpoint.damage(run / "cpt" / "checkpoints" / f"checkpoint-{last}") is None


def test_a_second_signal_ends_a_process_at_once() -> None:
    program = (
        "import time; from agentworld.train import stop; stop.install(); print('ready', flush=True)\n"
        "while not stop.requested(): time.sleep(0.01)\n"
        "print('asked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM
