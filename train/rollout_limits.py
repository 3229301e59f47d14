"""What the rollout engines of RL cannot do, refused before a run begins. Imports no torch."""

import importlib.metadata
import json
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.train.config import Config, RolloutSettings

ENGINES = ("transformers", "vllm_server", "vllm_colocate")
CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
VLLM_VERSIONS = ((0, 22), (0, 31))  # major and minor of TRL's bounds: trl/import_utils.py, is_vllm_available
_SERVER, _COLOCATE = ENGINES[1:]
# The engines that read a key; the others refuse it when it is set.
READ_BY = {
    **dict.fromkeys(("server_base_url", "server_host", "server_port", "server_timeout", "group_port"), (_SERVER,)),
    **dict.fromkeys(
        ("gpu_memory_utilization", "tensor_parallel_size", "max_model_length", "enable_sleep_mode"), (_COLOCATE,)
    ),
    **dict.fromkeys((f"importance_sampling_{key}" for key in ("correction", "mode", "clip_max", "clip_min")),
                    (_SERVER, _COLOCATE)),
}  # fmt: skip


def uses_vllm(settings: RolloutSettings) -> bool:
    """Whether vLLM samples the completions."""
    return settings.engine != "transformers"


def model_length(config: Config) -> int:
    """Tokens of the longest prompt with the longest completion, or `rl.rollout.max_model_length`."""
    return config.rl.rollout.max_model_length or config.data.rl_prompt_tokens + config.rl.max_completion_tokens


def validate_rollout(config: Config) -> None:
    """Refuse rollout settings that contradict each other, the engine or the model.

    Raises:
        RequestError: naming the keys, the reason and the way out.
    """
    rollout, defaults = config.rl.rollout, RolloutSettings()
    for key, engines in READ_BY.items():
        if getattr(rollout, key) != getattr(defaults, key) and rollout.engine not in engines:
            raise RequestError(
                f"rl.rollout.{key} has no effect with rl.rollout.engine={rollout.engine}; it is for "
                f"{' and '.join(engines)}; set rl.rollout.{key}={str(getattr(defaults, key)).lower()}"
            )
    if not uses_vllm(rollout):
        return
    if config.engine.device == "cpu":
        raise RequestError(
            f"rl.rollout.engine={rollout.engine} needs GPUs, and engine.device=cpu; take rl.rollout.engine=transformers"
        )
    _validate_correction(rollout)
    if rollout.engine == _SERVER:
        _validate_server(config)
    else:
        _validate_colocate(config)
    if config.model.dtype == "float32":
        raise RequestError(
            f"rl.rollout.engine={rollout.engine}: vLLM's kernels of Gated DeltaNet take no float32; set "
            "model.dtype=bfloat16 or rl.rollout.engine=transformers"
        )


def _validate_correction(rollout: RolloutSettings) -> None:
    low, high = rollout.importance_sampling_clip_min, rollout.importance_sampling_clip_max
    if 0 < high <= low:
        raise RequestError(f"rl.rollout.importance_sampling_clip_min={low} must be below its clip_max={high}")
    if rollout.importance_sampling_correction and not high and not low:
        raise RequestError(
            "rl.rollout.importance_sampling_clip_max and clip_min are both 0, no bound: a single weight could decide a "
            "step; set clip_max, for example 3.0"
        )


def _validate_server(config: Config) -> None:
    rollout = config.rl.rollout
    if rollout.server_base_url and not rollout.server_base_url.startswith(("http://", "https://")):
        raise RequestError(f"rl.rollout.server_base_url={rollout.server_base_url} must be like http://HOST:8000")
    if config.model.export_layout != "release" and not (config.model.path and is_released(Path(config.model.path))):
        raise RequestError(
            "rl.rollout.engine=vllm_server needs a directory that vLLM can serve, in the released layout: set "
            "model.export_layout=release, so that the export before RL is one, or model.path to a released checkpoint"
        )


def _validate_colocate(config: Config) -> None:
    rollout = config.rl.rollout
    if not 0 < rollout.gpu_memory_utilization < 1:
        raise RequestError(
            f"rl.rollout.gpu_memory_utilization={rollout.gpu_memory_utilization} is a share of a GPU between 0 and 1; "
            "the rest is for training"
        )
    needed = config.data.rl_prompt_tokens + config.rl.max_completion_tokens
    if model_length(config) < needed:
        raise RequestError(
            f"rl.rollout.max_model_length={rollout.max_model_length} is less than data.rl_prompt_tokens="
            f"{config.data.rl_prompt_tokens} + rl.max_completion_tokens={config.rl.max_completion_tokens}; "
            f"set it to 0 or to {needed} at least"
        )


def validate_ranks(rollout: RolloutSettings, nproc: int) -> None:
    """Refuse a number of processes that vLLM's engines do not divide into."""
    if nproc % rollout.tensor_parallel_size:
        raise RequestError(
            f"rl.rollout.tensor_parallel_size={rollout.tensor_parallel_size} does not divide the {nproc} processes of "
            "this run: each vLLM engine takes that many neighbouring ranks"
        )


def require_vllm(rollout: RolloutSettings) -> None:
    """Refuse to begin without the library; a server is asked by its client, which is part of it.

    Raises:
        RequestError: vLLM is not installed, or in a version that TRL does not work with.
    """
    if not uses_vllm(rollout):
        return
    try:
        found = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        raise RequestError(
            f"rl.rollout.engine={rollout.engine} needs vLLM, which is not installed: pip install 'agentworld[vllm]'"
        ) from None
    lowest, highest = VLLM_VERSIONS
    if not lowest <= tuple(map(int, found.split(".")[:2])) <= highest:
        raise RequestError(
            f"rl.rollout.engine={rollout.engine}: vLLM {found} is installed, and TRL works with 0.{lowest[1]} to "
            f"0.{highest[1]}: pip install 'agentworld[vllm]'"
        )


def is_released(directory: Path) -> bool:
    """Whether a Hugging Face directory's config.json is that of the multimodal class, which vLLM accepts."""
    path = directory / "config.json"
    if not path.is_file():
        return False
    try:
        return "text_config" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: cannot be read as JSON ({error})") from error
