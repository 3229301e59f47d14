"""The packed trainer: its loss against a loop over documents, and its stop on a loss that is not finite."""

import math

import pytest
import torch
from datasets import Dataset
from packed import pack
from trl import SFTConfig

from agentworld.data.errors import ContentError
from agentworld.data.render import Rendered
from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import kernels, model
from agentworld.train.config import ArchitectureSettings, ModelSettings
from agentworld.train.trainers import PackedTrainer


def documents(count: int) -> list[Rendered]:
    draw = torch.Generator().manual_seed(2)
    made = []
    for _ in range(count):
        length = int(torch.randint(5, 40, (1,), generator=draw))
        ids = torch.randint(5, 250, (length,), generator=draw).tolist()
        first = int(torch.randint(1, length - 1, (1,), generator=draw))
        made.append(Rendered(ids, [place >= first for place in range(length)]))
    return made


def rows_of(parts: list[Rendered], row_tokens: int) -> Dataset:
    rows, _ = pack(parts, row_tokens, splits=False)
    columns = ("input_ids", "labels", "seq_lengths")
    return Dataset.from_list([{name: getattr(row, name) for name in columns} for row in rows])


def made_trainer(tmp_path, rows: Dataset, **arguments) -> PackedTrainer:
    kernels.install()
    tokenizer = train_tokenizer(["echo apple\n"], 300)
    sizes = ArchitectureSettings(
        hidden_size=32, num_hidden_layers=2, full_attention_interval=2, num_experts=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )  # fmt: skip
    options = {
        "output_dir": str(tmp_path), "max_steps": 2, "per_device_train_batch_size": 2, "padding_free": True,
        "packing": False, "max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}, "use_cpu": True,
        "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
        "router_aux_loss_coef": 0.0, "logging_nan_inf_filter": False, "logging_steps": 1,
    }  # fmt: skip
    return PackedTrainer(
        model=model.build(ModelSettings(dtype="float32", architecture=sizes), tokenizer, seed=0),
        args=SFTConfig(**(options | arguments)),
        train_dataset=rows,
        processing_class=tokenizer,
    )


@torch.no_grad()
def naive_loss(policy, parts: list[Rendered]) -> float:
    """Mean cross-entropy over all labels, one document and one token at a time."""
    total, count = 0.0, 0
    for part in parts:
        logits = policy(torch.tensor([part.input_ids]), use_cache=False).logits[0].double()
        for place in range(1, len(part.input_ids)):
            if part.trained[place]:
                total -= torch.log_softmax(logits[place - 1], -1)[part.input_ids[place]].item()
                count += 1
    return total / count


@pytest.mark.parametrize("row_tokens", [40, 200])
def test_held_out_loss_is_the_mean_over_labels(tmp_path, row_tokens) -> None:
    parts = documents(9)
    rows = rows_of(parts, row_tokens)
    trainer = made_trainer(tmp_path, rows)
    assert trainer.held_out_loss(rows) == pytest.approx(naive_loss(trainer.model.eval(), parts), abs=1e-5)


def test_no_label_gives_no_held_out_loss(tmp_path) -> None:
    rows = rows_of(documents(4), 100)
    trainer = made_trainer(tmp_path, rows)
    empty = rows.map(lambda row: {"labels": [-100] * len(row["labels"])})
    assert trainer.held_out_loss(empty) is None
    assert trainer.held_out_loss(rows.select([])) is None


def test_training_loss_of_a_step_is_the_mean_over_its_labels(tmp_path) -> None:
    parts = documents(6)
    rows = rows_of(parts, 400)
    trainer = made_trainer(tmp_path, rows, per_device_train_batch_size=len(rows), max_steps=1, learning_rate=0.0)
    trainer.train()
    logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(naive_loss(trainer.model.eval(), parts), abs=1e-4)


def test_a_loss_that_is_not_finite_stops_naming_step_and_rows(tmp_path) -> None:
    rows = rows_of(documents(12), 60)
    assert len(rows) > 3
    trainer = made_trainer(tmp_path, rows, per_device_train_batch_size=1, max_steps=len(rows), seed=1)
    poison = rows[2]["input_ids"][1]
    clean = [number for number in range(len(rows)) if poison not in rows[number]["input_ids"]]
    assert clean, "some rows must train before the poisoned one"
    with torch.no_grad():
        trainer.model.model.embed_tokens.weight[poison] = math.nan
    with pytest.raises(ContentError, match=r"loss is nan at step \d+, rows \d+$") as stopped:
        trainer.train()
    named = int(str(stopped.value).rsplit(" ", 1)[1])
    assert poison in rows[named]["input_ids"]
    assert int(str(stopped.value).split("step ")[1].split(",")[0]) == trainer.state.global_step + 1
