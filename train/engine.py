"""The typed engine settings become a DeepSpeed configuration, and a process becomes a rank."""

import os
from typing import Any

from agentworld.train.config import EngineSettings, ModelSettings
from agentworld.train.launch import free_port


def deepspeed_config(engine: EngineSettings, model: ModelSettings) -> dict[str, Any]:
    """The DeepSpeed JSON of a stage; "auto" values are filled by the trainer from its arguments.

    The optimizer stands here and not in the trainer because AutoEP marks its parameter groups only then
    (deepspeed/runtime/engine.py:2328); `torch_adam` spares the compilation of a fused kernel. ZeRO-3 never gathers
    16-bit weights on a save: `checkpoint.export` writes them one parameter at a time.
    """
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": engine.zero_stage},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True},
        },
        "bf16": {"enabled": model.dtype == "bfloat16"},
        "steps_per_print": 2**31,
    }
    if engine.zero_stage == 3:
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
    if engine.expert_parallel > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": engine.expert_parallel}
    return config


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
    if not on_cpu:  # NCCL would guess the device, and warn at every barrier
        import torch

        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl", device_id=device)
    deepspeed.init_distributed("gloo" if on_cpu else "nccl", verbose=False)


def uses_cpu(engine: EngineSettings) -> bool:
    """Whether this run computes on the CPU."""
    import torch

    return engine.device == "cpu" or not torch.cuda.is_available()


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
    import torch
    import torch.distributed as dist

    if world_size() == 1:
        return number
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    value = torch.tensor([number], device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value.item())
