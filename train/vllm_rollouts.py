"""Rollouts by vLLM through TRL's own code: its arguments, the directory that vLLM starts from, the weights it is sent.

`trl.generation.vllm_generation.VLLMGeneration` talks to vLLM. Two things in it do not fit this model:

    weights    it walks the parameters under their own names. Under AutoEP those are this rank's experts only, under
               names that vLLM does not know: here it walks the exporter's tensors under the released names.
    start      a colocated engine is built from the trained model's directory. vLLM knows the architecture by its
               multimodal class only: here it gets a directory in the released layout, and loads the text part.

Old log-probabilities are those of the training engine: TRL computes them whenever a rollout is used in several steps,
and with the correction always (trl/trainer/grpo_trainer.py:2642). vLLM's own only weigh the completions.
"""

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from trl.generation import vllm_generation

from agentworld.data.errors import ContentError, RequestError
from agentworld.train import checkpoint, engine, export, model, release
from agentworld.train.config import Config
from agentworld.train.rollout_limits import is_released, model_length, uses_vllm

COPY = "vllm_model"  # of a stage's directory: its parent in the released layout
# vLLM 0.24 loads the multimodal class without its visual tower, compiles no kernel of FlashInfer at first use, and
# keeps the state of Gated DeltaNet in float32 as training does: where config.json names no dtype it would be bfloat16.
OPTIONS = {"language_model_only": True, "gdn_prefill_backend": "triton", "mamba_ssm_cache_dtype": "float32"}


def arguments(config: Config, end_id: int) -> dict[str, Any]:
    """What `GRPOConfig` is told of the rollout engine.

    Args:
        end_id: at which a completion stops. vLLM would find it in the files of the model that it was started from.
    """
    rollout = config.rl.rollout
    if not uses_vllm(rollout):
        return {"generation_kwargs": {"use_cache": True}}  # the trainer turns it off in the model's config
    return {
        "use_vllm": True,
        "vllm_mode": rollout.engine.removeprefix("vllm_"),
        "vllm_server_base_url": rollout.server_base_url or None,
        "vllm_server_host": rollout.server_host,
        "vllm_server_port": rollout.server_port,
        "vllm_server_timeout": rollout.server_timeout,
        "vllm_group_port": rollout.group_port,
        "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization,
        "vllm_tensor_parallel_size": rollout.tensor_parallel_size,
        "vllm_max_model_length": model_length(config),
        "vllm_enable_sleep_mode": rollout.enable_sleep_mode,
        "vllm_importance_sampling_correction": rollout.importance_sampling_correction,
        "vllm_importance_sampling_mode": rollout.importance_sampling_mode,
        "vllm_importance_sampling_clip_max": rollout.importance_sampling_clip_max or None,
        "vllm_importance_sampling_clip_min": rollout.importance_sampling_clip_min or None,
        # No seed: one of a request would give all samples of a prompt the same draws in a colocated engine.
        "generation_kwargs": {"stop_token_ids": [end_id]},
    }


def directory(config: Config, parent: Path, stage_directory: Path, tokenizer: Path) -> Path | None:
    """Where a colocated engine starts from: the stage's parent where that is in the released layout, else a copy of it
    in the stage's directory. Collective; None where vLLM is not colocated."""
    if config.rl.rollout.engine != "vllm_colocate":
        return None
    if is_released(parent):
        return parent
    copy = stage_directory / COPY
    if not copy.exists():
        write_released(parent, copy, tokenizer, config.model.dtype)
    return copy


def write_released(parent: Path, target: Path, tokenizer: Path, dtype: str) -> None:
    """The parent's weights and configuration and the files of a tokenizer as vLLM takes them; whole or absent.
    Collective, one tensor in memory at a time. Visual and MTP tensors are left out: vLLM is told to load none.

    Raises:
        ContentError: the parent holds no safetensors.
    """
    tensors, temporary = release.stored(parent), checkpoint.unfinished(target)
    if not tensors:
        raise ContentError(
            f"{parent}: no safetensors, from which a vLLM could start; take rl.rollout.engine=transformers"
        )
    if engine.rank() == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    export.write(tensors, model.load_config(parent, dtype), temporary, layout="release")
    if engine.rank() == 0:
        for name in checkpoint.TOKENIZER_FILES:
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, temporary / name)
        temporary.rename(target)
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def started_from(source: Path | None) -> Iterator[None]:
    """While TRL builds a colocated engine: from `source`, with `OPTIONS`. TRL offers no argument for either."""
    if source is None:
        yield
        return
    build = vllm_generation.LLM
    vllm_generation.LLM = lambda **options: build(**(options | OPTIONS | {"model": str(source)}))
    try:
        yield
    finally:
        vllm_generation.LLM = build


def check_server(generation: vllm_generation.VLLMGeneration, needed: int) -> None:
    """Refuse a server that would not take the longest prompt with the longest completion, `needed` tokens."""
    if generation.mode == "server" and generation.accelerator.is_main_process:
        longest = generation.vllm_client.get_server_info()["model_config"]["max_model_len"]
        if longest < needed:
            raise RequestError(
                f"the vLLM server takes {longest} tokens, and data.rl_prompt_tokens + rl.max_completion_tokens are "
                f"{needed}: start it with --max-model-len {needed}"
            )


def send_exported_tensors(generation: vllm_generation.VLLMGeneration) -> None:
    """Let TRL's weight sync walk what `export.tensors` gives, under released names, in place of the parameters."""
    generation._iter_named_params = functools.partial(released_tensors, generation.model)


def released_tensors(trained: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Name in the released layout and values of every tensor of the text model; collective, whole on every rank."""
    return ((release.released_name(name), tensor) for name, tensor in export.tensors(trained))
