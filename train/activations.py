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
    """Which implementation runs, because each saves other tensors. The defaults are what `kernels.install` puts on a
    GPU with flash-linear-attention (fla) 0.6.0 and Triton; tests/test_activations.py compares its names with these.

    delta_rule: torch (transformers' chunked rule in float32) | fla.
    convolution: torch (one document a row) | torch_packed (`kernels.causal_conv1d_packed`) | fla.
    experts: eager, grouped_mm (both transformers) | routed (`experts.RoutedExperts`) | autoep (DeepSpeed).
    router: transformers | triton (`router.TopKSoftmax`); AutoEP has its own, which saves what transformers' does.
    elementwise: transformers | fla, for norms, gated norm, SwiGLU and rotary embedding.

    No CPU runs fla's kernels. What its autograd functions save was read in its source (`save_for_backward`):
    ops/gated_delta_rule/chunk.py:310, modules/causal_conv1d/ops.py:957, modules/norm/layernorm.py:614,
    modules/norm/fused_norm_gate.py:667, modules/activations/ops.py:658, modules/rotary/ops.py:271.
    """

    delta_rule: str = "fla"
    convolution: str = "fla"
    experts: str = "routed"
    router: str = "triton"
    elementwise: str = "fla"


ON_A_CPU = Kernels("torch", "torch_packed", "routed", "transformers", "transformers")


def norm(width: int, e: int, kernels: Kernels) -> float:
    """Zero-centred RMSNorm over `width`. fla: the input and 1 / rms; transformers: the float32 input, the float32
    normalised value, and 1 / rms."""
    return (e * width if kernels.elementwise == "fla" else 8 * width) + 4


def attention(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels, masked: bool) -> float:
    """Gated full attention with `scaled_dot_product_attention` (`masked`, or one document), or document by document
    with FlashAttention (fla's kernels, not `masked`); the model's rotary tables and the mask excluded.

    The input; the norms of q and k by head; q, k, v, the output and float32 log-sum-exps of the kernel (with a mask, k
    and v are repeated for all query heads: transformers/integrations/sdpa_attention.py); output, sigmoid and product of
    the gate, where FlashAttention's output is the same tensor; fla's rotary embedding copies the halves of its tables.
    """
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    q, kv = heads * c.head_dim, kv_heads * c.head_dim
    norms = heads * norm(c.head_dim, e, kernels) + kv_heads * norm(c.head_dim, e, kernels)
    kernel = e * (2 * q + 2 * (q if masked else kv)) + 4 * heads
    by_document = kernels.elementwise == "fla" and not masked
    rotary = e * c.head_dim * c.rope_parameters["partial_rotary_factor"] if kernels.elementwise == "fla" else 0
    return e * c.hidden_size + norms + kernel + (2 if by_document else 3) * e * q + rotary


def attention_mask(tokens: int, rows: int, e: int) -> tuple[int, int]:
    """Bytes of the boolean mask [rows, 1, T, T] that the forward pass shares, and of the copy in the model's dtype
    that each full-attention layer makes and saves (aten's convert_boolean_attn_mask). `tokens` are those of one row.

    Padded batches need a mask, and packed rows where `fused_layers.uses_packed_attention` says no.
    """
    return rows * tokens**2, e * rows * tokens**2


def delta_net(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Gated DeltaNet: input, convolution, gates, delta rule, gated norm, input of the output projection."""
    heads, channels, taps = c.linear_num_value_heads, _channels(c), c.linear_conv_kernel_dim
    convolution = {
        "fla": e * channels,  # its input
        "torch": 2 * e * channels,  # and what SiLU reads
        "torch_packed": (taps + 1) * e * channels + taps - 1,  # and each earlier token, masked, with its mask
    }[kernels.convolution]
    gates = e * heads + 8 * heads  # sigmoid of beta; float32 input and output of softplus
    return e * c.hidden_size + convolution + gates + _delta_rule(c, e, kernels) + _gated_output(c, e, kernels)


def _channels(c: Qwen3_5MoeTextConfig) -> int:
    """q, k and v of a token, which the convolution reads."""
    return 2 * c.linear_num_key_heads * c.linear_key_head_dim + c.linear_num_value_heads * c.linear_value_head_dim


def _gated_output(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """The gated norm and the input of the output projection. fla: the core's output, the gate and 1 / rms;
    transformers: float32 core, gate and SiLU; normalised and scaled; 1 / rms."""
    heads = c.linear_num_value_heads
    value = heads * c.linear_value_head_dim
    gated = 2 * e * value if kernels.elementwise == "fla" else 12 * value + 2 * e * value
    return gated + 4 * heads + e * value


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

    The input; the router (Triton: logits and indices; else softmax, top-k values, indices and their sum); gate, up and
    product of the shared expert (and the output of SiLU, where fla does not fuse it), its output and gate; the routed
    experts by row, with `k` rows a token.
    """
    hidden, k, width = c.hidden_size, c.num_experts_per_tok, c.moe_intermediate_size
    tensors = 3 if kernels.elementwise == "fla" else 4
    shared = e * (tensors * c.shared_expert_intermediate_size + hidden + 1)
    own_router = kernels.router == "triton" and kernels.experts != "autoep"
    router = e * c.num_experts + 8 * k if own_router else 4 * c.num_experts + 12 * k + 4
    if kernels.experts == "eager":  # two int64 indices, input, gate and up, SiLU, product, weight, two outputs
        routed = k * (16 + e * (3 * hidden + 4 * width + 1))
    elif kernels.experts == "grouped_mm":  # three int64 permutations, input, gate and up, SiLU, product, weight, output
        routed = k * (24 + e * (2 * hidden + 4 * width + 1))
    elif kernels.experts == "routed":  # gate and up, weight, two int32 permutations; the ends of the experts
        routed = k * (8 + e * (2 * width + 1)) + 4 * c.num_experts / tokens
    else:  # rows of each local expert are padded to a multiple of 8; the output is sent back without padding
        padding = c.num_experts / expert_parallel * EXPERT_ROW_ALIGNMENT / tokens
        routed = (k + padding) * (4 + e * (hidden + 4 * width)) + k * (20 + e * hidden)
    return e * hidden + shared + router + routed


def backward_moe(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Bytes a token beside what is saved at the start of the backward pass of a layer, where its MoE block is widest.

    Routed: gradients of the rows and of the product, of gate and up, and the product once more (row_kernels.
    weighted_swiglu_backward). transformers: the gradient of the weighted rows, of the rows put back into the order of
    the experts, and the zeros they are put into; AutoEP weights rows in float32 (deepspeed/module_inject/
    auto_ep_layer.py:494): counted as two float32 products, for the gradients of rows and of weights. The layer's output
    and the residual stream have gradients, too, and beside the routed experts those of the shared output and of its
    gate's input wait.
    """
    k, hidden = c.num_experts_per_tok, c.hidden_size
    widest = {
        "routed": e * k * (hidden + 4 * c.moe_intermediate_size) + 2 * e * hidden,
        "autoep": 8 * k * hidden + 4 * hidden,
    }.get(kernels.experts, 3 * e * k * hidden)
    return widest + 2 * e * hidden


def backward_mixer(c: Qwen3_5MoeTextConfig, kind: str, e: int, kernels: Kernels, saved_moe: float) -> float:
    """Bytes a token beside what a layer of `kind` has saved, where the backward pass of its mixer is widest: what the
    MoE block (`saved_moe`) and its norm saved is free again, so it may be negative.

    fla's delta rule, when the gated output is done, too: fla/ops/gated_delta_rule/chunk.py:113 keeps all of it until it
    returns, by value head: w, u, new values, two states a chunk, and the gradients of output, q, k, w, values (twice)
    and k once more; beside them those of the gate and of the residual stream. Attention: the gradients of output, gate,
    q, k, v and of the residual stream. transformers' delta rule, one operation at a time: by value head the float32
    gradients of three [64, 64] matrices a chunk, of a key and of a value.
    """
    freed = saved_moe + norm(c.hidden_size, e, kernels)
    if kind == "full_attention":
        queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        return e * (3 * queries + 2 * keys + c.hidden_size) - freed
    heads, key, value = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    if kernels.delta_rule != "fla":
        return 4 * heads * (3 * CHUNK + key + value) - freed
    rule = e * heads * (5 * key + 5 * value + 2 * key * value / CHUNK)
    rule += e * heads * value + e * c.hidden_size
    return rule - freed - _gated_output(c, e, kernels)


def forward_moe(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Bytes a token at the widest moment of a MoE block whose forward pass saves nothing (generation, evaluation):
    routed: gate and up, product and output of the rows; else the rows of the experts as sorted, as projected, weighted
    and put back; shared output, residual stream and input beside."""
    k, hidden = c.num_experts_per_tok, c.hidden_size
    if kernels.experts == "routed":
        widest = k * e * (hidden + 3 * c.moe_intermediate_size)
    else:
        widest = 4 * e * k * hidden + (4 * k * hidden + 4 * hidden if kernels.experts == "autoep" else 0)
    return widest + 4 * e * hidden + 4 * c.num_experts + 32 * k


def forward(c: Qwen3_5MoeTextConfig, e: int, kernels: Kernels) -> float:
    """Bytes a token at the widest moment of a layer whose forward pass saves nothing: in the MoE block or in fla's
    delta rule (fla/ops/gated_delta_rule/chunk.py:30): q, k and v as convolved and as the rule reads them, q and k
    normalised, the gate, by value head w, u, new values, output, inverse and a state a chunk; residual stream, input.
    """
    heads, key, value = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    normalised = 2 * c.linear_num_key_heads * key
    rule = 2 * _channels(c) + normalised + heads * (value + key + 3 * value + CHUNK + key * value / CHUNK)
    widest = e * (rule + 2 * c.hidden_size) if kernels.delta_rule == "fla" else 0
    return max(widest, forward_moe(c, e, kernels))


def layer(
    c: Qwen3_5MoeTextConfig, kind: str, e: int, kernels: Kernels, tokens: int, masked: bool, expert_parallel: int = 1
) -> float:
    """One decoder layer, a token: two norms, the mixer of `kind` (full_attention | linear_attention), the MoE block."""
    around = 2 * norm(c.hidden_size, e, kernels) + moe(c, e, kernels, tokens, expert_parallel)
    return around + mixer(c, kind, e, kernels, masked)


def mixer(c: Qwen3_5MoeTextConfig, kind: str, e: int, kernels: Kernels, masked: bool) -> float:
    """What mixes tokens in a layer of `kind`, a token, its input included."""
    return attention(c, e, kernels, masked) if kind == "full_attention" else delta_net(c, e, kernels)


def router_loss(c: Qwen3_5MoeTextConfig, e: int) -> float:
    """Bytes a token and layer that the load-balancing loss keeps until its backward pass, with or without activation
    checkpointing: the router's logits and their softmax (transformers/models/mixtral/modeling_mixtral.py:521)."""
    return 2 * e * c.num_experts
