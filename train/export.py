"""From a live DeepSpeed engine to Hugging Face safetensors, one parameter in memory at a time.

Works for every ZeRO stage, with and without AutoEP; the layout is the fused one that `from_pretrained` of the text
class reads (experts as `gate_up_proj` [E, 2 f, h] and `down_proj` [E, h, f]).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import deepspeed
import deepspeed.comm as dist
import torch
from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
from safetensors.torch import save_file
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig

SHARD_BYTES = 4 << 30
# AutoEP's names for what stands once in a layer, and the model's own.
RENAMED = (
    ("mlp.router.gate.weight", "mlp.gate.weight"),
    ("mlp.shared_experts.", "mlp.shared_expert."),
    ("mlp.shared_experts_gate.", "mlp.shared_expert_gate."),
)


def full_parameters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (Hugging Face name, whole tensor on the CPU) for each parameter; collective: every rank must iterate."""
    expert_layers = {name: module for name, module in model.named_modules() if isinstance(module, AutoEPMoELayer)}
    for name, parameter in model.named_parameters():
        layer = next((layer for prefix, layer in expert_layers.items() if name.startswith(f"{prefix}.experts.")), None)
        if layer is None:
            if ".mlp.gate.gate." not in name:  # AutoEP's alias of the router weight
                yield _hugging_face_name(name), _gathered(parameter)
        elif name.endswith("experts.w1"):
            prefix = name.removesuffix("w1")
            gate, up = _all_experts(layer, layer.experts.w1), _all_experts(layer, layer.experts.w3)
            yield f"{prefix}gate_up_proj", torch.cat([gate, up], dim=1)
            del gate, up
            yield f"{prefix}down_proj", _all_experts(layer, layer.experts.w2)


def write_safetensors(model: nn.Module, config: PreTrainedConfig, directory: Path | None) -> None:
    """Write shards, the index and `config` into `directory`; ranks that do not write pass None and still take
    part.
    """
    shard: dict[str, torch.Tensor] = {}
    weight_map: dict[str, str] = {}
    total = shard_bytes = files = 0
    for name, tensor in full_parameters(model):
        if directory is None:
            continue
        tensor_bytes = tensor.numel() * tensor.element_size()
        if shard and shard_bytes + tensor_bytes > SHARD_BYTES:
            weight_map |= _write_shard(directory, files, shard)
            shard, shard_bytes, files = {}, 0, files + 1
        shard[name] = tensor.contiguous()
        shard_bytes += tensor_bytes
        total += tensor_bytes
    if directory is None:
        return
    weight_map |= _write_shard(directory, files, shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    config.save_pretrained(directory)
    GenerationConfig.from_model_config(config).save_pretrained(directory)


def _write_shard(directory: Path, number: int, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    path = directory / f"model-{number + 1:05d}.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    return dict.fromkeys(tensors, path.name)


def _hugging_face_name(name: str) -> str:
    for ours, theirs in RENAMED:
        name = name.replace(ours, theirs)
    return name


def _gathered(parameter: nn.Parameter) -> torch.Tensor:
    if hasattr(parameter, "ds_id"):  # partitioned by ZeRO-3
        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()
    return parameter.detach().cpu().clone()


def _all_experts(layer: AutoEPMoELayer, parameter: nn.Parameter) -> torch.Tensor:
    """[experts / ep, ...] on each rank of the expert-parallel group to [experts, ...], in rank order."""
    local = _gathered(parameter).contiguous()
    if layer.ep_size == 1:
        return local
    device = layer.experts.w1.device
    parts = [torch.empty_like(local, device=device) for _ in range(layer.ep_size)]
    dist.all_gather(parts, local.to(device), group=layer.ep_group)
    return torch.cat([part.cpu() for part in parts])
