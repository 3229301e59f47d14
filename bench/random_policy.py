"""A random model, its tokenizer and random prompts in the trainer of the RL stage."""

import functools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from agentworld.data.tokenizer import train_tokenizer
from agentworld.train import engine, model, rl
from agentworld.train.config import Config
from agentworld.train.gspo import GspoTrainer
from agentworld.train.resume import Resumption
from agentworld.train.stage import Stage


def random_trainer(config: Config, folder: Path, sizes: dict[str, int]) -> GspoTrainer:
    """What `rl.gspo_trainer` builds, on a random model and random prompts; the reward is the share of even tokens.
    Collective where there are several ranks, which share the folder."""
    tokenizer = random_tokenizer()
    if engine.rank() == 0:
        (folder / "rl").mkdir(parents=True)
        random_parent(config, folder / "parent", seed=0)
        _write_prompts(folder / "data", tokenizer, sizes)
    if dist.is_initialized():
        dist.barrier()

    def even_tokens(completion_ids, **others) -> list[float]:
        return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]

    stage = Stage("rl", config, folder, config.rl, folder / "parent", tokenizer, Resumption())
    product, rl.reward_function = rl.reward_function, lambda *arguments: even_tokens
    try:
        trainer = rl.gspo_trainer(stage)
    finally:
        rl.reward_function = product
    trainer.args.save_strategy = "no"
    return trainer


def random_parent(config: Config, directory: Path, seed: int) -> Path:
    """A random model of the recipe and its tokenizer at `directory`."""
    tokenizer = random_tokenizer()
    model.build(config.model, tokenizer, seed=seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _write_prompts(data: Path, tokenizer: PreTrainedTokenizerFast, sizes: dict[str, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    (data / "prompts").mkdir(parents=True)
    tokenizer.save_pretrained(data / "tokenizer")
    columns = {"domain": "terminal", "action": "", "observation": "", "deterministic": True}
    rows = []
    for number in range(sizes["prompts"]):
        length = int(torch.randint(sizes["longest_prompt"] // 8, sizes["longest_prompt"] + 1, (), generator=draw))
        rows.append({"prompt": f"p#{number}", "prompt_ids": drawn(tokenizer, (length,), draw).tolist(), **columns})
    pq.write_table(pa.Table.from_pylist(rows), data / "prompts" / "rl.parquet")


@functools.cache
def random_tokenizer() -> PreTrainedTokenizerFast:
    """4,096 entries, learnt from random words of five letters."""
    draw = torch.Generator().manual_seed(0)
    letters = bytes(torch.randint(97, 123, (200_000,), generator=draw).tolist()).decode()
    return train_tokenizer([" ".join(letters[i : i + 5] for i in range(0, len(letters), 5))], 4096)


def drawn(tokenizer: PreTrainedTokenizerFast, shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    """Random ids without the control tokens at the end of the vocabulary."""
    return torch.randint(0, len(tokenizer) - 8, shape, generator=draw)
