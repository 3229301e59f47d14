"""Load a base model or a hand-off, and build the tiny model of the same architecture."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet

from agentworld.data.errors import ContentError
from agentworld.train.config import ArchitectureSettings, ModelSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3_5MoeForCausalLM:
    """A `Qwen3_5MoeForCausalLM` with random weights, equal for equal seeds, sized for the tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3_5MoeTextConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        architectures=[Qwen3_5MoeForCausalLM.__name__],
        dtype=DTYPES[settings.dtype],
        **architecture_fields(settings.architecture),
    )
    built = Qwen3_5MoeForCausalLM(config)
    for module in built.modules():
        if isinstance(module, Qwen3_5MoeGatedDeltaNet):
            spread_time_steps(module)
    return built.to(DTYPES[settings.dtype])


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
    config.architectures = [Qwen3_5MoeForCausalLM.__name__]
    config.dtype = DTYPES[dtype]
    return config


def load(path: Path, dtype: str) -> Qwen3_5MoeForCausalLM:
    """Load the text model of a Hugging Face directory in `dtype`.

    The visual tower and MTP tensors of a released checkpoint are left out by the class itself
    (transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py:1843).

    Raises:
        ContentError: tensors are missing or unknown, so the model would not be the one that was saved.
    """
    model, info = Qwen3_5MoeForCausalLM.from_pretrained(
        str(path), dtype=DTYPES[dtype], output_loading_info=True, attn_implementation="sdpa"
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            names = sorted(map(str, info[kind]))
            raise ContentError(
                f"{path}: {len(names)} {kind.replace('_', ' ')}, first {names[0]}: not a text model of this class"
            )
    return model
