"""The paged KV cache, the metadata of a batch, and the context in which the attention op finds both.

All tensors are allocated once and filled in place, so that a CUDA graph that was captured over them stays
valid. The context travels in a context variable: nothing here is global state, and two threads never see each
other's batch.

Shapes: L layers, N blocks, B tokens per block, K key-value heads, D head dim, T tokens, R requests,
M blocks per request.
"""

# ruff: noqa: N803, N806, N815 - dimension suffixes are capitals

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from precast.errors import UsageError
from precast.examples.decoder.host_rows import HostBlockTable, send, send_window, spread

__all__ = ["AttentionContext", "AttentionMetadata", "KVCache", "RequestTokens", "Tokens", "current_context"]

_CURRENT: ContextVar["AttentionContext | None"] = ContextVar("precast_attention_context", default=None)


class Tokens(Protocol):
    """The tokens that one request brings into a batch: a `RequestTokens`, or a scheduler's own value as it is."""

    @property
    def start(self) -> int:
        """Position of the first of them."""
        ...

    @property
    def count(self) -> int:
        """How many they are."""
        ...

    @property
    def blocks(self) -> tuple[int, ...]:
        """The request's blocks of the KV cache."""
        ...

    @property
    def row(self) -> int | None:
        """The request's row of the block table."""
        ...


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """The tokens that one request brings into a batch.

    Attributes:
        start: Position of the first of them.
        count: How many they are.
        blocks: The request's blocks of the KV cache in order of position, for all positions below `start +
            count`.
        row: The request's row of the block table; its place in the batch if None. A server gives a request one row
            for all its life: a row is converted again only where its blocks changed.
    """

    start: int
    count: int
    blocks: tuple[int, ...]
    row: int | None = None


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of every layer, in blocks: keys_L[l] is [N, B, K, D], values_L[l] is [N, B, K, Dv]."""

    keys_L: tuple[Tensor, ...]
    values_L: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        value_head_dim: int | None = None,
    ) -> "KVCache":
        """Make a cache of zeros; `value_head_dim` defaults to `head_dim`."""
        shape = (num_blocks, block_size, num_kv_heads)
        value_dim = head_dim if value_head_dim is None else value_head_dim
        keys = [torch.zeros(*shape, head_dim, dtype=dtype, device=device) for _ in range(num_layers)]
        values = [torch.zeros(*shape, value_dim, dtype=dtype, device=device) for _ in range(num_layers)]
        return cls(tuple(keys), tuple(values))

    @property
    def num_blocks(self) -> int:
        """How many blocks each layer has."""
        return int(self.keys_L[0].shape[0])

    @property
    def block_size(self) -> int:
        """How many tokens a block holds."""
        return int(self.keys_L[0].shape[1])


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where each row of the batch is kept and how far it looks back.

    Attributes:
        slots_T: int64, block * B + offset of the row's own key and value; -1 marks a padded row.
        requests_T: int32, row of the block table.
        contexts_T: int32, how many positions the row attends to, itself included; 0 for a padded row.
        block_table_RM: int32, blocks of each request in order of position.
    """

    slots_T: Tensor
    requests_T: Tensor
    contexts_T: Tensor
    block_table_RM: Tensor

    @classmethod
    def allocate(
        cls, *, max_tokens: int, max_requests: int, max_blocks: int, device: torch.device
    ) -> "AttentionMetadata":
        """Make metadata in which every row is padded; `max_blocks` is per request."""
        return cls(
            torch.full((max_tokens,), -1, dtype=torch.int64, device=device),
            torch.zeros(max_tokens, dtype=torch.int32, device=device),
            torch.zeros(max_tokens, dtype=torch.int32, device=device),
            torch.zeros(max_requests, max_blocks, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """A KV cache and the metadata of the batch that runs over it."""

    cache: KVCache
    metadata: AttentionMetadata
    _blocks: HostBlockTable = field(default_factory=HostBlockTable, init=False, repr=False, compare=False)

    def fill(self, requests: Sequence[Tokens], *, rows: int | None = None, positions_T: Tensor | None = None) -> Tensor:
        """Describe the next batch in place: the requests' tokens one after another, then padded rows.

        All of it is worked out on the CPU and copied once per tensor, without waiting for the device.

        Args:
            requests: What each request brings; its keys and values of earlier positions are in the cache
                already.
            rows: Rows of the step, padded ones included; rows after them keep what they hold, and a step must not
                compute them. All rows that there are if None.
            positions_T: Receives the positions, int64, zero in padded rows; a new tensor if None.

        Returns:
            The position of each token, int64 [T] on the cache's device, without padded rows.

        Raises:
            UsageError: The batch does not fit the preallocated tensors, or a request has too few or unknown
                blocks.
        """
        meta = self.metadata
        starts, counts = [r.start for r in requests], [r.count for r in requests]
        table_rows = [at if r.row is None else r.row for at, r in enumerate(requests)]
        self._check(counts, table_rows, rows)
        table_RM = self._blocks.update(self._changed(requests, table_rows), shape=meta.block_table_RM.shape)
        rows = len(meta.slots_T) if rows is None else rows
        owners_T, offsets_T = spread(starts, counts, table_rows)
        count, size = len(owners_T), self.cache.block_size
        slots_T = table_RM[owners_T, offsets_T // size].long() * size + offsets_T % size
        send(slots_T, meta.slots_T, rows, padding=-1)
        send(owners_T, meta.requests_T, rows)
        send(offsets_T + 1, meta.contexts_T, rows)
        if requests:
            send_window(table_RM, meta.block_table_RM, max(table_rows) + 1, max(len(r.blocks) for r in requests))
        if positions_T is None:
            positions_T = torch.empty(count, dtype=torch.int64, device=meta.slots_T.device)
            rows = count
        send(offsets_T, positions_T, rows)
        return positions_T[:count]

    def describe(self, counts: Sequence[int], *, rows: int, positions_T: Tensor) -> None:
        """Describe a batch that stands in for others: requests that start at 0, and every row marked as padded.

        Args:
            counts: Tokens of each request.
            rows: Rows of the step; rows after them keep what they hold.
            positions_T: Receives the positions, int64, zero after the requests' tokens.

        Raises:
            UsageError: The batch does not fit the preallocated tensors.
        """
        meta = self.metadata
        self._check(counts, range(len(counts)), rows)
        owners_T, offsets_T = spread([0] * len(counts), counts, range(len(counts)))
        send(owners_T[:0], meta.slots_T, rows, padding=-1)
        send(owners_T, meta.requests_T, rows)
        send(owners_T[:0], meta.contexts_T, rows)
        send(offsets_T, positions_T, rows)

    @contextmanager
    def use(self) -> Iterator["AttentionContext"]:
        """Make this the context that the attention op works in, for the length of a `with` block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    def _check(self, counts: Sequence[int], table_rows: Sequence[int], rows: int | None) -> None:
        """Refuse a batch that does not fit the preallocated tensors."""
        tokens, capacity = sum(counts), len(self.metadata.slots_T)
        most = len(self.metadata.block_table_RM)
        if tokens > capacity or len(counts) > most:
            raise UsageError(
                f"A batch of {tokens} tokens in {len(counts)} requests does not fit the attention metadata",
                f"it was allocated for {capacity} tokens and {most} requests",
                "allocate larger metadata",
            )
        if rows is not None and not tokens <= rows <= capacity:
            why = f"there are {tokens} tokens, and metadata for {capacity} rows"
            raise UsageError(f"A batch cannot have {rows} rows", why, "pad to a number between them")
        if counts and not (len(set(table_rows)) == len(counts) and min(table_rows) >= 0 and max(table_rows) < most):
            why = f"the rows are {list(table_rows)}, the block table has {most}"
            raise UsageError("Requests share a row of the block table, or name one that it lacks", why, "number them")

    def _changed(self, requests: Sequence[Tokens], table_rows: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Refuse tokens that have no place in the cache, and give the rows whose blocks are new.

        One pass, and blocks are looked at only where they changed: a step may have hundreds of requests with hundreds
        of blocks each.
        """
        size, there, width = self.cache.block_size, self.cache.num_blocks, self.metadata.block_table_RM.shape[1]
        changed = []
        for row, request in zip(table_rows, requests, strict=True):
            start, count, blocks = request.start, request.count, request.blocks
            if start < 0 or count < 0:
                raise UsageError("A request starts at or brings a negative number of tokens", "", "count from 0")
            if start + count > len(blocks) * size:
                raise UsageError("A request has too few KV blocks for its tokens", "", "allocate more blocks to it")
            if self._blocks.has(row, blocks):
                continue
            if len(blocks) > width:
                why = f"the metadata was allocated for {width} blocks per request"
                what = f"A request of {len(blocks)} KV blocks does not fit the attention metadata"
                raise UsageError(what, why, "allocate larger metadata")
            if blocks and not (min(blocks) >= 0 and max(blocks) < there):
                why = f"the cache has blocks 0 to {there - 1}"
                raise UsageError("A request names a KV block that does not exist", why, "take blocks from that range")
            changed.append((row, blocks))
        return changed


def current_context() -> AttentionContext:
    """Give the context that is in use.

    Raises:
        UsageError: None is.
    """
    context = _CURRENT.get()
    if context is None:
        raise UsageError(
            "Attention ran without a KV cache",
            "no attention context is in use",
            "run the model inside `with context.use():` or inside the spec's `sample`",
        )
    return context
