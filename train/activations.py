"""Bytes that autograd keeps for the backward pass of `Qwen3_5MoeForCausalLM`, as formulas; no torch.

Each formula lists the tensors that the operations of a layer save, with `e` the bytes of a value in the model's dtype
(2 in bfloat16); 4 and 8 are float32 and int64. tests/test_activations.py compares them with the storages that
`torch.autograd.graph.saved_tensors_hooks` counts. Weights are never counted here.

    per token, with T tokens in a packed row or padded batch; `attention_mask` grows with their square
"""

from dataclasses import dataclass

from transformers import Qwen3_5MoeTextConfig

CHUNK = 64  # tokens of a chunk of the delta rule, in transformers and in fla
EXPERT_ROW_ALIGNMENT = 8  # deepspeed/moe/ep_kernels.py, TOKEN_GROUP_ALIGN_SIZE_M


@dataclass(frozen=True)
class Kernels:
    """Which implementation runs, because each saves other tensors.

    delta_rule: torch (transformers' chunked rule in float32) | fla (flash-linear-attention 0.6.0, fla/ops/
        gated_delta_rule/chunk.py:310). convolution: torch_packed (`kernels.causal_conv1d_packed`) | torch (one document
        a row) | causal_conv1d. experts: eager | grouped_mm (transformers) | autoep (DeepSpeed).
    """

    delta_rule: str = "fla"
    convolution: str = "torch_packed"
    experts: str = "grouped_mm"


def norm(width: int) -> float:
    """Zero-centred RMSNorm over `width`: the float32 input, the float32 normalised value, and 1 / rms."""
    return 8 * width + 4


def attention(c: Qwen3_5MoeTextConfig, e: int, masked: bool) -> float:
    """Gated full attention with `scaled_dot_product_attention`, rotary tables and mask excluded.

    The input; the norms of q and k by head; q, k, v, the output and float32 log-sum-exps of the kernel (with a mask, k
    and v are repeated for all query heads: transformers/integrations/sdpa_attention.py); output, sigmoid and product of
    the gate.
    """
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    q, kv = heads * c.head_dim, kv_heads * c.head_dim
    norms = 8 * q + 4 * heads + 8 * kv + 4 * kv_heads
    kernel = e * (2 * q + 2 * (q if masked else kv)) + 4 * heads
    return e * c.hidden_size + norms + kernel + 3 * e * q


def attention_mask(tokens: int, rows: int, e: int) -> tuple[int, int]:
    """Bytes of the boolean mask [rows, 1, T, T] that the forward pass shares, and of the copy in the model's dtype
    that each full-attention layer makes and saves (aten's convert_boolean_attn_mask). `tokens` are those of one row.

    Packed rows and padded batches need a mask; one document without padding does not.
    """
    return rows * tokens**2, e * rows * tokens**2


def delta_net(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Gated DeltaNet: input, convolution, gates, delta rule, gated norm, input of the output projection."""
    key_heads, heads = c.linear_num_key_heads, c.linear_num_value_heads
    key, value = key_heads * c.linear_key_head_dim, heads * c.linear_value_head_dim
    channels, taps = 2 * key + value, c.linear_conv_kernel_dim
    convolution = {
        "causal_conv1d": e * channels,  # its input
        "torch": 2 * e * channels,  # and what SiLU reads
        "torch_packed": (taps + 1) * e * channels + taps - 1,  # and each earlier token, masked, with its mask
    }[kernels.convolution]
    gates = e * heads + 8 * heads  # sigmoid of beta; float32 input and output of softplus
    gated_norm = 12 * value + 2 * e * value + 4 * heads  # float32 core, gate and SiLU; normalised and scaled; 1 / rms
    return e * c.hidden_size + convolution + gates + _delta_rule(c, e, kernels) + gated_norm + e * value


def _delta_rule(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """fla: normalised q and k with their norms, v, the float32 cumulated decay, and the [T, heads, 64] inverse.

    torch: eight float32 tensors of the keys repeated for all value heads, three of the values, five [64, 64] matrices
    a chunk and head, the state before each chunk, six float32 numbers a head.
    """
    key_heads, heads = c.linear_num_key_heads, c.linear_num_value_heads
    if kernels.delta_rule == "fla":
        key, value = key_heads * c.linear_key_head_dim, heads * c.linear_value_head_dim
        return e * (2 * key + value + CHUNK * heads) + 8 * key_heads + 4 * heads
    key_dim, value_dim = c.linear_key_head_dim, c.linear_value_head_dim
    return 4 * heads * (8 * key_dim + 3 * value_dim + 5 * CHUNK + key_dim * value_dim / CHUNK + 6)


def moe(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels, tokens: int, expert_parallel: int = 1) -> float:
    """Router, routed experts, shared expert and its gate, for routing that is even over ranks.

    The input; softmax, top-k values, indices and their sum in the router; four tensors of the shared expert, its
    output and gate; the routed experts by row, with `k` rows a token.
    """
    hidden, k, width = c.hidden_size, c.num_experts_per_tok, c.moe_intermediate_size
    shared = e * (4 * c.shared_expert_intermediate_size + hidden + 1)
    router = 4 * c.num_experts + 12 * k + 4
    if kernels.experts == "eager":  # two int64 indices, input, gate and up, SiLU, product, weight, two outputs
        routed = k * (16 + e * (3 * hidden + 4 * width + 1))
    elif kernels.experts == "grouped_mm":  # three int64 permutations, input, gate and up, SiLU, product, weight, output
        routed = k * (24 + e * (2 * hidden + 4 * width + 1))
    else:  # rows of each local expert are padded to a multiple of 8; the output is sent back without padding
        padding = c.num_experts / expert_parallel * EXPERT_ROW_ALIGNMENT / tokens
        routed = (k + padding) * (4 + e * (hidden + 4 * width)) + k * (20 + e * hidden)
    return e * hidden + shared + router + routed


def backward_moe(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Bytes a token beside what is saved at the start of the backward pass of a layer, where it is widest.

    The gradient of the weighted rows, of the rows put back into the order of the experts, and the zeros they are put
    into; AutoEP weights rows in float32 (deepspeed/module_inject/auto_ep_layer.py:494): counted as two float32
    products, for the gradients of rows and of weights. The layer's output and the residual stream have gradients, too.
    """
    rows = c.num_experts_per_tok * c.hidden_size
    widest = 8 * rows + 4 * c.hidden_size if kernels.experts == "autoep" else 3 * e * rows
    return widest + 2 * e * c.hidden_size


def forward_moe(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Bytes a token at the widest moment of a forward pass that saves nothing (generation, evaluation): the rows of
    the experts as sorted, as projected, weighted and put back; shared output, residual stream and input beside."""
    rows = c.num_experts_per_tok * c.hidden_size
    widest = 4 * e * rows + (4 * rows + 4 * c.hidden_size if kernels.experts == "autoep" else 0)
    return widest + 4 * e * c.hidden_size + 4 * c.num_experts + 32 * c.num_experts_per_tok


def layer(
    c: Qwen3_5MoeTextConfig, kind: str, e: int, kernels: Kernels, tokens: int, masked: bool, expert_parallel: int = 1
) -> float:
    """One decoder layer, a token: two norms, the mixer of `kind` (full_attention | linear_attention), the MoE block."""
    mixer = attention(c, e, masked) if kind == "full_attention" else delta_net(c, e, kernels)
    return 2 * norm(c.hidden_size) + mixer + moe(c, e, kernels, tokens, expert_parallel)


def router_loss(c: Qwen3_5MoeTextConfig, e: int) -> float:
    """Bytes a token and layer that the load-balancing loss keeps until its backward pass, with or without activation
    checkpointing: the router's logits and their softmax (transformers/models/mixtral/modeling_mixtral.py:521)."""
    return 2 * e * c.num_experts
