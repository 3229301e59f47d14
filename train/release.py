"""The released multimodal layout: what vLLM and SGLang load like the checkpoint that the model came from.

Text weights stand under `model.language_model.`, `lm_head` at the top, and config.json names the multimodal class with
our text configuration inside. The visual tower and the MTP layers are not trained here: where a directory in this
layout is at hand they are copied from it, tensor by tensor and bit for bit; else they are left out and the engine is
started for text only (vLLM: `--language-model-only`).
"""

import functools
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import (
    Qwen3_5MoeConfig,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeTextConfig,
)
from transformers.modeling_utils import str_to_torch_dtype

from agentworld.train.shards import INDEX, Entry

TEXT_PREFIX = "model.language_model."
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
# What the text class leaves out when it loads a released checkpoint: the visual tower and MTP.
NOT_TEXT = re.compile("|".join(Qwen3_5MoeForCausalLM._keys_to_ignore_on_load_unexpected))


def entries(text: Sequence[Entry], source: Path | None) -> list[Entry]:
    """Our tensors under their released names, then what is carried from `source` (`source_of`)."""
    return [*(replace(entry, name=released_name(entry.name)) for entry in text), *(_carried(source) if source else ())]


def released_name(name: str) -> str:
    """The name of a text tensor in the released layout; one that has it already keeps it."""
    return name if name.startswith(TEXT_PREFIX) else re.sub(r"^model\.", TEXT_PREFIX, name)


def stored(directory: Path) -> list[Entry]:
    """The text tensors of a Hugging Face directory, under the names that they have there."""
    return [_stored(name, path) for name, path in _files_of(directory).items() if not NOT_TEXT.match(name)]


def source_of(*candidates: Path | None) -> Path | None:
    """The first directory that holds visual or MTP tensors; None when none does."""
    found = (path for path in candidates if path is not None and any(map(NOT_TEXT.match, _files_of(path))))
    return next(found, None)


def configuration(text: Qwen3_5MoeTextConfig, source: Path | None) -> Qwen3_5MoeConfig:
    """config.json of the multimodal class around our text configuration; the rest comes from `source`, or is the
    class's default where no visual tower is carried."""
    inner = {"mamba_ssm_dtype": "float32"} | text.to_dict()  # vLLM's state of Gated DeltaNet; it would take bfloat16
    if source is not None:
        stored = json.loads((source / "config.json").read_text())
        mtp = {key: value for key, value in stored["text_config"].items() if key.startswith("mtp")}
        has_mtp = any(name.startswith("mtp.") for name in _files_of(source))
        stored["text_config"] = inner | (mtp if has_mtp else {})
        config = Qwen3_5MoeConfig.from_dict(stored)
    else:
        vision = {"model_type": "qwen3_5_moe_vision", "out_hidden_size": text.hidden_size}
        config = Qwen3_5MoeConfig(text_config=inner, vision_config=vision)
    config.tie_word_embeddings = text.tie_word_embeddings
    config.architectures = [Qwen3_5MoeForConditionalGeneration.__name__]
    config.dtype = text.dtype
    return config


def copy_processor(source: Path | None, directory: Path) -> None:
    """The files with which an engine prepares images and videos for the carried tower."""
    for name in PROCESSOR_FILES:
        if source is not None and (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def _carried(source: Path) -> Iterator[Entry]:
    return (_stored(name, path) for name, path in _files_of(source).items() if NOT_TEXT.match(name))


def _stored(name: str, path: Path) -> Entry:
    with safe_open(path, "pt") as file:
        part = file.get_slice(name)
        shape, dtype = tuple(part.get_shape()), str_to_torch_dtype[part.get_dtype()]
    return Entry(name, shape, dtype, functools.partial(_read, path, name))


def _read(path: Path, name: str, writer: int) -> torch.Tensor | None:
    if dist.is_initialized() and dist.get_rank() != writer:
        return None
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def _files_of(directory: Path) -> dict[str, Path]:
    """Tensor name -> safetensors file of a Hugging Face directory, with or without an index."""
    index = directory / INDEX
    if index.is_file():
        return {name: directory / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    found: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found
