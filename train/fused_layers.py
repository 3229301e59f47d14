"""Functions that take the place of transformers' elementwise layers on a GPU: fla's fused kernels with the same
formulas, and attention over packed rows that never builds a [T, T] mask.

Each has the signature of what it replaces in transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py, and hands tensors
that are not on a GPU to the original. `agentworld.train.kernels` puts them there. fla is imported at the first call.
"""

import functools

import torch
import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as modeling
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SILU = (nn.SiLU, type(ACT2FN["silu"]))
_norm = modeling.Qwen3_5MoeRMSNorm.forward
_gated_norm = modeling.Qwen3_5MoeRMSNormGated.forward
_mlp = modeling.Qwen3_5MoeMLP.forward
_rotary = modeling.apply_rotary_pos_emb
_text_model = modeling.Qwen3_5MoeTextModel.forward
_sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]


def norm(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`Qwen3_5MoeRMSNorm.forward`: RMS norm with a weight around zero, fp32 inside; any shape [..., D]."""
    if not x.is_cuda:
        return _norm(self, x)
    from fla.modules.norm.layernorm import rms_norm

    return rms_norm(x, 1.0 + self.weight.float(), None, eps=self.eps)


def gated_norm(self: nn.Module, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """`Qwen3_5MoeRMSNormGated.forward`: RMS norm x silu(gate); both [N, D]."""
    if not hidden_states.is_cuda:
        return _gated_norm(self, hidden_states, gate)
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    return rms_norm_gated(hidden_states, gate, self.weight, None, activation="swish", eps=self.variance_epsilon)


def mlp(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`Qwen3_5MoeMLP.forward`: the shared expert."""
    if not x.is_cuda or not isinstance(self.act_fn, SILU):
        return _mlp(self, x)
    from fla.modules.activations import swiglu

    return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """`apply_rotary_pos_emb`: q, k [B, heads, T, D], cos, sin [B, T, rotated dimensions] (two equal halves).

    fla's kernel takes one table of positions for all rows; rows are flattened into one, so each keeps its own.
    """
    if not q.is_cuda or unsqueeze_dim != 1:
        return _rotary(q, k, cos, sin, unsqueeze_dim)
    from fla.modules.rotary import rotary_embedding

    half = cos.shape[-1] // 2
    table = [part[..., :half].reshape(-1, half) for part in (cos, sin)]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2)
        return rotary_embedding(rows.reshape(1, -1, *rows.shape[2:]), *table).view(rows.shape).transpose(1, 2)

    return rotate(q), rotate(k)


def fla_convolution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    bounds: torch.Tensor | None,
) -> torch.Tensor:
    """Depthwise causal convolution, [B, channels, T] -> the same; `bounds` [documents + 1] for a packed row."""
    from fla.modules.causal_conv1d import causal_conv1d

    rows = hidden_states.transpose(1, 2)  # token-major in memory: the projection before it wrote it so
    out, _ = causal_conv1d(rows, weight, bias, activation=activation, cu_seqlens=bounds)
    return out.transpose(1, 2)


def uses_packed_attention(config, batch: int, example: torch.Tensor, bounds: torch.Tensor | None) -> bool:
    """Whether full attention runs document by document (FlashAttention's variable lengths, inside torch): one packed
    row (`batch` 1, `bounds` given), `example` in half precision on a GPU, heads of at most 256."""
    return (
        bounds is not None
        and batch == 1
        and example.is_cuda
        and example.dtype in (torch.bfloat16, torch.float16)
        and config._attn_implementation == "sdpa"
        and config.head_dim <= 256
    )


@functools.wraps(_text_model)
def text_model(self: nn.Module, *args, **kwargs):
    """`Qwen3_5MoeTextModel.forward` that makes no [T, T] mask of a packed row: `packed_attention` needs none.

    The stock model derives the mask from the position ids and attends through it, at the cost of all T x T pairs. It
    takes a dictionary of finished masks as it is (modeling_qwen3_5_moe.py:1363).
    """
    plain = not args and all(kwargs.get(name) is None for name in ("attention_mask", "cache"))
    if plain and kwargs.get("use_cache") is False:
        tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        weight = self.embed_tokens.weight
        if uses_packed_attention(self.config, tokens.shape[0], weight, kwargs.get("cu_seq_lens_q")):
            kwargs["attention_mask"] = {"full_attention": None, "linear_attention": None}
    return _text_model(self, *args, **kwargs)


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa` attention; a packed row without a mask goes document by document.

    Args:
        query: [1, heads, T, D]; key, value: [1, key heads, T, D]. kwargs: cu_seq_lens_q [documents + 1] int32,
            max_length_q.

    Returns:
        ([1, T, heads, D], None).

    Raises:
        ValueError: several documents and neither a mask nor a kernel that keeps them apart.
    """
    bounds = kwargs.get("cu_seq_lens_q")
    if attention_mask is not None or not uses_packed_attention(module.config, query.shape[0], query, bounds) or dropout:
        if attention_mask is None and bounds is not None and bounds.numel() > 2:
            raise ValueError("a packed row reached full attention without a mask: documents would leak")
        return _sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    rows = [x.transpose(1, 2)[0] for x in (query, key, value)]
    longest = int(kwargs["max_length_q"])
    out = torch.ops.aten._flash_attention_forward(
        *rows, bounds, bounds, longest, longest, 0.0, True, False, scale=scaling
    )[0]
    return out[None], None
