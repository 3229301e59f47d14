"""The smoke recipe at a size for tests: a stage takes seconds."""

import json
from pathlib import Path

SMALL = [
    "recipe=smoke", "data.record.count=70", "data.tokenizer_vocab_size=500", "data.cpt_row_tokens=512",
    "data.split.cpt=0.4", "data.split.sft=0.25", "data.split.rl=0.2", "data.split.eval=0.15",
    "model.architecture.hidden_size=64", "model.architecture.moe_intermediate_size=32",
    "cpt.max_steps=12", "cpt.save_steps=3", "cpt.warmup_steps=2", "cpt.rows_per_device=2",
    "sft.max_steps=3", "sft.save_steps=3", "sft.warmup_steps=2",
    "rl.max_steps=4", "rl.save_steps=2", "rl.warmup_steps=1", "rl.prompts_per_rollout=2", "rl.num_generations=4",
    "rl.mini_batches=2", "rl.completions_per_device=2", "rl.max_completion_tokens=8",
    "eval.examples=4", "eval.reward_examples=2", "eval.max_new_tokens=8",
]  # fmt: skip


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(stage: Path) -> list[dict]:
    return rows_of(stage / "metrics.jsonl")
