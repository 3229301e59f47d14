"""Load a base model or a hand-off, and build the tiny model of the same architecture."""

import copy
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet, Qwen3_5MoeTopKRouter

from agentworld.data.errors import ContentError
from agentworld.train.config import ArchitectureSettings, ModelSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random_config(settings: ModelSettings, tokenizer: PreTrainedTokenizerFast) -> Qwen3_5MoeTextConfig:
    """The configuration of a model with random weights, sized for the tokenizer."""
    return Qwen3_5MoeTextConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        architectures=[Qwen3_5MoeForCausalLM.__name__],
        dtype=DTYPES[settings.dtype],
        **architecture_fields(settings.architecture),
    )


def build(settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3_5MoeForCausalLM:
    """A `Qwen3_5MoeForCausalLM` with random weights in memory: those of `random_modules`."""
    built = Qwen3_5MoeForCausalLM(random_config(settings, tokenizer)).to(DTYPES[settings.dtype])
    modules = dict(built.named_modules())
    with torch.no_grad():
        for prefix, tensors in random_modules(built, seed):
            for name, tensor in tensors.items():
                modules[prefix].get_parameter(name).copy_(tensor)
    return built


def random_modules(model: Qwen3_5MoeForCausalLM, seed: int) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """(module name, its own parameters) with fresh random values, one module in memory at a time.

    `model` may stand on the meta device. The values are those of the class's own initialisation, drawn in float32 from
    a seed made of `seed` and the module's name: equal for equal seeds, whatever else is drawn and in whatever order.
    """
    drawn: set[torch.nn.Parameter] = set()
    for name, module in model.named_modules():
        own = set(module.parameters(recurse=False)) - drawn  # tied embeddings: drawn with the module that comes first
        drawn |= own
        if own:
            yield name, random_parameters(model, name, module, seed)


@torch.no_grad()
def random_parameters(
    model: Qwen3_5MoeForCausalLM, name: str, module: torch.nn.Module, seed: int
) -> dict[str, torch.Tensor]:
    """Fresh values of the parameters that `module`, called `name` in `model`, holds itself, in its dtype."""
    dtypes = {key: parameter.dtype for key, parameter in module.named_parameters(recurse=False)}
    fresh = copy.copy(module)  # its own dictionary of parameters, the same submodules
    fresh._parameters = {  # a layer without bias has one that is None
        key: None if parameter is None else torch.nn.Parameter(torch.zeros(parameter.shape, dtype=torch.float32))
        for key, parameter in module._parameters.items()
    }
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big"))
    model._init_weights(fresh)
    if isinstance(module, Qwen3_5MoeTopKRouter):  # the class draws it with the block that holds the router
        fresh.weight.normal_(0.0, model.config.initializer_range)
    if isinstance(module, Qwen3_5MoeGatedDeltaNet):
        spread_time_steps(fresh)
    return {key: parameter.detach().to(dtypes[key]) for key, parameter in fresh.named_parameters(recurse=False)}


@torch.no_grad()
def spread_time_steps(layer: Qwen3_5MoeGatedDeltaNet) -> None:
    """Give the heads of a fresh Gated DeltaNet layer memories from a few to about a thousand tokens.

    The class starts with a time step of softplus(1) = 1.3, made to be overwritten by a checkpoint: at a decay rate of 8
    a head keeps exp(-10) of its state from one token to the next. Trained from scratch, steps are drawn log-uniformly
    from [0.001, 0.1] as in Mamba (arXiv:2312.00752 section 3.6), which Gated DeltaNet keeps (arXiv:2412.06464).
    """
    step = torch.empty_like(layer.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
    layer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus


def architecture_fields(settings: ArchitectureSettings) -> dict[str, Any]:
    """The text-config fields of an architecture; half of each head rotates, split over the three axes of M-RoPE."""
    fields = vars(settings).copy()
    pairs = settings.head_dim // 4  # rotary_dim / 2 at a partial rotary factor of 0.5
    third = pairs // 3
    fields["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [pairs - 2 * third, third, third],
        "mrope_interleaved": True,
    }
    return fields


def load_config(path: Path, dtype: str) -> Qwen3_5MoeTextConfig:
    """The text configuration of a directory, for an export.

    Never the one of a model that has been trained: trainers set `use_cache` off and `output_router_logits` on in it,
    and an export that kept them would generate without a cache, or fail with one.
    """
    config = Qwen3_5MoeTextConfig.from_pretrained(str(path))
    for key in [key for key in vars(config) if key.startswith("mtp")]:
        delattr(config, key)  # the text model has no multi-token prediction
    config.architectures = [Qwen3_5MoeForCausalLM.__name__]
    config.dtype = DTYPES[dtype]
    return config


def load(path: Path, dtype: str, device: torch.device | None = None) -> Qwen3_5MoeForCausalLM:
    """Load the text model of a Hugging Face directory in `dtype`, in the text or the released layout.

    With `device` each tensor goes straight there, so that the ranks of a node do not fill its memory with whole models.

    The visual tower and MTP tensors of a released checkpoint are left out by the class itself
    (transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py:1843). Where `TrainingArguments` with ZeRO-3 are alive,
    the parameters arrive partitioned: the first rank reads the files through the page cache, one parameter is whole at
    a time, and the others hold their parts only (transformers/integrations/deepspeed.py).

    Raises:
        ContentError: tensors are missing or unknown, so the model would not be the one that was saved.
    """
    model, info = Qwen3_5MoeForCausalLM.from_pretrained(
        str(path),
        dtype=DTYPES[dtype],
        output_loading_info=True,
        attn_implementation="sdpa",
        device_map=None if device is None else {"": device},
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            names = sorted(map(str, info[kind]))
            raise ContentError(
                f"{path}: {len(names)} {kind.replace('_', ' ')}, first {names[0]}: not a text model of this class"
            )
    return model
