"""Stage 0: the untrained start. A model with random weights is built and handed over like any other stage's."""

import functools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import Qwen3_5MoeForCausalLM

from agentworld.data.tokenizer import load_tokenizer
from agentworld.train import checkpoint, engine, export, model
from agentworld.train.config import Config
from agentworld.train.shards import Entry
from agentworld.train.stage import data_sha256


def run(config: Config, run_dir: Path) -> None:
    """Write `base/export`; with `model.path` the start is that directory and there is nothing to build."""
    if config.model.path or engine.rank() != 0:
        return
    tokenizer_dir = run_dir / "data" / "tokenizer"
    with torch.device("meta"):  # shapes only: the values are drawn module by module while they are written
        shapes = Qwen3_5MoeForCausalLM(model.random_config(config.model, load_tokenizer(tokenizer_dir)))
    shapes.to(model.DTYPES[config.model.dtype])
    checkpoint.write_handoff(
        run_dir / "base" / "export",
        stage="base",
        step=0,
        parent=None,
        recipe_sha256=checkpoint.sha256_json(asdict(config)),
        data_sha256=data_sha256(run_dir / "data"),
        tokenizer=tokenizer_dir,
        write_weights=lambda directory: export.write(
            list(random_entries(shapes, config.seed)), shapes.config, directory, config.model.export_layout
        ),
    )


def random_entries(shapes: Qwen3_5MoeForCausalLM, seed: int) -> Iterator[Entry]:
    """The tensors of `model.build` with the same settings and seed, one module in memory at a time.

    Args:
        shapes: the model on the meta device, in the dtype of the export.
    """
    modules = dict(shapes.named_modules())

    @functools.lru_cache(maxsize=1)  # the parameters of one module follow each other
    def values(prefix: str) -> dict[str, torch.Tensor]:
        return model.random_parameters(shapes, prefix, modules[prefix], seed)

    for name, parameter in shapes.named_parameters():
        prefix, _, key = name.rpartition(".")
        fetch = functools.partial(lambda prefix, key, writer: values(prefix)[key], prefix, key)
        yield Entry(name, tuple(parameter.shape), parameter.dtype, fetch)
