"""From a live DeepSpeed engine to Hugging Face safetensors, or to a sampler, one parameter in memory at a time.

Works for every ZeRO stage, with and without AutoEP; the layout is the fused one that `from_pretrained` of the text
class reads (experts as `gate_up_proj` [E, 2 f, h] and `down_proj` [E, h, f]). `train/release.py` renames it.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
from torch import nn
from transformers import GenerationConfig, Qwen3_5MoeTextConfig

from agentworld.train import checkpoint, release, shards
from agentworld.train.shards import Digest, Entry

# AutoEP's names for what stands once in a layer, and the model's own.
RENAMED = (
    ("mlp.router.gate.weight", "mlp.gate.weight"),
    ("mlp.shared_experts.", "mlp.shared_expert."),
    ("mlp.shared_experts_gate.", "mlp.shared_expert_gate."),
)


def write_safetensors(
    model: nn.Module,
    config: Qwen3_5MoeTextConfig,
    directory: Path,
    layout: str = "text",
    source: Path | None = None,
    shard_bytes: int = shards.SHARD_BYTES,
) -> dict[str, Digest]:
    """Write a live model into `directory` (`write`); collective, and every rank writes its share of the shards."""
    return write(list(entries(model)), config, directory, layout, source, shard_bytes)


def write(
    text: Sequence[Entry],
    config: Qwen3_5MoeTextConfig,
    directory: Path,
    layout: str,
    source: Path | None = None,
    shard_bytes: int = shards.SHARD_BYTES,
) -> dict[str, Digest]:
    """Write shards, the index, config.json and generation_config.json; collective.

    Args:
        text: the tensors of the text model under the names of its class.
        layout: "text" or "release" (`train/release.py`).
        source: directory in the released layout whose visual and MTP tensors are carried over; of no use to "text".

    Returns:
        Size and SHA-256 of each shard, taken while it was written.
    """
    assert layout in ("text", "release"), layout
    released = layout == "release"
    tensors = release.entries(text, source) if released else text
    if _rank() == 0:
        checkpoint.require_disk(directory, shards.total_bytes(tensors), "an export")
    digests = shards.write(tensors, directory, shard_bytes)
    if _rank() == 0:
        (release.configuration(config, source) if released else config).save_pretrained(directory)
        GenerationConfig.from_model_config(config).save_pretrained(directory)
        if released:
            release.copy_processor(source, directory)
    return digests


def entries(model: nn.Module) -> Iterator[Entry]:
    """One entry for each Hugging Face tensor of a live model, in the order of its parameters; equal on every rank."""
    for name, layer, parameters in _walk(model):
        if layer is None:
            fetch = functools.partial(_replicated, parameters[0])
            yield Entry(name, _shape(parameters[0]), parameters[0].dtype, fetch)
        else:
            yield _expert_entry(name, layer, parameters)


@torch.no_grad()
def tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and values of each entry, on the device of the model and whole on every rank, one at a time.

    Collective: every rank takes them all. A tensor that ZeRO-3 gathered is let go of when the next one is asked for:
    whoever still holds it keeps its values, and its memory.
    """
    for name, layer, parameters in _walk(model):
        if layer is None:
            with _whole(parameters[0]):
                yield name, parameters[0].detach()
        else:
            yield name, torch.cat([_experts_of_all_ranks(layer, parameter) for parameter in parameters], dim=1)


def _walk(model: nn.Module) -> Iterator[tuple[str, AutoEPMoELayer | None, list[nn.Parameter]]]:
    """The Hugging Face name of each tensor, and the parameters that it is made of: one, or with the layer of AutoEP
    those of its experts on this rank, to be put side by side."""
    expert_layers = {name: module for name, module in model.named_modules() if isinstance(module, AutoEPMoELayer)}
    for name, parameter in model.named_parameters():
        layer = next((layer for prefix, layer in expert_layers.items() if name.startswith(f"{prefix}.experts.")), None)
        if layer is None:
            if ".mlp.gate.gate." not in name:  # AutoEP's alias of the router weight
                yield _hugging_face_name(name), None, [parameter]
        elif name.endswith("experts.w1"):
            prefix = name.removesuffix("w1")
            yield f"{prefix}gate_up_proj", layer, [layer.experts.w1, layer.experts.w3]
            yield f"{prefix}down_proj", layer, [layer.experts.w2]


def _expert_entry(name: str, layer: AutoEPMoELayer, parameters: list[nn.Parameter]) -> Entry:
    """Experts of all ranks of the expert-parallel group, the parameters side by side: [E, len(parameters) * f, h]."""
    local, rows, columns = _shape(parameters[0])
    shape = (local * layer.ep_size, len(parameters) * rows, columns)
    return Entry(name, shape, parameters[0].dtype, functools.partial(_all_experts, layer, parameters, shape))


def _hugging_face_name(name: str) -> str:
    for ours, theirs in RENAMED:
        name = name.replace(ours, theirs)
    return name


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _whole(parameter: nn.Parameter):
    """A context in which a parameter that ZeRO-3 has partitioned is whole; collective over its partition group."""
    return deepspeed.zero.GatheredParameters([parameter]) if hasattr(parameter, "ds_id") else nullcontext()


@torch.no_grad()
def _replicated(parameter: nn.Parameter, writer: int) -> torch.Tensor | None:
    with _whole(parameter):
        return _on_cpu(parameter) if _rank() == writer else None


def _on_cpu(parameter: nn.Parameter) -> torch.Tensor:
    """A copy only where the values would otherwise vanish: ZeRO-3 frees them, and a GPU is not the CPU."""
    values = parameter.detach()
    return values.clone() if values.device.type == "cpu" and hasattr(parameter, "ds_id") else values.cpu()


@torch.no_grad()
def _all_experts(
    layer: AutoEPMoELayer, parameters: list[nn.Parameter], shape: tuple[int, ...], writer: int
) -> torch.Tensor | None:
    """Experts go to the writer only, one rank's part at a time; groups without the writer hold replicas and send
    nothing."""
    rank, group = _rank(), layer.ep_group
    members = dist.get_process_group_ranks(group) if layer.ep_size > 1 else [rank]
    whole = torch.empty(shape, dtype=parameters[0].dtype) if rank == writer else None
    for column, parameter in enumerate(parameters):
        with _whole(parameter):
            local = parameter.detach().contiguous()
            count, rows = local.shape[:2]
            for place, member in enumerate(members if writer in members else []):
                part = local
                if rank == writer and member != writer:
                    part = torch.empty_like(local)
                    dist.recv(part, src=member, group=group)
                elif rank == member != writer:
                    dist.send(local, dst=writer, group=group)
                if whole is not None:
                    whole[place * count : (place + 1) * count, column * rows : (column + 1) * rows].copy_(part)
    return whole


def _experts_of_all_ranks(layer: AutoEPMoELayer, parameter: nn.Parameter) -> torch.Tensor:
    """[E, f, h] on every rank of the expert-parallel group, from [E / degree, f, h] on each."""
    with _whole(parameter):
        local = parameter.detach().contiguous()
        if layer.ep_size == 1:
            return local.clone() if hasattr(parameter, "ds_id") else local
        whole = torch.empty((layer.ep_size * local.shape[0], *local.shape[1:]), dtype=local.dtype, device=local.device)
        dist.all_gather_into_tensor(whole, local, group=layer.ep_group)
        return whole


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
