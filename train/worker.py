"""One rank of one stage: `python -m agentworld.train.worker RUN_DIR STAGE`, started by `launch.py` or by srun.

STAGE is base, cpt, sft, pilot, rl or evaluate:<stage>. Exit codes are the command's: 0 done, 1 unusable content or
failed work, 2 a wrong request, 3 stopped by a signal after a checkpoint.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import launch, stop
from agentworld.train.compose import load_recipe
from agentworld.train.config import Config

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk or a quota: nothing in the code to look for


def main(arguments: list[str]) -> int:
    """Run the stage and return the exit code."""
    run_dir, stage = Path(arguments[0]), arguments[1]
    defect = run_dir / f"error-{stage.replace(':', '-')}-rank{os.environ.get('RANK', '0')}.log"
    stop.install()
    launch.die_with_parent()
    try:
        run_stage(load_recipe(run_dir), run_dir, stage)
    except stop.StoppedError as stopped:
        say(str(stopped))
        return 3
    except (RequestError, ContentError) as error:
        say(f"error: {error}")
        return 2 if isinstance(error, RequestError) else 1
    except Exception as error:  # the last frame: anything else is a defect, kept whole in a file
        if isinstance(error, OSError) and error.errno in FULL:
            say(f"error: {run_dir}: {os.strerror(error.errno)}; free space, and start again with resume=true")
            return 1
        first_line = (str(error).splitlines() or [""])[0]
        try:
            defect.write_text(traceback.format_exc())
            kept = f"traceback in {defect}"
        except OSError as unwritten:
            kept = f"no traceback: {unwritten}"
        say(f"error: {type(error).__name__}: {first_line} ({kept})")
        if os.environ.get("AGENTWORLD_DEBUG") == "1":
            traceback.print_exc()
        return 1
    defect.unlink(missing_ok=True)  # of an earlier start
    return 0


def run_stage(config: Config, run_dir: Path, stage: str) -> None:
    """Join the process group and run one stage; torch is imported here, after the signals are ours."""
    quiet_libraries()
    from agentworld.train import base, cpt, engine, evaluate, pilot, rl, sft

    engine.start_rank(config.engine)
    try:
        if stage.startswith("evaluate:"):
            evaluate.run(config, run_dir, stage.removeprefix("evaluate:"))
        else:
            {"base": base, "cpt": cpt, "sft": sft, "pilot": pilot, "rl": rl}[stage].run(config, run_dir)
    except stop.StoppedError:
        engine.leave()  # all ranks stop together
        raise
    engine.leave()


def quiet_libraries() -> None:
    """Libraries that print by themselves say errors only, so that the step line stays readable."""
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "DATASETS_VERBOSITY": "error",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "DEEPSPEED_LOG_LEVEL": "error",
        "DS_LOG_LEVEL": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
    logging.getLogger("trl").setLevel(logging.ERROR)  # warns that one packed row a batch could be two
    # The trainer accumulates by itself and tells accelerate 1 (transformers/trainer.py:825), and DeepSpeed the number.
    logging.getLogger("accelerate.accelerator").addFilter(_is_no_accumulation_mismatch)
    # Deprecated names that TRL and DeepSpeed use of transformers and torch: nothing a user of this command can change.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*torch.distributed.* is deprecated", category=FutureWarning)


def _is_no_accumulation_mismatch(record: logging.LogRecord) -> bool:
    return "Gradient accumulation steps mismatch" not in record.getMessage()


def say(text: str) -> None:
    print(f"agentworld: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
