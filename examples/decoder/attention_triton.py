"""Triton kernels of `precast::paged_attention`, imported on the first call with CUDA tensors.

Nothing here waits for the device: sizes that differ between batches are read from the metadata by the
kernels, so one launch fits every batch with the same number of rows and can be recorded in a CUDA graph.

Shapes: as in `precast.examples.decoder.attention`; B tokens per block of the cache, W positions per tile.
"""

# ruff: noqa: ANN001, ANN202, N803 - kernels are not Python: no annotations but constexpr, which is capital
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from precast.errors import UsageError
from precast.examples.decoder.kv_cache import AttentionContext

__all__ = ["attend", "write_kv"]

_WIDEST_HEAD = 512
_TILE_ELEMENTS = 4096
# Few rows cannot fill a GPU: their contexts are split among programs until there are about this many of them.
_PROGRAMS = 512
_MOST_SPLITS = 16
# The narrowest matrix that tensor cores multiply.
_MIN_DOT = tl.constexpr(16)


def write_kv(context: AttentionContext, key_TKD: Tensor, value_TKD: Tensor, layer: int) -> None:
    """Copy each row's key and value to its slot; rows whose slot is -1 write nothing."""
    keys, values = context.cache.keys_L[layer], context.cache.values_L[layer]
    tokens, heads, head_dim = key_TKD.shape
    value_dim = value_TKD.shape[2]
    if tokens == 0:
        return
    _write_kv_kernel[(tokens,)](
        key_TKD,
        value_TKD,
        keys,
        values,
        context.metadata.slots_T,
        *key_TKD.stride(),
        *value_TKD.stride(),
        HEADS=heads,
        HEADS_PADDED=triton.next_power_of_2(heads),
        DIM=head_dim,
        DIM_PADDED=triton.next_power_of_2(head_dim),
        VALUE_DIM=value_dim,
        VALUE_DIM_PADDED=triton.next_power_of_2(value_dim),
    )


def attend(
    context: AttentionContext,
    query_TQD: Tensor,
    out_TQD: Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    sinks_Q: Tensor | None,
) -> None:
    """Attend from every row to its request's positions in the cache; rows whose slot is -1 become zero.

    Raises:
        UsageError: A head dim is wider than a tile can be.
    """
    keys, values, meta = context.cache.keys_L[layer], context.cache.values_L[layer], context.metadata
    tokens, heads, head_dim = query_TQD.shape
    kv_heads, value_dim = values.shape[2:]
    widest = max(triton.next_power_of_2(head_dim), triton.next_power_of_2(value_dim))
    if widest > _WIDEST_HEAD:
        raise UsageError(
            f"Head dims of {head_dim} and {value_dim} are not supported on CUDA",
            f"the attention kernel holds whole heads of at most {_WIDEST_HEAD}",
            "use an attention op of your own",
        )
    if tokens == 0:
        return
    group = heads // kv_heads
    splits = max(1, min(_MOST_SPLITS, _PROGRAMS // (tokens * kv_heads)))
    # Of each split: the weighted sum, then the softmax's maximum and total.
    parts = out_TQD if splits == 1 else query_TQD.new_empty((tokens, heads, splits, value_dim + 2), dtype=torch.float32)
    _attend_kernel[(tokens, kv_heads, splits)](
        query_TQD,
        keys,
        values,
        out_TQD,
        parts,
        meta.slots_T,
        meta.requests_T,
        meta.contexts_T,
        meta.block_table_RM,
        query_TQD if sinks_Q is None else sinks_Q,
        *query_TQD.stride(),
        *out_TQD.stride(),
        meta.block_table_RM.stride(0),
        splits,
        scale,
        0.0 if soft_cap is None else soft_cap,
        SPLIT=splits > 1,
        SLIDING_WINDOW=sliding_window or 0,
        HAS_SOFT_CAP=soft_cap is not None,
        HAS_SINKS=sinks_Q is not None,
        BLOCK=context.cache.block_size,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PADDED=max(_MIN_DOT.value, triton.next_power_of_2(group)),
        DIM=head_dim,
        DIM_PADDED=max(_MIN_DOT.value, triton.next_power_of_2(head_dim)),
        VALUE_DIM=value_dim,
        VALUE_DIM_PADDED=max(_MIN_DOT.value, triton.next_power_of_2(value_dim)),
        TILE=min(64, max(_MIN_DOT.value, _TILE_ELEMENTS // widest)),
    )
    if splits > 1:
        _combine_kernel[(tokens, heads)](
            parts,
            out_TQD,
            *out_TQD.stride(),
            splits,
            SPLITS_PADDED=_MOST_SPLITS,
            VALUE_DIM=value_dim,
            VALUE_DIM_PADDED=triton.next_power_of_2(value_dim),
        )


@triton.jit
def _write_kv_kernel(
    key_ptr,
    value_ptr,
    keys_ptr,
    values_ptr,
    slots_ptr,
    key_stride_t,
    key_stride_k,
    key_stride_d,
    value_stride_t,
    value_stride_k,
    value_stride_d,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
):
    """Write the keys and values of one token, all heads at once."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        k = tl.arange(0, HEADS_PADDED)[:, None]
        d = tl.arange(0, DIM_PADDED)[None, :]
        mask = (k < HEADS) & (d < DIM)
        key = tl.load(key_ptr + token * key_stride_t + k * key_stride_k + d * key_stride_d, mask=mask)
        tl.store(keys_ptr + slot * (HEADS * DIM) + k * DIM + d, key, mask=mask)
        v = tl.arange(0, VALUE_DIM_PADDED)[None, :]
        mask = (k < HEADS) & (v < VALUE_DIM)
        value = tl.load(value_ptr + token * value_stride_t + k * value_stride_k + v * value_stride_d, mask=mask)
        tl.store(values_ptr + slot * (HEADS * VALUE_DIM) + k * VALUE_DIM + v, value, mask=mask)


# How long a request's row of the block table is differs between servers: one kernel is for all of them.
@triton.jit(do_not_specialize=["block_table_stride_r", "splits"])
def _attend_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    parts_ptr,
    slots_ptr,
    requests_ptr,
    contexts_ptr,
    block_table_ptr,
    sinks_ptr,
    query_stride_t,
    query_stride_q,
    query_stride_d,
    out_stride_t,
    out_stride_q,
    out_stride_d,
    block_table_stride_r,
    splits,
    scale,
    soft_cap,
    SPLIT: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attend from one token's query heads of one key-value head, with a running softmax over tiles.

    With SPLIT each program sees its share of the context, and leaves a sum, a maximum and a total in `parts`.
    """
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    request = tl.load(requests_ptr + token).to(tl.int64)
    # A padded row sees nothing, so its sums stay zero whatever its query and metadata hold.
    context = tl.where(slot >= 0, tl.load(contexts_ptr + token), 0)
    first = 0
    if SLIDING_WINDOW > 0:
        first = tl.maximum(context - SLIDING_WINDOW, 0)
    last = context
    if SPLIT:
        tiles = tl.cdiv(tl.cdiv(context - first, TILE), splits)
        first += tl.program_id(2) * tiles * TILE
        last = tl.minimum(first + tiles * TILE, context)

    g = tl.arange(0, GROUP_PADDED)
    d = tl.arange(0, DIM_PADDED)
    v = tl.arange(0, VALUE_DIM_PADDED)
    w = tl.arange(0, TILE)
    heads = kv_head * GROUP + g
    query_at = query_ptr + token * query_stride_t + heads[:, None] * query_stride_q + d[None, :] * query_stride_d
    query = tl.load(query_at, mask=(g[:, None] < GROUP) & (d[None, :] < DIM), other=0.0)

    top = tl.full((GROUP_PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PADDED,), tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - the first is known when the kernel is compiled
        # A sink is a position with a logit and no value: it starts the softmax, of one split alone.
        if tl.program_id(2) == 0:
            top = tl.load(sinks_ptr + heads, mask=g < GROUP, other=0.0).to(tl.float32)
            total += 1.0
    sums = tl.zeros((GROUP_PADDED, VALUE_DIM_PADDED), tl.float32)

    for start in range(first, last, TILE):
        position = start + w
        seen = position < last
        block = tl.load(block_table_ptr + request * block_table_stride_r + position // BLOCK, mask=seen, other=0)
        row = (block.to(tl.int64) * BLOCK + position % BLOCK) * KV_HEADS + kv_head
        # Unseen positions are read as zero: stale slots may hold anything, and zero times NaN is NaN.
        keys = tl.load(keys_ptr + row[None, :] * DIM + d[:, None], mask=seen[None, :] & (d[:, None] < DIM), other=0.0)
        scores = tl.dot(query, keys, input_precision="ieee") * scale
        if HAS_SOFT_CAP:
            # tanh(x) = 2 sigmoid(2x) - 1
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_top[:, None])
        fade = tl.exp(top - new_top)
        values = tl.load(
            values_ptr + row[:, None] * VALUE_DIM + v[None, :],
            mask=seen[:, None] & (v[None, :] < VALUE_DIM),
            other=0.0,
        )
        sums = sums * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * fade + tl.sum(weights, axis=1)
        top = new_top

    if SPLIT:
        part_at = parts_ptr + ((token * KV_HEADS * GROUP + heads) * splits + tl.program_id(2)) * (VALUE_DIM + 2)
        mask = g < GROUP
        tl.store(part_at[:, None] + v[None, :], sums, mask=mask[:, None] & (v[None, :] < VALUE_DIM))
        tl.store(part_at + VALUE_DIM, top, mask=mask)
        tl.store(part_at + VALUE_DIM + 1, total, mask=mask)
    else:
        result = sums / tl.where(total > 0, total, 1.0)[:, None]
        out_at = out_ptr + token * out_stride_t + heads[:, None] * out_stride_q + v[None, :] * out_stride_d
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=(g[:, None] < GROUP) & (v[None, :] < VALUE_DIM))


@triton.jit(do_not_specialize=["splits"])
def _combine_kernel(
    parts_ptr,
    out_ptr,
    out_stride_t,
    out_stride_q,
    out_stride_d,
    splits,
    SPLITS_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PADDED: tl.constexpr,
):
    """Put one head of one token together from its splits; a row that saw nothing becomes zero."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, SPLITS_PADDED)
    v = tl.arange(0, VALUE_DIM_PADDED)
    part_at = parts_ptr + ((token * tl.num_programs(1) + head) * splits + s) * (VALUE_DIM + 2)
    top = tl.load(part_at + VALUE_DIM, mask=s < splits, other=float("-inf"))
    total = tl.load(part_at + VALUE_DIM + 1, mask=s < splits, other=0.0)
    # A split that saw nothing has no maximum; minus infinity less itself would be NaN.
    weight = tl.where(top > float("-inf"), tl.exp(top - tl.max(top, axis=0)), 0.0)
    mask = (s[:, None] < splits) & (v[None, :] < VALUE_DIM)
    sums = tl.load(part_at[:, None] + v[None, :], mask=mask, other=0.0)
    whole = tl.sum(total * weight, axis=0)
    result = tl.sum(sums * weight[:, None], axis=0) / tl.where(whole > 0, whole, 1.0)
    out_at = out_ptr + token * out_stride_t + head * out_stride_q + v * out_stride_d
    tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=v < VALUE_DIM)
