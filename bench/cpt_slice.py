"""The trainer of the CPT stage around a model and rows that are made here instead of loaded."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import cpt
from agentworld.train import model as loading
from agentworld.train.config import Config
from agentworld.train.model import DTYPES
from agentworld.train.resume import Resumption
from agentworld.train.stage import Stage
from agentworld.train.trainers import PackedTrainer


def random_model(architecture: Qwen3_5MoeTextConfig, dtype: str, device: str) -> Qwen3_5MoeForCausalLM:
    """Random weights, drawn on `device`: equal in every process on one kind of card."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    with torch.device(device):
        model = Qwen3_5MoeForCausalLM(architecture)
    torch.set_default_dtype(before)
    return model


def packed_trainer(
    config: Config, folder: Path, model: Qwen3_5MoeForCausalLM, rows: list[dict[str, Any]]
) -> PackedTrainer:
    """What `cpt.packed_trainer` builds: the same arguments, DeepSpeed configuration and collator. It saves nothing.

    Args:
        rows: with input_ids, labels and seq_lengths.
    """

    class Slice(Stage):
        def rows(self, name: str) -> Dataset:
            return Dataset.from_list(rows)

    stage = Slice("cpt", config, folder, config.cpt, folder, train_tokenizer(["text"], 264), Resumption())
    product, loading.load = loading.load, lambda *arguments, **options: model
    try:
        trainer = cpt.packed_trainer(stage)
    finally:
        loading.load = product
    trainer.args.save_strategy = "no"  # a checkpoint of random weights, 14 bytes a parameter
    return trainer
