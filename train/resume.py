"""Where a stage resumes, and how: natively in the processes that wrote the checkpoint, or in another number of them.

DeepSpeed's shards belong to one topology: processes, ZeRO stage, degree of expert parallelism. For another number of
processes or another degree the checkpoint is converted once to DeepSpeed's universal form, which lies beside the shards
in the checkpoint. The rows of an optimizer step stay as many as they were, so the losses go on as if nothing had
changed; ZeRO stages cannot be converted into each other (deepspeed/runtime/state_dict_factory.py:168).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import checkpoint
from agentworld.train.config import EngineSettings, RlSettings, StageSettings

TOPOLOGY = "topology.json"
UNIVERSAL = "latest_universal"  # DeepSpeed's marker; here it appears when the conversion is whole
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Topology:
    """What DeepSpeed's shards depend on, and the batch of an optimizer step."""

    world_size: int
    zero_stage: int
    expert_parallel: int | None  # degree of AutoEP; None = off: the parameters then have other names
    rows_per_step: int  # over all micro-batches and ranks

    def write(self, directory: Path) -> None:
        (directory / TOPOLOGY).write_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Resumption:
    """The checkpoint to go on from (None: the stage begins) and what it asks of the engine."""

    checkpoint: Path | None = None
    elastic: bool = False  # through the universal form
    auto_ep: bool = False  # the checkpoint has AutoEP's names

    @property
    def step(self) -> int:
        """Optimizer steps that were taken before."""
        return checkpoint.step_of(self.checkpoint) if self.checkpoint else 0

    def engine(self, settings: EngineSettings, render: Callable[[EngineSettings], dict[str, Any]]) -> dict[str, Any]:
        """The DeepSpeed configuration that `render` makes of `settings`, able to read the checkpoint."""
        config = render(settings)
        if self.auto_ep and settings.expert_parallel == 1:  # AutoEP stays on until the end of the stage, at degree 1
            config = render(replace(settings, expert_parallel=2))
            config["expert_parallel"]["autoep_size"] = 1
        if self.elastic:
            config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
        return config


def topology_of(config: dict[str, Any], world_size: int) -> Topology:
    """The topology of a run with a DeepSpeed configuration whose "auto" values are filled in."""
    experts = config.get("expert_parallel", {})
    rows = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * world_size
    degree = experts["autoep_size"] if experts.get("enabled") else None
    return Topology(world_size, config["zero_optimization"]["stage"], degree, rows)


def plan(directory: Path, engine: EngineSettings, world_size: int, warn: Callable[[str], None]) -> Resumption:
    """Look for the newest whole checkpoint in `directory` and decide how this start reads it.

    Raises:
        ContentError: the checkpoint does not say by which topology it was written.
        RequestError: this start cannot read it; the text names the keys that can.
    """
    newest = checkpoint.newest_checkpoint(directory, warn)
    if newest is None:
        return Resumption()
    saved = saved_topology(newest)
    degree = saved.expert_parallel or 1
    keys = f"nproc={saved.world_size} engine.expert_parallel={degree}"
    if saved.zero_stage != engine.zero_stage:
        raise RequestError(
            f"{newest} was written with ZeRO-{saved.zero_stage} and this run has ZeRO-{engine.zero_stage}; optimizer "
            f"states of one ZeRO stage do not convert into another's: resume with engine.zero_stage={saved.zero_stage}"
        )
    if saved.expert_parallel is None and engine.expert_parallel > 1:
        raise RequestError(
            f"{newest} was written without expert parallelism, whose parameters have other names; resume with "
            "engine.expert_parallel=1 and let the next stage begin with more"
        )
    elastic = (saved.world_size, degree) != (world_size, engine.expert_parallel)
    if elastic and any(newest.glob("rollout_*.pt")):
        raise RequestError(f"{newest} lies inside a rollout, which belongs to its processes; resume with {keys}")
    return Resumption(newest, elastic, saved.expert_parallel is not None)


def saved_topology(directory: Path) -> Topology:
    """The topology that wrote a checkpoint.

    Raises:
        ContentError: the file is missing or damaged.
    """
    try:
        return Topology(**json.loads((directory / TOPOLOGY).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ContentError(f"{directory / TOPOLOGY}: {error}; start the stage again with overwrite=true") from None


def keep_batch(
    name: str, settings: StageSettings, resumption: Resumption, world_size: int, say: Callable[[str], None]
) -> StageSettings:
    """Settings with which an optimizer step has as many rows as in the checkpoint: the accumulation is adapted.

    RL has none of its own: its mini-batch follows from the rollout.

    Raises:
        RequestError: no number of accumulation steps gives that batch.
    """
    if resumption.checkpoint is None or isinstance(settings, RlSettings):
        return settings
    rows, micro_batch = saved_topology(resumption.checkpoint).rows_per_step, settings.rows_per_device * world_size
    if rows % micro_batch:
        fitting = [n for n in range(1, settings.rows_per_device + 1) if rows % (n * world_size) == 0]
        way = f"{name}.rows_per_device={fitting[-1]}" if fitting else f"nproc=N with N a divisor of {rows}"
        raise RequestError(
            f"{resumption.checkpoint}: {rows} rows a step do not divide by {name}.rows_per_device="
            f"{settings.rows_per_device} x {world_size} processes; resume with {way}"
        )
    if rows // micro_batch != settings.gradient_accumulation_steps:
        say(f"{name}: {rows // micro_batch} accumulation steps, so that a step keeps its {rows} rows")
    return replace(settings, gradient_accumulation_steps=rows // micro_batch)


def convert(directory: Path, rank: int) -> None:
    """Give a checkpoint its universal form: the first rank converts, the others wait for the marker.

    They look for a file and do not wait in a collective, whose time limit a large checkpoint would pass. A conversion
    that is cut short leaves no marker and is made anew.

    Raises:
        ContentError: the disk is full, or DeepSpeed cannot convert it; its output is in universal.log.
    """
    marker = directory / UNIVERSAL
    if rank != 0:
        while not marker.is_file():
            time.sleep(POLL_SECONDS)
        return
    _name_random_state(directory)
    if marker.is_file():
        return
    tag = (directory / "latest").read_text().strip()
    temporary, target = directory / ".universal", directory / f"{tag}_universal"
    for left in (temporary, target):  # of a conversion that was cut short
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    sizes = [path.stat().st_size for path in (directory / tag).rglob("*") if path.is_file()]
    checkpoint.require_disk(directory, 2 * sum(sizes), "its conversion")  # beside the parts that are put together
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    folders = ["--input_folder", str(directory / tag), "--output_folder", str(temporary / target.name)]
    log = directory / "universal.log"
    with open(log, "w") as output:
        outcome = subprocess.run([*command, *folders], stdout=output, stderr=output, env=_single_process())
    if outcome.returncode:
        raise ContentError(f"{directory}: DeepSpeed could not convert it for another number of processes (see {log})")
    checkpoint.flush(temporary)
    (temporary / target.name).rename(target)
    (temporary / UNIVERSAL).rename(marker)
    checkpoint.flush_directory(directory)
    shutil.rmtree(temporary)


def _single_process() -> dict[str, str]:
    """The environment without this rank's place: the converter is no part of the process group."""
    place = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in place}


def _name_random_state(directory: Path) -> None:
    """The trainer calls the random state of a lone process rng_state.pth and that of the first of several
    rng_state_0.pth."""
    alone, first = directory / "rng_state.pth", directory / "rng_state_0.pth"
    for present, absent in ((alone, first), (first, alone)):
        if present.is_file() and not absent.is_file():
            shutil.copyfile(present, absent)


def own_steps(optimizer_state: dict[Any, dict[str, Any]]) -> None:
    """Give each parameter group its own step counter after a universal load.

    ZeRO-3 assigns one tensor to all (deepspeed/runtime/zero/stage3.py:3681), which torch's optimizers then advance once
    a group: the bias correction of Adam would be wrong.
    """
    for state in optimizer_state.values():
        if hasattr(state.get("step"), "clone"):
            state["step"] = state["step"].clone()
