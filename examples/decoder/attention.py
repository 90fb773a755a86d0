"""The op `precast::paged_attention`: writes keys and values into the paged cache, then attends over it.

The schema has room for what attention varies in, and the op refuses every combination that it does not
compute. State comes from the attention context in use: a graph that is cut at this op holds no state at all.

Shapes: T tokens, t tokens of one request, Q query heads, K key-value heads, G = Q / K, D head dim, S
positions.
"""

# ruff: noqa: N803, N806 - dimension suffixes are capitals

from collections.abc import Iterator

import torch
from torch import Tensor

from precast.errors import UsageError
from precast.examples.decoder.kv_cache import AttentionContext, current_context

__all__ = ["OP_NAME", "paged_attention"]

OP_NAME = "precast::paged_attention"
_SCHEMA = (
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) out, int layer, float scale,"
    " int? sliding_window=None, float? soft_cap=None, Tensor? sinks=None) -> ()"
)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Library and not torch.library.custom_op, whose decorator imports torch._dynamo.
_LIBRARY = torch.library.Library("precast", "FRAGMENT")
_LIBRARY.define(_SCHEMA)


def paged_attention(
    query_TQD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    out_TQD: Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks_Q: Tensor | None = None,
) -> None:
    """Call the op.

    Args:
        query_TQD: Rotated queries.
        key_TKD: Rotated keys of the same tokens.
        value_TKD: Values of the same tokens; their head dim may differ.
        out_TQD: Receives the result, [T, Q, Dv]; rows whose slot is -1 become zero.
        layer: Index of the layer's tensors in the KV cache.
        scale: Factor on query times key.
        sliding_window: How many positions a token sees, itself included; None for all.
        soft_cap: Scores become `soft_cap * tanh(score / soft_cap)`; None for no cap.
        sinks_Q: One more logit per query head that takes part in the softmax but has no value.

    Raises:
        UsageError: Shapes, dtypes or values that are not supported, or no attention context in use.
    """
    torch.ops.precast.paged_attention(
        query_TQD, key_TKD, value_TKD, out_TQD, layer, scale, sliding_window, soft_cap, sinks_Q
    )


def _problems(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    layer: int,
    sliding_window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Iterator[str]:
    """Name what is not supported. The token count is left out here: it may be symbolic."""
    tensors = (query, key, value, out)
    if any(t.dim() != 3 for t in tensors):
        yield f"query, key, value and out must have 3 dims, got {[t.dim() for t in tensors]}"
        return
    if query.dtype not in _DTYPES or any(t.dtype != query.dtype for t in tensors):
        yield f"dtypes must be equal and float32, float16 or bfloat16, got {[str(t.dtype) for t in tensors]}"
    if any(t.device != query.device for t in tensors):
        yield f"devices must be equal, got {[str(t.device) for t in tensors]}"
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 0 or heads % kv_heads or value.shape[1] != kv_heads:
        yield f"{heads} query heads do not fit {kv_heads} key and {value.shape[1]} value heads"
    if key.shape[2] != query.shape[2]:
        yield f"head dims of query and key differ: {query.shape[2]} and {key.shape[2]}"
    if out.shape[1:] != (heads, value.shape[2]):
        yield f"out must be [T, {heads}, {value.shape[2]}], got {list(out.shape)}"
    if layer < 0:
        yield f"layer must not be negative, got {layer}"
    if sliding_window is not None and sliding_window < 1:
        yield f"sliding_window must be at least 1, got {sliding_window}"
    if soft_cap is not None and not soft_cap > 0:
        yield f"soft_cap must be above 0, got {soft_cap}"
    if sinks is not None and (sinks.shape != (heads,) or sinks.device != query.device):
        yield f"sinks must be [{heads}] on {query.device}, got {list(sinks.shape)} on {sinks.device}"


def _cache_problems(context: AttentionContext, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Iterator[str]:
    """Name what in the context does not fit the call."""
    if layer >= len(context.cache.keys_L):
        yield f"layer {layer} is not in a KV cache of {len(context.cache.keys_L)} layers"
        return
    keys, values = context.cache.keys_L[layer], context.cache.values_L[layer]
    if keys.shape[2:] != key.shape[1:] or values.shape[2:] != value.shape[1:]:
        yield f"the KV cache holds {list(keys.shape[2:])} and {list(values.shape[2:])} a token"
    if keys.dtype != key.dtype or keys.device != key.device:
        yield f"the KV cache is {keys.dtype} on {keys.device}, the keys are {key.dtype} on {key.device}"
    if context.metadata.slots_T.device != key.device:
        yield f"the attention metadata is on {context.metadata.slots_T.device}, the keys are on {key.device}"
    if query.shape[0] > len(context.metadata.slots_T):
        yield f"the attention metadata has {len(context.metadata.slots_T)} rows, the batch {query.shape[0]}"


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UsageError(
            f"{OP_NAME} does not support this call",
            "; ".join(problems),
            "check the model's attention arguments",
        )


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    layer: int,
    sliding_window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> AttentionContext:
    """Check a real call and give the context to run it in."""
    problems = list(_problems(query, key, value, out, layer, sliding_window, soft_cap, sinks))
    if not problems and not query.shape[0] == key.shape[0] == value.shape[0] == out.shape[0]:
        problems.append(f"token counts differ: {[t.shape[0] for t in (query, key, value, out)]}")
    _refuse(problems)
    context = current_context()
    _refuse(list(_cache_problems(context, query, key, value, layer)))
    return context


def _meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    layer: int,
    scale: float,  # noqa: ARG001 - the schema's arguments
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    _refuse(list(_problems(query, key, value, out, layer, sliding_window, soft_cap, sinks)))


def _cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    # Triton takes seconds to import, and nothing on the CPU path needs it.
    from precast.examples.decoder.attention_triton import attend, write_kv

    context = _prepare(query, key, value, out, layer, sliding_window, soft_cap, sinks)
    write_kv(context, key, value, layer)
    attend(context, query, out, layer, scale, sliding_window, soft_cap, sinks)


def _cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    context = _prepare(query, key, value, out, layer, sliding_window, soft_cap, sinks)
    meta, tokens = context.metadata, query.shape[0]
    slots_T, requests_T = meta.slots_T[:tokens], meta.requests_T[:tokens]
    real_T = slots_T >= 0
    keys_SKD, values_SKD = (cache[layer].flatten(0, 1) for cache in (context.cache.keys_L, context.cache.values_L))
    keys_SKD[slots_T[real_T]] = key[real_T]
    values_SKD[slots_T[real_T]] = value[real_T]
    out.zero_()
    for request in requests_T[real_T].unique().tolist():
        rows = (real_T & (requests_T == request)).nonzero().squeeze(1)
        slots_S, seen_tS = _reach(context, request, meta.contexts_T[rows].long(), sliding_window)
        scores_QtS = _scores(query[rows].float(), keys_SKD[slots_S].float(), scale, soft_cap)
        weights_QtS = _softmax(scores_QtS.masked_fill(~seen_tS, float("-inf")), sinks)
        out[rows] = _weighted(weights_QtS, values_SKD[slots_S].float()).to(out.dtype)


def _reach(
    context: AttentionContext, request: int, contexts_t: Tensor, sliding_window: int | None
) -> tuple[Tensor, Tensor]:
    """Find the slots that the request's tokens see, and which token sees which of them.

    Slots before every token's window stay out: their blocks may have been given to another request.
    """
    # A token sees the positions up to itself, and no more of them than the window holds.
    firsts_t1 = (contexts_t - (sliding_window or int(contexts_t.max()))).clamp(min=0)[:, None]
    positions_S = torch.arange(int(firsts_t1.min()), int(contexts_t.max()), device="cpu")
    seen_tS = (positions_S >= firsts_t1) & (positions_S < contexts_t[:, None])
    size = context.cache.block_size
    blocks_S = context.metadata.block_table_RM[request, positions_S // size].long()
    return blocks_S * size + positions_S % size, seen_tS


def _scores(query_tQD: Tensor, keys_SKD: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    query_KGtD = query_tQD.transpose(0, 1).unflatten(0, (keys_SKD.shape[1], -1))
    keys_K1DS = keys_SKD.permute(1, 2, 0).unsqueeze(1)
    scores_QtS = (query_KGtD @ keys_K1DS).flatten(0, 1) * scale
    return scores_QtS if soft_cap is None else soft_cap * torch.tanh(scores_QtS / soft_cap)


def _softmax(scores_QtS: Tensor, sinks_Q: Tensor | None) -> Tensor:
    """Normalise over positions; a sink takes its share and is then dropped."""
    if sinks_Q is None:
        return scores_QtS.softmax(-1)
    sinks_Qt1 = sinks_Q.float()[:, None, None].expand(-1, scores_QtS.shape[1], 1)
    return torch.cat((scores_QtS, sinks_Qt1), dim=-1).softmax(-1)[..., :-1]


def _weighted(weights_QtS: Tensor, values_SKD: Tensor) -> Tensor:
    weights_KGtS = weights_QtS.unflatten(0, (values_SKD.shape[1], -1))
    values_K1SD = values_SKD.transpose(0, 1).unsqueeze(1)
    return (weights_KGtS @ values_K1SD).flatten(0, 1).transpose(0, 1)


_LIBRARY.impl("paged_attention", _meta, "Meta")
_LIBRARY.impl("paged_attention", _cuda, "CUDA")
_LIBRARY.impl("paged_attention", _cpu, "CPU")
