"""Stage 2, SFT: next-state reasoning (arXiv:2606.24597 section 3.3).

The final turn of each row carries `<think>...</think>`, the prediction in its tag, and the loss; earlier observations
are plain ground truth. Traces come from a teacher and are kept only where their prediction equals the truth.
"""

from pathlib import Path

from agentworld.train.config import Config
from agentworld.train.cpt import packed_trainer
from agentworld.train.stage import finish, open_stage, train


def run(config: Config, run_dir: Path) -> None:
    """Train SFT and write its hand-off."""
    stage = open_stage("sft", config, run_dir)
    trainer = packed_trainer(stage)
    train(stage, trainer)
    finish(stage, trainer, held_out="sft_heldout")
