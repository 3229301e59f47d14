"""Whether a vLLM in the same process fits a card beside training: an estimate from formulas; no torch."""

from transformers import Qwen3_5MoeTextConfig

from agentworld.train.architecture import Parameters
from agentworld.train.config import Config
from agentworld.train.memory import CARDS, HEADROOM, Memory
from agentworld.train.rollout_limits import model_length


def reason_against(
    config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, used: Memory, card: str
) -> str:
    """Why `rl.rollout.engine=vllm_colocate` does not work on a card, with the way out; "" where it does.

    Args:
        used: the memory of RL's training on a GPU.
    """
    share = int(config.rl.rollout.gpu_memory_utilization * CARDS[card])
    held = needed(config, architecture, parameters)
    if held > share:
        return (
            f"vLLM needs {held / 2**30:.1f} GiB a GPU for its weights and one sequence, and has {share / 2**30:.1f}; "
            "raise rl.rollout.gpu_memory_utilization or rl.rollout.tensor_parallel_size"
        )
    # Asleep it gives its share back, but it is awake beside what training keeps between two steps.
    kept = sum(used.parts[part] for part in ("weights", "gradients", "optimizer"))
    together = (kept if config.rl.rollout.enable_sleep_mode else used.peak) + share
    if together > CARDS[card] * (1 - HEADROOM):
        return (
            f"training's {(together - share) / 2**30:.1f} GiB a GPU and vLLM's share of {share / 2**30:.1f} are more "
            "than the card; lower rl.rollout.gpu_memory_utilization, or take more GPUs"
        )
    return ""


def needed(config: Config, architecture: Qwen3_5MoeTextConfig, parameters: Parameters) -> int:
    """Bytes of a vLLM engine on one of its GPUs at least: its part of the weights, and the cache of one sequence of the
    longest length (keys and values of the attention layers, the states of the others)."""
    c, element = architecture, 2 if config.model.dtype == "bfloat16" else 4
    linear = c.layer_types.count("linear_attention")
    keys = (c.num_hidden_layers - linear) * 2 * c.num_key_value_heads * c.head_dim * element
    state = linear * 4 * c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim
    whole = element * parameters.total + model_length(config) * keys + state
    return -(-whole // config.rl.rollout.tensor_parallel_size)
