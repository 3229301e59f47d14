"""Stage 1, CPT: next-token prediction on whole trajectories as chat, without thinking (arXiv:2606.24597 section 3.2).

Loss falls on the observations of the turns that the information-theoretic mask keeps, and on their end-of-turn tokens;
preparation has already rendered, masked and packed the rows.
"""

from pathlib import Path

from trl import SFTConfig

from agentworld.train.config import Config
from agentworld.train.stage import Stage, common_arguments, finish, load_model, open_stage, train
from agentworld.train.trainers import PackedTrainer


def run(config: Config, run_dir: Path) -> None:
    """Train CPT and write its hand-off."""
    stage = open_stage("cpt", config, run_dir)
    trainer = packed_trainer(stage)
    train(stage, trainer)
    finish(stage, trainer, held_out="cpt_heldout")


def packed_trainer(stage: Stage) -> PackedTrainer:
    """TRL's SFTTrainer on packed rows; SFT uses the same.

    `padding_free` with `skip_prepare_dataset` makes its collator turn rows with `seq_lengths` into one [1, T] tensor
    with document boundaries; the mean over labels is taken over all micro-batches and ranks of a step.
    """
    arguments = SFTConfig(
        **common_arguments(stage),
        per_device_train_batch_size=stage.settings.rows_per_device,
        gradient_accumulation_steps=stage.settings.gradient_accumulation_steps,
        average_tokens_across_devices=True,
        padding_free=True,
        packing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return PackedTrainer(
        model=load_model(stage),
        args=arguments,
        train_dataset=stage.rows(stage.name),
        processing_class=stage.tokenizer,
    )
