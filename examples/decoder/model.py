"""The decoder: RMSNorm, rotary embeddings, grouped-query attention over a paged cache, SwiGLU.

Layers differ in nothing but the integer that they hand to the attention op, so a graph that is cut there has
the same piece between any two layers. Rotary factors are computed once and passed along for the same reason.

Shapes: T tokens, H hidden size, I intermediate size, Q query heads, K key-value heads, A = Q + 2 K, D head
dim, E = D / 2, V vocabulary, N rows to compute logits for.
"""

# ruff: noqa: N803, N806, N815 - dimension suffixes are capitals
# mypy: allow-subclassing-any

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precast.examples.decoder.attention import paged_attention
from precast.examples.decoder.config import DecoderConfig
from precast.examples.decoder.rope_config import Llama3Scaling

__all__ = ["Attention", "Decoder", "DecoderLayer", "DecoderModel", "RMSNorm", "Rotary", "SwiGLU"]


class RMSNorm(nn.Module):
    """Root-mean-square norm that rounds where transformers does: the weight multiplies after the cast."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dim, in float32."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Rotary(nn.Module):
    """Rotary factors from inverse frequencies, computed per batch: no table of all positions is kept."""

    inv_freq_E: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        inv_freq_E = _inverse_frequencies(config).to(torch.get_default_device())
        self.register_buffer("inv_freq_E", inv_freq_E, persistent=False)

    def forward(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Compute cosine and sine, [T, 1, E] each; in float32 up to the final cast."""
        angles_T1E = positions_T[:, None, None].float() * self.inv_freq_E
        return angles_T1E.cos().to(dtype), angles_T1E.sin().to(dtype)


def _inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Compute on the CPU whatever the device, so that every device gets the same bits."""
    exponents_E = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    inv_freq_E = 1.0 / (config.rope_theta**exponents_E)
    return inv_freq_E if config.rope_scaling is None else _scale_llama3(inv_freq_E, config.rope_scaling)


def _scale_llama3(inv_freq_E: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Stretch long wavelengths, keep short ones, blend between (transformers: `modeling_rope_utils`)."""
    original = scaling.original_max_position_embeddings
    longest, shortest = original / scaling.low_freq_factor, original / scaling.high_freq_factor
    wavelen_E = 2 * math.pi / inv_freq_E
    scaled_E = torch.where(wavelen_E > longest, inv_freq_E / scaling.factor, inv_freq_E)
    smooth_E = (original / wavelen_E - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended_E = (1 - smooth_E) * scaled_E / scaling.factor + smooth_E * scaled_E
    between_E = (wavelen_E >= shortest) & (wavelen_E <= longest)
    return torch.where(between_E, blended_E, scaled_E)


def _rotate(x_TQD: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Rotate the first half of the head dim against the second, as transformers' `rotate_half` does."""
    first_TQE, second_TQE = x_TQD.chunk(2, dim=-1)
    return torch.cat((first_TQE * cos_T1E - second_TQE * sin_T1E, second_TQE * cos_T1E + first_TQE * sin_T1E), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with one projection for queries, keys and values together."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.sliding_window = config.sliding_window
        bias, heads = config.attention_bias, self.heads + 2 * self.kv_heads
        self.qkv_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=bias, dtype=dtype)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias, dtype=dtype)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype) if config.qk_norm else nn.Identity()

    def forward(self, x_TH: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
        """Attend from every token to its request's tokens so far."""
        heads_TAD = self.qkv_proj(x_TH).unflatten(-1, (self.heads + 2 * self.kv_heads, self.head_dim))
        query_TQD, key_TKD, value_TKD = heads_TAD.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        query_TQD = _rotate(self.q_norm(query_TQD), cos_T1E, sin_T1E)
        key_TKD = _rotate(self.k_norm(key_TKD), cos_T1E, sin_T1E)
        out_TQD = torch.empty_like(query_TQD)
        paged_attention(query_TQD, key_TKD, value_TKD, out_TQD, self.layer, self.scale, self.sliding_window)
        return self.o_proj(out_TQD.flatten(1))


class SwiGLU(nn.Module):
    """The feed-forward block, with one projection for gate and up together."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = nn.Linear(size, 2 * inner, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(inner, size, bias=bias, dtype=dtype)

    def forward(self, x_TH: Tensor) -> Tensor:
        """Transform each token on its own."""
        gate_TI, up_TI = self.gate_up_proj(x_TH).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate_TI) * up_TI)


class DecoderLayer(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each added to the stream."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = SwiGLU(config, dtype)

    def forward(self, x_TH: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
        """Apply the layer to the residual stream."""
        x_TH = x_TH + self.self_attn(self.input_layernorm(x_TH), cos_T1E, sin_T1E)
        return x_TH + self.mlp(self.post_attention_layernorm(x_TH))


class Decoder(nn.Module):
    """Embedding, layers and final norm, named as Hugging Face names them below `model.`."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, dtype) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)

    def forward(self, input_ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Compute the hidden states [T, H] of the tokens."""
        x_TH = self.embed_tokens(input_ids_T)
        cos_T1E, sin_T1E = self.rotary(positions_T, x_TH.dtype)
        for layer in self.layers:
            x_TH = layer(x_TH, cos_T1E, sin_T1E)
        return self.norm(x_TH)


class DecoderModel(nn.Module):
    """A decoder with its output head; `forward` is what precast compiles, the head runs outside it.

    Only the rows that a sampler needs go through the head. Their number has nothing to do with the token
    count, which is why the head is not part of the compiled graph.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        dtype: torch.dtype = getattr(torch, config.dtype)
        self.model = Decoder(config, dtype)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Compute hidden states [T, H] from token ids [T] and their positions [T], both int64."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_NH: Tensor) -> Tensor:
        """Compute logits [N, V] for chosen rows of the hidden states."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden_NH, head.weight)
