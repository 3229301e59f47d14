"""Tokens, arithmetic, hours and disk of a run, from the configuration alone; no torch.

Hours = operations / (ranks x MFU x peak). They are an estimate: no interconnect, no data loading, no evaluation.
"""

from dataclasses import dataclass

from transformers import Qwen3_5MoeTextConfig

from agentworld.train.activations import CHUNK
from agentworld.train.architecture import Parameters
from agentworld.train.config import Config
from agentworld.train.rollout_limits import uses_vllm

# Whole steps of CPT on two H200, ZeRO-3, experts over both, 2026-11-30 (docs/performance.md), of the 790 TFLOP/s of a
# bfloat16 product: 0.15 with 8,192 tokens a GPU (4 layers) and 0.32 with 98,304 (12 layers, recomputed work counted).
# The default lies between, nearer to the smaller: several nodes were not measured.
PEAK_FLOPS = 790e12
MFU = 0.19
# A token of all rows of a call of `generate`, by layer: kernels are launched one by one, widths and rows matter little.
# Measured on H200 (docs/rollouts.md, docs/performance.md): 256 rows, 8 layers, 12,800 tokens/s; 12 layers with the
# experts over two GPUs, 20.2 s for 256 tokens.
DECODING_SECONDS_A_LAYER, WITH_DIVIDED_EXPERTS = 0.0025, 0.0066
CHECKPOINT_BYTES = 16  # a parameter: what a save demands as free, train/trainers.py


@dataclass(frozen=True)
class Work:
    """One stage. Tokens are at most so many: packed rows full, prompts and completions as long as their limits."""

    steps: int
    tokens_per_step: int  # that the loss sees, over all ranks
    generated_tokens: int  # over all steps and ranks
    flops: float
    hours: float
    decoding_hours: float


def flops_per_token(
    architecture: Qwen3_5MoeTextConfig, parameters: Parameters, context: float, forward_only: bool = False
) -> float:
    """Operations of one token: 2 a multiplied parameter forward and 4 backward, attention over `context` earlier tokens
    (4 x heads x head_dim each), and the delta rule.

    The delta rule, by value head, in chunks of c = 64 tokens (arXiv:2412.06464; transformers' torch_chunk_gated_delta_
    rule): three products with the [key, value] state, the [c, c] products k k', q k' and with the new values, two
    triangular solves.
    """
    forward = 2 * parameters.multiplied + _mixing(architecture, context)
    return forward if forward_only else 3 * forward


def _mixing(c: Qwen3_5MoeTextConfig, context: float) -> float:
    """Operations of one token, forward, that no weight takes part in: attention and delta rule of all layers."""
    linear = c.layer_types.count("linear_attention")
    attention = (c.num_hidden_layers - linear) * 4 * c.num_attention_heads * c.head_dim * context
    key, value = c.linear_key_head_dim, c.linear_value_head_dim
    rule = 6 * key * value + 2 * CHUNK * (2 * key + value) + CHUNK * (key + value)
    return attention + linear * c.linear_num_value_heads * rule


def recomputed_per_token(
    recompute: str, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, context: float
) -> float:
    """Operations of one token that a `model.recompute` computes a second time: the forward pass (layers), or that of
    the mixers up to their output projections, whose input is the last that the backward pass needs."""
    c = architecture
    if recompute == "none":
        return 0.0
    if recompute == "layers":
        return flops_per_token(c, parameters, context, forward_only=True)
    linear = c.layer_types.count("linear_attention")
    values = linear * c.linear_num_value_heads * c.linear_value_head_dim
    values += (c.num_hidden_layers - linear) * c.num_attention_heads * c.head_dim
    weights = parameters.parts["attention"] + parameters.parts["gated_deltanet"] - c.hidden_size * values
    return 2 * weights + _mixing(c, context)


def work(
    config: Config, stage: str, architecture: Qwen3_5MoeTextConfig, parameters: Parameters, ranks: int, mfu: float
) -> Work:
    """The work of a stage: forward and backward pass, what the latter computes again, and in RL the forward passes of
    sampling and of the old log-probabilities."""
    settings = getattr(config, stage)
    generated, decoding = 0, 0.0
    if stage == "rl":
        row = config.data.rl_prompt_tokens + settings.max_completion_tokens
        sequences = settings.prompts_per_rollout * settings.num_generations // settings.mini_batches
        tokens, forwards = sequences * row, 2
        generated = settings.max_steps * sequences * settings.max_completion_tokens
        per_rank = -(-settings.prompts_per_rollout * settings.num_generations // ranks)
        calls = -(-per_rank // (settings.rollout.batch_size or per_rank))  # of `generate`, one after the other
        rollouts = settings.max_steps / settings.mini_batches
        if not uses_vllm(settings.rollout):  # of vLLM nothing is known
            tokens_in_turn = rollouts * calls * settings.max_completion_tokens
            decoding = tokens_in_turn * decoding_seconds(architecture, config.engine.expert_parallel) / 3600
    else:
        row = getattr(config.data, f"{stage}_row_tokens")
        rows = settings.rows_per_device * settings.gradient_accumulation_steps
        tokens, forwards = rows * row * ranks, 0
    context = row / 2  # causal: half the row on average
    once = flops_per_token(architecture, parameters, context, forward_only=True)
    again = recomputed_per_token(config.model.recompute, architecture, parameters, context)
    flops = settings.max_steps * tokens * (once * (3 + forwards) + again)
    hours = flops / (ranks * mfu * PEAK_FLOPS) / 3600
    return Work(settings.max_steps, tokens, generated, flops, hours, decoding)


def decoding_seconds(architecture: Qwen3_5MoeTextConfig, expert_parallel: int) -> float:
    """Of one token for all rows of a call of `generate`; an estimate."""
    of_a_layer = WITH_DIVIDED_EXPERTS if expert_parallel > 1 else DECODING_SECONDS_A_LAYER
    return of_a_layer * architecture.num_hidden_layers


def evaluation_hours(config: Config, architecture: Qwen3_5MoeTextConfig, stages: list[str], ranks: int) -> float:
    """Hours in which the evaluations around these stages decode, if each answer is as long as allowed: greedy for each
    held-out turn, and after SFT and RL `reward_draws` samples and a greedy answer for some of them (train/evaluate.py).
    """
    settings = config.eval

    def calls(examples: int, answers: int = 1) -> int:  # of `generate` on a rank, one after the other
        return -(-(-(-examples // ranks) * answers) // settings.batch_size)

    shown = calls(settings.examples)
    rewarded = min(settings.reward_examples, settings.examples)
    sampled = calls(rewarded, settings.reward_draws) + calls(rewarded)
    evaluated = (["base"] if "cpt" in stages else []) + stages
    number = sum(shown + (sampled if stage in ("sft", "rl") else 0) for stage in evaluated)
    degree = config.engine.expert_parallel if settings.divided else 1
    return number * settings.max_new_tokens * decoding_seconds(architecture, degree) / 3600


def disk(config: Config, parameters: Parameters, stages: list[str], trajectory_bytes: int) -> dict[str, int]:
    """Bytes below the run directory at most. A checkpoint is counted as what its save demands; the prepared data as
    three times the trajectories: their pools, and rows of two int32 columns at four characters a token."""
    element = 2 if config.model.dtype == "bfloat16" else 4
    copies = int(
        "rl" in stages and config.rl.rollout.engine == "vllm_colocate" and config.model.export_layout == "text"
    )
    return {
        "checkpoints": sum(
            (getattr(config, stage).save_total_limit + (stage == stages[-1])) * CHECKPOINT_BYTES * parameters.total
            for stage in stages
        ),
        "exports": (len(stages) + copies) * element * parameters.total,  # vLLM may need RL's start in another layout
        "prepared data": 3 * trajectory_bytes,
    }
