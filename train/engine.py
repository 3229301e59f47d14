"""The typed engine settings become a DeepSpeed configuration, and a process becomes a rank."""

import os
import warnings
from datetime import timedelta
from typing import Any

from agentworld.data.errors import RequestError
from agentworld.train.config import EngineSettings, ModelSettings
from agentworld.train.engine_limits import READ_WHEN
from agentworld.train.launch import free_port

# How long a rank waits for the others: they may still sample, run verifiers or ask a judge. NCCL's own is 10 minutes.
COLLECTIVE_TIMEOUT = timedelta(hours=1)
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # DeepSpeed's names
ZERO_KEYS = (
    "reduce_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "allgather_bucket_size",
    "round_robin_gradients",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
)
EXPERT_KEYS = ("use_grouped_mm", "gate_up_impl", "combine_impl", "async_split_plan")


def deepspeed_config(engine: EngineSettings, model: ModelSettings) -> dict[str, Any]:
    """The DeepSpeed JSON of a stage; "auto" values are filled by the trainer from its arguments.

    The optimizer stands here and not in the trainer because AutoEP marks its parameter groups only then
    (deepspeed/runtime/engine.py:2328). `torch_adam` is torch's AdamW, on the CPU where the optimizer is offloaded:
    nothing is compiled.
    """
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": _zero_section(engine),
        "optimizer": {
            "type": "AdamW",
            "params": {
                **dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
                "torch_adam": not engine.compiled_adam,
            },
        },
        "bf16": {"enabled": model.dtype == "bfloat16"},
        "steps_per_print": 2**31,
    }
    if engine.communication_data_type != "auto":
        config["communication_data_type"] = DTYPES[engine.communication_data_type]
    if engine.grad_accum_dtype != "auto":
        config["data_types"] = {"grad_accum_dtype": DTYPES[engine.grad_accum_dtype]}
    if engine.expert_parallel > 1:
        config["expert_parallel"] = {
            "enabled": True,
            "autoep_size": engine.expert_parallel,
            **{key: getattr(engine, key) for key in EXPERT_KEYS},
        }
    return config


def inference_settings(engine: EngineSettings) -> EngineSettings:
    """The engine of a recipe as it divides a model that is not trained: ZeRO-3, and the experts as in training."""
    kept = {key: getattr(engine, key) for key in ("device", "expert_parallel", *EXPERT_KEYS)}
    if engine.zero_stage == 3:
        kept |= {key: getattr(engine, key) for key in ("stage3_max_live_parameters", "stage3_max_reuse_distance")}
    return EngineSettings(zero_stage=3, **kept)


def inference_config(engine: EngineSettings, model: ModelSettings) -> dict[str, Any]:
    """The DeepSpeed JSON of a model that is not trained: no optimizer, and numbers where a trainer would fill in."""
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    left_out = ("optimizer", "gradient_clipping", "train_batch_size")
    training = deepspeed_config(inference_settings(engine), model)
    return {key: value for key, value in training.items() if key not in left_out} | batch


def _zero_section(engine: EngineSettings) -> dict[str, Any]:
    """ZeRO-3 never gathers 16-bit weights on a save: `export` writes them one parameter at a time."""
    section: dict[str, Any] = {"stage": engine.zero_stage}
    for key in ZERO_KEYS:
        if key not in READ_WHEN or READ_WHEN[key][1](engine):
            section[key] = getattr(engine, key)
    for key in ("offload_optimizer", "offload_param"):
        if getattr(engine, key) != "none":
            section[key] = {"device": getattr(engine, key), "pin_memory": engine.pin_memory}
    if engine.zero_stage == 3:
        section["stage3_gather_16bit_weights_on_model_save"] = False
    return section


def start_rank(engine: EngineSettings) -> None:
    """Join the process group: gloo on a CPU, NCCL on a GPU. A lone process becomes rank 0 of 1.

    RANK, WORLD_SIZE, LOCAL_RANK and MASTER_* come from the launcher or from SLURM; without them DeepSpeed would look
    for MPI (deepspeed/comm/comm.py, mpi_discovery), so all five are set here for a single process.
    """
    defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    on_cpu = uses_cpu(engine)
    if on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    from agentworld.train import compat

    compat.apply()
    # DeepSpeed calls collectives by names that torch has renamed, several times a step: each would print two lines.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    if not on_cpu:  # NCCL would guess the device, and warn at every barrier
        import torch

        torch.cuda.set_device(device(engine))
        torch.distributed.init_process_group("nccl", device_id=device(engine), timeout=COLLECTIVE_TIMEOUT)
    deepspeed.init_distributed("gloo" if on_cpu else "nccl", verbose=False, timeout=COLLECTIVE_TIMEOUT)


def device(engine: EngineSettings) -> Any:
    """The `torch.device` on which this rank computes: the CPU, or the GPU of its number on this node."""
    import torch

    return torch.device("cpu") if uses_cpu(engine) else torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def uses_cpu(engine: EngineSettings) -> bool:
    """Whether this run computes on the CPU."""
    import torch

    return engine.device == "cpu" or not torch.cuda.is_available()


def require_expert_parallel(model: Any, degree: int) -> None:
    """Refuse to go on with experts that are not divided as asked: DeepSpeed trains a model in which it recognises no
    MoE block without a word.

    Raises:
        RequestError: some layers hold no block of AutoEP, or blocks of another degree.
    """
    if degree == 1:
        return
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer

    degrees = [module.ep_size for module in model.modules() if isinstance(module, AutoEPMoELayer)]
    if degrees != [degree] * model.config.num_hidden_layers:
        raise RequestError(
            f"engine.expert_parallel={degree}: DeepSpeed has divided the experts of {degrees.count(degree)} of "
            f"{model.config.num_hidden_layers} layers; this model needs engine.expert_parallel=1"
        )


def rank() -> int:
    """This process's rank over all nodes."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of processes of the run over all nodes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leave() -> None:
    """Leave the process group together, so that no rank waits for one that has gone."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def largest(number: int) -> int:
    """The largest of a number over all ranks; collective."""
    return _over_ranks(number, "MAX")


def total(number: int) -> int:
    """The sum of a number over all ranks; collective."""
    return _over_ranks(number, "SUM")


def _over_ranks(number: int, operation: str) -> int:
    import torch
    import torch.distributed as dist

    if world_size() == 1:
        return number
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    value = torch.tensor([number], device=device)
    dist.all_reduce(value, op=getattr(dist.ReduceOp, operation))
    return int(value.item())
