"""The text model of a configuration without its weights: its sizes, and its parameters by part.

`model.path` with a `config.json` decides; else the recipe's `model.architecture`. The class of transformers is built on
the meta device, which allocates nothing, so that counts are those of the model that would be trained.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from agentworld.data.errors import RequestError
from agentworld.train.config import Config
from agentworld.train.model import architecture_fields

PARTS = ("embedding", "attention", "gated_deltanet", "router", "experts", "shared_expert", "norms", "head")
_MARKS = {  # the part of a parameter is the first whose mark stands in its name
    "embedding": ("embed_tokens",),
    "attention": (".self_attn.",),
    "gated_deltanet": (".linear_attn.",),
    "router": (".mlp.gate.",),
    "experts": (".mlp.experts.",),
    "shared_expert": (".mlp.shared_expert",),
    "norms": ("norm.weight",),
    "head": ("lm_head",),
}


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters. Tied embeddings are one tensor and are counted once, as embedding."""

    parts: dict[str, int]
    layers: tuple[int, ...]  # of each decoder layer without its routed experts
    layer_experts: int  # routed experts of one layer
    experts: int
    experts_per_token: int

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """What one token uses: everything, embedding and head included, with top-k of the routed experts."""
        return self.total - self.parts["experts"] * (self.experts - self.experts_per_token) // self.experts

    @property
    def multiplied(self) -> int:
        """Active parameters that stand in a matrix product: the head does, the look-up of the embedding does not."""
        return self.active - (self.parts["embedding"] if self.parts["head"] else 0)


def text_config(config: Config) -> tuple[Qwen3_5MoeTextConfig, str]:
    """The architecture of a run, and in words where it was read.

    A `model.path` without config.json falls back to the recipe's sizes with the vocabulary of the released tokenizer
    (transformers/models/qwen3_5_moe/configuration_qwen3_5_moe.py: 248,320): `plan` then reports the missing path.

    Raises:
        RequestError: config.json is not JSON, or of another architecture.
    """
    path = Path(config.model.path) / "config.json"
    if config.model.path and path.is_file():
        return _from_directory(path), str(path)
    fields = architecture_fields(config.model.architecture)
    if config.model.path:
        return Qwen3_5MoeTextConfig(**fields), "the recipe's model.architecture, vocabulary of the released tokenizer"
    return Qwen3_5MoeTextConfig(
        vocab_size=config.data.tokenizer_vocab_size, **fields
    ), "the recipe's model.architecture"


def _from_directory(path: Path) -> Qwen3_5MoeTextConfig:
    try:
        fields = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: not JSON ({error}); copy the model again") from None
    text = fields.get("text_config", fields)
    if text.get("model_type") not in ("qwen3_5_moe_text", "qwen3_5_moe"):
        raise RequestError(f"{path}: model_type {text.get('model_type')} is not qwen3_5_moe_text; choose another model")
    return Qwen3_5MoeTextConfig.from_dict(text)


def count(architecture: Qwen3_5MoeTextConfig) -> Parameters:
    """Parameters of `Qwen3_5MoeForCausalLM`, counted on the meta device."""
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(architecture)
    parts = dict.fromkeys(PARTS, 0)
    layers = [0] * architecture.num_hidden_layers
    for name, parameter in model.named_parameters():
        part = next(part for part, marks in _MARKS.items() if any(mark in name for mark in marks))
        parts[part] += parameter.numel()
        if name.startswith("model.layers.") and part != "experts":
            layers[int(name.split(".")[2])] += parameter.numel()
    return Parameters(
        parts,
        tuple(layers),
        parts["experts"] // architecture.num_hidden_layers,
        architecture.num_experts,
        architecture.num_experts_per_tok,
    )
