"""What arrives at a W&B server, at once or with a later `wandb sync`, of stages that were stopped and resumed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from wandb_server import wandb_server

PROGRAM = """
import sys
from pathlib import Path
from agentworld.train.config import WandbSettings
from agentworld.train.weights_and_biases import TrackedStage
stage, mode, first, last = sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
folder = Path(sys.argv[1]) / stage
folder.mkdir(parents=True, exist_ok=True)
config = {"recipe": {"seed": 3}, "lineage": {"data": "d"}}
tracked = TrackedStage(WandbSettings(mode=mode), stage, folder, "run-a", config)
for step in range(first, last + 1):
    tracked.log({"step": step, "loss": 10.0 - step})
tracked.finish()
"""


@pytest.fixture
def server(monkeypatch):
    with wandb_server() as serving:
        monkeypatch.setenv("WANDB_BASE_URL", serving.address)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        yield serving


def log_steps(run_dir: Path, stage: str, mode: str, first: int, last: int) -> None:
    """One start of a stage, in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(run_dir), stage, mode, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_resumed_stage_is_one_run_with_every_step(server, tmp_path, mode) -> None:
    log_steps(tmp_path, "cpt", mode, 1, 3)
    log_steps(tmp_path, "cpt", mode, 4, 6)
    log_steps(tmp_path, "sft", mode, 1, 2)
    if mode == "offline":
        assert not server.runs
        command = [
            str(Path(sys.executable).with_name("wandb")),
            "sync",
            *map(str, tmp_path.glob("wandb/offline-run-*")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    identities = {stage: json.loads((tmp_path / stage / "wandb.json").read_text())["id"] for stage in ("cpt", "sft")}
    assert set(server.runs) == set(identities.values())
    for stage, steps in (("cpt", 6), ("sft", 2)):
        run, history = server.runs[identities[stage]], server.history[identities[stage]]
        assert (run["groupName"], run["jobType"], run["displayName"]) == ("run-a", stage, f"run-a-{stage}")
        config = json.loads(run["config"])
        assert config["recipe"]["value"] == {"seed": 3} and config["lineage"]["value"] == {"data": "d"}
        assert [line["step"] for line in history] == list(range(1, steps + 1))
        assert [line["loss"] for line in history] == [10.0 - step for step in range(1, steps + 1)]
        metrics = config["_wandb"]["value"]["m"]  # "1" a name, "2" a pattern, "5" the number of its axis in this list
        (axis,) = [metric["5"] for metric in metrics if metric.get("2") == "*"]
        assert metrics[axis - 1]["1"] == "step"
