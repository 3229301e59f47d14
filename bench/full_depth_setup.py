"""What a full-depth run needs beside the product: a tokenizer with the real vocabulary, random weights, rows, prompts.

The weights are those that stage `base` of a run with the same architecture and seed would write. There one process
draws them, about 120 M numbers a second; here each rank draws the tensors of its own shards.
"""

import copy
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from agentworld.data.render import Renderer
from agentworld.data.rows import Prompt, write_prompts
from agentworld.data.schema import Turn
from agentworld.data.tokenizer import PAD, load_tokenizer, train_tokenizer
from agentworld.train import memory
from agentworld.train.architecture import Parameters, count, text_config
from agentworld.train.checkpoint import sha256_json
from agentworld.train.compose import compose, to_yaml
from agentworld.train.config import Config
from agentworld.train.trainers import BYTES_PER_PARAMETER
from bench import layer_speed
from bench.expert_parallel import DOCUMENTS

VOCABULARY = 248320  # transformers/models/qwen3_5_moe/configuration_qwen3_5_moe.py
WORDS = 512  # different tokens in the rows
LAYERS_A_GROUP = 4  # three Gated DeltaNet layers and one of attention


@dataclass(frozen=True)
class Sizes:
    """Tokens of rows, prompts and completions; rows of a micro-batch that are tried, the most first."""

    short_row: int = 4096
    long_row: int = 32768
    prompt: int = 1024
    completion: int = 256
    prompts: int = 8  # of a rollout
    completions: int = 8  # of a prompt
    vocabulary: int = VOCABULARY
    micro_batches: tuple[int, ...] = (32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


TINY = Sizes(128, 256, 160, 8, 2, 4, 700, (2, 1))
TINY_ARCHITECTURE = {"hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}


def recompute(on: bool) -> str:
    """The recipe key of activation checkpointing."""
    return f"model.recompute={'layers' if on else 'none'}"


def overrides(options: Any, layers: int) -> list[str]:
    """The recipe of all cases, but for the stage's own keys; `model.path` is not set."""
    engine = "zero3-offload-cpu" if options.offload else "zero3"
    recipe = ["recipe=smoke", "engine.device=cpu"] if options.tiny else ["recipe=agentworld-35b-a3b"]
    tiny = [f"model.architecture.{key}={value}" for key, value in TINY_ARCHITECTURE.items()] if options.tiny else []
    return [
        *recipe,
        f"engine={engine}",
        f"engine.expert_parallel={options.gpus}",
        f"nproc={options.gpus}",
        "cluster.nodes=1",
        f"cluster.tasks_per_node={options.gpus}",
        f"cluster.gpus_per_node={0 if options.tiny else options.gpus}",
        "wandb.mode=disabled",
        "model.path=''",
        f"model.architecture.num_hidden_layers={layers}",
        f"data.tokenizer_vocab_size={options.sizes.vocabulary}",
        *tiny,
        *options.overrides,
    ]


def parameters_of(config: Config) -> Parameters:
    """Counted on the meta device."""
    return count(text_config(config)[0])


def layers_within(budget: float, bytes_a_parameter: float, most: int, options: Any) -> int:
    """The most layers, a multiple of four up to `most`, whose model fits `budget` bytes; 0 for none."""
    four, eight = (parameters_of(compose(overrides(options, n))).total for n in (LAYERS_A_GROUP, 2 * LAYERS_A_GROUP))
    groups = 1 + int((budget / bytes_a_parameter - four) // (eight - four))
    return max(0, min(most, groups * LAYERS_A_GROUP))


def checkpoint_bytes_a_parameter(options: Any) -> int:
    """Base and export in the dtype of the model, and what a save demands as free (train/trainers.py)."""
    return 2 * (4 if options.tiny else 2) + BYTES_PER_PARAMETER


def planned_peak(config: Config, stage: str) -> int:
    """The peak of one GPU in bytes that `agentworld plan` says of a stage."""
    architecture, _ = text_config(config)
    engine = memory.Engine.of(config.engine)
    return memory.estimate(config, architecture, count(architecture), engine, config.nproc)[stage].peak


def fitting_rows(config: Config, stage: str, rows: Sequence[int], card: int | None) -> int | None:
    """The first number of rows in a micro-batch of a rank that the plan says to fit a card of so many bytes beside the
    headroom; None where none does. Without a card it is the first."""
    config = copy.deepcopy(config)
    for number in rows:
        setattr(getattr(config, stage), "completions_per_device" if stage == "rl" else "rows_per_device", number)
        if card is None or planned_peak(config, stage) <= (1 - memory.HEADROOM) * card:
            return number
    return None


def tokenizer_of(directory: Path, vocabulary: int) -> Path:
    """A byte-level BPE of so many entries at `directory`, made where it is not there. All but a few entries are words
    that no merge reaches: no text becomes one, and every sampled id has a text."""
    if (directory / "tokenizer.json").is_file():
        return directory
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    train_tokenizer(["a few words of an observation " * 8], 300).save_pretrained(temporary)
    path = temporary / "tokenizer.json"
    description = json.loads(path.read_text())
    vocabulary_of = description["model"]["vocab"]
    first = len(vocabulary_of)
    unused = vocabulary - first - len(description["added_tokens"])
    vocabulary_of.update({f"@unused@{number}": first + number for number in range(unused)})
    for token in description["added_tokens"]:
        token["id"] += unused
    path.write_text(json.dumps(description))
    config = json.loads((temporary / "tokenizer_config.json").read_text())
    config.pop("added_tokens_decoder", None)  # the ids before
    (temporary / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_tokenizer(temporary)
    assert len(found) == vocabulary and found.convert_tokens_to_ids(PAD) == first + unused, "ids of the tokenizer"
    temporary.rename(directory)
    return directory


def write_base(config: Config, tokenizer: Path, directory: Path) -> None:
    """Random weights in a Hugging Face directory, without hand-off; collective, each rank draws and writes its own
    shards."""
    from transformers import Qwen3_5MoeForCausalLM

    from agentworld.train import base, export, model

    with torch.device("meta"):
        shapes = Qwen3_5MoeForCausalLM(model.random_config(config.model, load_tokenizer(tokenizer)))
    shapes.to(model.DTYPES[config.model.dtype])
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    entries = [drawn_by_its_writer(entry, rank) for entry in base.random_entries(shapes, config.seed)]
    export.write(entries, shapes.config, directory, "text")


def drawn_by_its_writer(entry: Any, rank: int) -> Any:
    """An entry of an export whose values are made on the rank that writes them only."""
    return replace(entry, fetch=lambda writer: entry.fetch(writer) if writer == rank else None)


def weight_bytes(directory: Path) -> int:
    """Of all safetensors files of a directory."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def leave_page_cache(directory: Path) -> None:
    """Let the kernel forget the content of files that are on the disk, so that the next read is one of the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def write_run(run_dir: Path, config: Config, tokenizer: Path, facts: Mapping[str, Any]) -> None:
    """A run directory as preparation leaves it, but for rows or prompts."""
    (run_dir / "data" / "rows").mkdir(parents=True)
    (run_dir / "data" / "prompts").mkdir()
    (run_dir / "data" / "tokenizer").symlink_to(tokenizer.resolve())
    (run_dir / "data" / "manifest.json").write_text(json.dumps({"sha256": sha256_json(facts)}))
    (run_dir / "recipe.yaml").write_text(to_yaml(config))


def write_rows(path: Path, rows: int, tokens: int, packed: bool, vocabulary: int) -> None:
    """Rows of random tokens, each its own label; packed: of six documents, else of one."""
    draw = torch.Generator().manual_seed(1)
    words = torch.randperm(vocabulary, generator=draw)[:WORDS]
    ids = [words[torch.randint(0, len(words), (tokens,), generator=draw)].tolist() for _ in range(rows)]
    lengths = document_lengths(tokens, packed)
    columns = {"input_ids": ids, "labels": ids, "seq_lengths": [lengths] * rows}
    kind = pa.list_(pa.int32())
    pq.write_table(pa.table({name: pa.array(values, kind) for name, values in columns.items()}), path)


def document_lengths(tokens: int, packed: bool) -> list[int]:
    """Tokens of each document of a row."""
    if not packed:
        return [tokens]
    return layer_speed.document_lengths(tokens, DOCUMENTS)


def write_random_prompts(path: Path, tokenizer: Path, prompts: int, limit: int) -> list[int]:
    """Prompts of random letters, of one past turn and an action, each as long as the limit allows; their lengths."""
    renderer = Renderer(load_tokenizer(tokenizer))
    draw = torch.Generator().manual_seed(2)
    rows = []
    for number in range(prompts):
        letters = bytes(torch.randint(97, 123, (limit,), generator=draw).tolist()).decode()
        turns = [Turn(f"cat {number}.txt", ""), Turn("tail -n 1 notes.txt", letters[:80])]
        room = limit - len(renderer.prompt("A terminal.", turns, 1))
        past = letters
        while renderer.count(past) > room:
            past = past[: len(past) - (renderer.count(past) - room)]
        turns[0] = Turn(turns[0].action, past)
        ids = renderer.prompt("A terminal.", turns, 1)
        rows.append(Prompt(f"random:{number}#1", ids, "terminal", turns[1].action, turns[1].observation, False, ""))
    write_prompts(path, rows)
    return [len(row.ids) for row in rows]
