"""What DeepSpeed cannot do, or would silently ignore, refused before anything starts. Imports no torch.

DeepSpeed says nothing about a key that it does not read (AutoEP's parser: deepspeed/module_inject/auto_ep_config.py:42)
and finds some contradictions only when the model is built. Which key is read under which condition stands in
`READ_WHEN`; `engine.deepspeed_config` renders by the same table.
"""

import json
from collections.abc import Callable
from pathlib import Path

from agentworld.data.errors import RequestError
from agentworld.train.config import Config, EngineSettings

# What users of DeepSpeed or transformers may look for, and why it is no key here.
LEFT_OUT = {
    "engine.sequence_parallel": "expert parallelism under ZeRO-3 does not support sequence parallelism",
    "engine.tensor_parallel": "under ZeRO 1 and 2 with expert parallelism it clips by a wrong gradient norm",
    "engine.expert_tensor_parallel": "DeepSpeed reserves it and takes only 1",
    "engine.load_balance_coeff": "DeepSpeed takes only null; the balance loss is cpt.router_aux_loss_coef",
    "engine.zero_quantized_gradients": "expert parallelism under ZeRO-3 does not support it",
    "engine.zero_hpz_partition_size": "expert parallelism under ZeRO-3 does not support it",
    "engine.gradient_clipping": "it is cpt.max_grad_norm, sft.max_grad_norm and rl.max_grad_norm",
    "engine.activation_checkpointing": "it is model.recompute",
    "model.gradient_checkpointing": "it is model.recompute: true is layers, false is none",
    "engine.optimizer": "it is AdamW, set up by DeepSpeed: with expert parallelism a trainer's own optimizer fails",
}

Condition = tuple[str, Callable[[EngineSettings], bool]]
STAGE_3: Condition = ("engine.zero_stage=3", lambda engine: engine.zero_stage == 3)
STAGE_1_2: Condition = ("engine.zero_stage=1 or 2", lambda engine: engine.zero_stage < 3)
OFFLOAD: Condition = (
    "engine.offload_optimizer=cpu or engine.offload_param=cpu",
    lambda engine: "cpu" in (engine.offload_optimizer, engine.offload_param),
)
EXPERTS: Condition = ("engine.expert_parallel of 2 or more", lambda engine: engine.expert_parallel > 1)
READ_WHEN: dict[str, Condition] = {
    "allgather_bucket_size": STAGE_1_2,
    "round_robin_gradients": STAGE_1_2,
    "stage3_prefetch_bucket_size": STAGE_3,
    "stage3_param_persistence_threshold": STAGE_3,
    "stage3_max_live_parameters": STAGE_3,
    "stage3_max_reuse_distance": STAGE_3,
    "sub_group_size": STAGE_3,
    "offload_param": STAGE_3,
    "pin_memory": OFFLOAD,
    "use_grouped_mm": EXPERTS,
    "gate_up_impl": EXPERTS,
    "combine_impl": EXPERTS,
    "async_split_plan": EXPERTS,
}


def validate_engine(config: Config) -> None:
    """Refuse engine settings that contradict each other, the model, or what DeepSpeed can do.

    Raises:
        RequestError: naming the keys, the reason and the way out.
    """
    engine, defaults = config.engine, EngineSettings()
    for key, (condition, holds) in READ_WHEN.items():
        value = getattr(engine, key)
        if value != getattr(defaults, key) and not holds(engine):
            raise RequestError(f"engine.{key}={_written(value)} has no effect without {condition}; leave it out")
    if engine.gate_up_impl == "fused" and not engine.use_grouped_mm:
        raise RequestError("engine.gate_up_impl=fused is a grouped product: it needs engine.use_grouped_mm=true")
    if engine.device == "cpu":
        if engine.combine_impl == "fused_weighted_sum":
            raise RequestError("engine.combine_impl=fused_weighted_sum is a Triton kernel: it needs a GPU")
        if engine.async_split_plan:
            raise RequestError("engine.async_split_plan=true copies beside a CUDA stream: it needs a GPU")
    if engine.communication_data_type == "bfloat16" and config.model.dtype == "float32":
        raise RequestError(
            "engine.communication_data_type=bfloat16 rounds the gradients of model.dtype=float32; leave it at auto"
        )
    degree, (experts, where) = engine.expert_parallel, number_of_experts(config)
    if experts % degree:
        raise RequestError(f"engine.expert_parallel={degree} does not divide {where}={experts}")


def number_of_experts(config: Config) -> tuple[int, str]:
    """Experts of a layer of the model that is trained, and where the number stands: in the config.json of `model.path`,
    which may be a released multimodal one, or in the architecture where that file is not there (yet)."""
    path = Path(config.model.path) / "config.json"
    if config.model.path and path.is_file():
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: cannot be read as JSON ({error})") from error
        text = fields.get("text_config") or fields
        if isinstance(text.get("num_experts"), int):
            return text["num_experts"], f"num_experts of {path}"
    return config.model.architecture.num_experts, "model.architecture.num_experts"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
