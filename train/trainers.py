"""TRL's trainers with what this pipeline changes in them, and why. No loop of our own.

    StageTrainer      what all stages share: whole checkpoints, a stop at a step boundary, a stop on a non-finite loss
    PackedTrainer     CPT and SFT on rows packed by `agentworld.data.packing` (trl.SFTTrainer)
    StopCallback      a stop that all ranks agree on

RL's is in `gspo.py`.

The versions of trl, transformers, accelerate and deepspeed are pinned, because private methods are overridden.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTTrainer

from agentworld.data.errors import ContentError
from agentworld.train import checkpoint, resume, stop

BYTES_PER_PARAMETER = 16  # weights, fp32 master copy and two Adam moments: an upper bound for any ZeRO stage


class StageTrainer:
    """Mixed in front of a TRL trainer that runs on DeepSpeed."""

    save_total_checkpoints = 2
    _is_saving = False

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write config and tokenizer only: the weights stand in DeepSpeed's shards, and `export` writes them for the
        next stage. The stock method would write rank 0's experts only, or fail, under AutoEP."""
        if self.args.should_save:
            directory = output_dir or self.args.output_dir
            os.makedirs(directory, exist_ok=True)
            self.accelerator.unwrap_model(self.model).config.save_pretrained(directory)
            self.processing_class.save_pretrained(directory)

    def create_model_card(self, *args, **kwargs) -> None:
        """No card in a directory of checkpoints; the hand-off says what it is."""

    def _save_checkpoint(self, model, trial) -> None:
        """Refuse a save that would not fit, let all ranks write into a temporary directory, and give the checkpoint its
        name when it is whole; then rotate: the stock rotation runs before the new checkpoint is known to be whole."""
        directory, name = Path(self.args.output_dir), f"{checkpoint.PREFIX}{self.state.global_step}"
        if self.args.should_save:
            count = sum(getattr(p, "ds_numel", p.numel()) for p in self.model.parameters())
            checkpoint.begin(directory, needed=BYTES_PER_PARAMETER * count)
        _barrier()
        self._is_saving = True
        super()._save_checkpoint(model, trial)
        self._is_saving = False
        self._save_more(directory / checkpoint.UNFINISHED / name)
        _barrier()
        if self.args.should_save:
            engine = self.accelerator.state.deepspeed_plugin.hf_ds_config.config
            resume.topology_of(engine, self.args.world_size).write(directory / checkpoint.UNFINISHED / name)
            checkpoint.complete(directory, name)
            checkpoint.rotate(directory, self.save_total_checkpoints)
        _barrier()

    def _get_output_dir(self, trial) -> str:
        """The directory that the stock save writes `checkpoint-<step>` into."""
        directory = super()._get_output_dir(trial)
        return os.path.join(directory, checkpoint.UNFINISHED) if self._is_saving else directory

    def _save_more(self, directory: Path) -> None:
        """What a subclass adds to a checkpoint before it is marked complete."""

    def _load_optimizer_and_scheduler(self, checkpoint_dir: str | None) -> None:
        """Called when DeepSpeed has loaded a checkpoint: part the step counters that a universal load shares."""
        super()._load_optimizer_and_scheduler(checkpoint_dir)
        if checkpoint_dir is not None:
            resume.own_steps(self.model_wrapped.optimizer.optimizer.state)

    def _run_epoch(self, *args, **kwargs) -> None:
        """Take no step past the last: from a checkpoint of the last step the stock loop trains one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Stop on the first non-finite loss, naming the step and the rows: the optimizer has not seen it yet."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not math.isfinite(loss.item()):
            step = self.state.global_step + 1
            raise ContentError(f"loss is {loss.item()} at step {step}, rows {', '.join(self._row_names(inputs))}")
        return loss

    def _row_names(self, inputs) -> list[str]:
        raise AssertionError("each trainer names its rows")


class PackedTrainer(StageTrainer, SFTTrainer):
    """`trl.SFTTrainer` on rows with `input_ids`, `labels` and `seq_lengths`; its collator packs them without
    padding.
    """

    def _row_names(self, inputs) -> list[str]:
        """Numbers of the dataset rows whose tokens stand in the batch, found by content: the collator keeps no ids."""
        remaining = inputs["input_ids"][0].tolist() if torch.is_tensor(inputs["input_ids"]) else []
        names = []
        for number, row in enumerate(self.train_dataset["input_ids"]):
            if _contains(remaining, row):
                names.append(str(number))
        return names or ["unknown"]

    def held_out_loss(self, rows: Dataset) -> float | None:
        """Mean cross-entropy in nats a label over all labels of `rows`, weighted by token over all ranks.

        The trainer's own `evaluate` averages over batches, so its value depends on how rows fall into batches.
        Returns None when `rows` holds no label.
        """
        world, rank = self.args.world_size, self.args.process_index
        self.model_wrapped.eval()
        totals = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        for start in range(0, len(rows), world):  # every rank runs as many forwards as the others (ZeRO-3, AutoEP)
            index = start + rank
            batch = self.data_collator([rows[min(index, len(rows) - 1)]])
            batch = self._prepare_inputs(batch)
            with torch.no_grad():
                outputs = self.model_wrapped(**batch, use_cache=False, fused_lm_head=True)
            if index < len(rows):
                totals += torch.stack([-outputs.log_probs.double().sum(), outputs.label_mask.double().sum()])
        totals = self.accelerator.reduce(totals, reduction="sum")
        self.model_wrapped.train()
        return (totals[0] / totals[1]).item() if totals[1] > 0 else None


class StopCallback(TrainerCallback):
    """At each step boundary all ranks agree whether one of them was asked to stop; then they save and leave."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.stopped = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        flag = torch.tensor([stop.requested(self.run_dir)], dtype=torch.int32, device=args.device)
        if dist.is_initialized():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item() and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
            self.stopped = True
        return control


def scheduler_arguments(lr_scheduler: str, min_lr_ratio: float) -> dict:
    """The trainer's scheduler for a recipe's `lr_scheduler`."""
    if lr_scheduler == "constant":
        return {"lr_scheduler_type": "constant_with_warmup"}
    return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": min_lr_ratio}}


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _contains(tokens: Sequence[int], row: Sequence[int]) -> bool:
    length = len(row)
    return any(tokens[start : start + length] == row for start in range(len(tokens) - length + 1))
