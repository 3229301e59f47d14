"""A rank of `bench.full_depth`: `python -m bench.full_depth_rank RUN_DIR STAGE RESULT WATCH`.

STAGE cpt or rl is the product's own stage, `agentworld.train.worker.run_stage` on a run directory, with clocks around
some of its calls; base writes random weights. WATCH is JSON:

    profiled_step   whose kernels are recorded and whose seconds are left out; 0 = none
    saved_step      the only step after which a checkpoint is written; 0 = none
    export          whether the stage ends with its held-out loss and hand-off, or after its last step
    directory, tokenizer    of base: where the weights go, and what sizes them
"""

import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentworld.train import launch, worker
from agentworld.train.compose import load_recipe
from agentworld.train.config import Config


class Clocks:
    """Seconds of each call of functions, by name, from the moment the card is idle to the moment it is idle again."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def around(self, owner: Any, function: str, name: str) -> None:
        """Put a clock around an attribute of a module or class."""
        setattr(owner, function, self.timed(getattr(owner, function), name))

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            started = self._now()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name].append(self._now() - started)

        return call

    def _now(self) -> float:
        if self._gpu:
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()


def main(arguments: list[str]) -> int:
    """Run the stage and write what was found."""
    run_dir, stage, result, watch = Path(arguments[0]), arguments[1], Path(arguments[2]), json.loads(arguments[3])
    launch.die_with_parent()
    worker.quiet_libraries()
    config = load_recipe(run_dir)
    found = write_base(config, watch) if stage == "base" else run_stage(config, run_dir, stage, watch)
    result.write_text(json.dumps(found))
    return 0


def write_base(config: Config, watch: dict[str, Any]) -> dict[str, Any]:
    """Draw and write the weights; seconds until they are on the disk."""
    import torch.distributed as dist

    from bench import full_depth_setup

    dist.init_process_group("gloo")
    dist.barrier()
    started = time.perf_counter()
    full_depth_setup.write_base(config, Path(watch["tokenizer"]), Path(watch["directory"]))
    dist.barrier()
    seconds = time.perf_counter() - started
    dist.destroy_process_group()
    return {"seconds": seconds}


def run_stage(config: Config, run_dir: Path, stage: str, watch: dict[str, Any]) -> dict[str, Any]:
    """The stage, watched."""
    import transformers.trainer

    from agentworld.train import cpt, engine, export, gspo, model, rl, rollout_batches, trainers
    from bench import layer_speed
    from bench.step_recorder import StepRecorder

    gpu = not engine.uses_cpu(config.engine)
    clocks = Clocks(gpu)
    clocks.around(model, "load", "load")
    clocks.around(export, "write_safetensors", "export")
    clocks.around(trainers.StageTrainer, "_save_checkpoint", "checkpoint")
    clocks.around(transformers.trainer, "deepspeed_load_checkpoint", "resume")
    clocks.around(gspo.GspoTrainer, "_generate_and_score_completions", "rollout_and_scoring")
    clocks.around(rollout_batches.BatchedRollouts, "_generate_single_turn", "rollout")
    clocks.around(gspo.GspoTrainer, "_calculate_rewards", "reward")
    recorder = StepRecorder(gpu, watch["profiled_step"])
    found: dict[str, Any] = {}
    module = {"cpt": cpt, "rl": rl}[stage]
    train = module.train

    def watched_train(opened: Any, trainer: Any) -> None:
        found["matrix_product_flops"] = layer_speed.matrix_flops("cuda" if gpu else "cpu")
        found["parameters"] = sum(getattr(p, "ds_numel", p.numel()) for p in trainer.model.parameters())
        trainer.args.save_strategy = "no"
        product = trainer.train

        def with_recorder(**options: Any) -> None:  # the stage has added its callbacks: ours reads what they log
            trainer.add_callback(recorder)
            trainer.add_callback(_save_after(watch["saved_step"]))
            product(**options)

        trainer.train = with_recorder
        train(opened, trainer)

    module.train = watched_train
    if not watch["export"]:
        module.finish = lambda *arguments, **options: None
    started = time.perf_counter()
    worker.run_stage(config, run_dir, stage)
    found |= {"stage_seconds": time.perf_counter() - started, "seconds_of_calls": clocks.seconds}
    return found | {"steps": recorder.found(), "machine": layer_speed.machine(gpu)}


def _save_after(step: int) -> Any:
    """A callback that lets the trainer save after this step and no other."""
    from transformers import TrainerCallback

    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == step
            return control

    return Saves()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
