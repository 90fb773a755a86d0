"""The paged KV cache, the metadata of a batch, and the context in which the attention op finds both.

All tensors are allocated once and filled in place, so that a CUDA graph that was captured over them stays
valid. The context travels in a context variable: nothing here is global state, and two threads never see each
other's batch.

Shapes: L layers, N blocks, B tokens per block, K key-value heads, D head dim, T tokens, R requests,
M blocks per request.
"""

# ruff: noqa: N806, N815 - dimension suffixes are capitals

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from precast.errors import UsageError

__all__ = ["AttentionContext", "AttentionMetadata", "KVCache", "RequestTokens", "current_context"]

_CURRENT: ContextVar["AttentionContext | None"] = ContextVar("precast_attention_context", default=None)


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """The tokens that one request brings into a batch.

    Attributes:
        start: Position of the first of them.
        count: How many they are.
        blocks: The request's blocks of the KV cache in order of position, for all positions below `start +
            count`.
    """

    start: int
    count: int
    blocks: tuple[int, ...]


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

    def fill(self, requests: Sequence[RequestTokens]) -> Tensor:
        """Describe the next batch in place: the requests' tokens one after another, then padded rows.

        Args:
            requests: What each request brings; its keys and values of earlier positions are in the cache
                already.

        Returns:
            The position of each token, int64 [T] on the cache's device, without padded rows.

        Raises:
            UsageError: The batch does not fit the preallocated tensors, or a request has too few or unknown
                blocks.
        """
        self._check(requests)
        positions = [torch.arange(r.start, r.start + r.count, device="cpu") for r in requests]
        positions_T = torch.cat(positions) if positions else torch.zeros(0, dtype=torch.int64, device="cpu")
        slots = [self._slots(r, position) for r, position in zip(requests, positions, strict=True)]
        owners = torch.tensor([r.count for r in requests], dtype=torch.int64, device="cpu")
        meta, count = self.metadata, len(positions_T)
        meta.slots_T.fill_(-1)
        meta.requests_T.zero_()
        meta.contexts_T.zero_()
        if count:
            meta.slots_T[:count].copy_(torch.cat(slots))
            meta.requests_T[:count].copy_(torch.repeat_interleave(torch.arange(len(requests), device="cpu"), owners))
            meta.contexts_T[:count].copy_(positions_T + 1)
        for row, request in enumerate(requests):
            blocks = torch.tensor(request.blocks, dtype=torch.int32, device="cpu")
            meta.block_table_RM[row, : len(blocks)].copy_(blocks)
        return positions_T.to(meta.slots_T.device)

    @contextmanager
    def use(self) -> Iterator["AttentionContext"]:
        """Make this the context that the attention op works in, for the length of a `with` block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    def _slots(self, request: RequestTokens, positions: Tensor) -> Tensor:
        size = self.cache.block_size
        blocks = torch.tensor(request.blocks, dtype=torch.int64, device="cpu")
        return blocks[positions // size] * size + positions % size

    def _check(self, requests: Sequence[RequestTokens]) -> None:
        tokens = sum(r.count for r in requests)
        capacity = len(self.metadata.slots_T)
        rows, width = self.metadata.block_table_RM.shape
        if tokens > capacity or len(requests) > rows or any(len(r.blocks) > width for r in requests):
            raise UsageError(
                f"A batch of {tokens} tokens in {len(requests)} requests does not fit the attention metadata",
                f"it was allocated for {capacity} tokens, {rows} requests and {width} blocks per request",
                "allocate larger metadata",
            )
        if any(r.start < 0 or r.count < 0 for r in requests):
            raise UsageError("A request starts at or brings a negative number of tokens", "", "count from 0")
        if any(len(r.blocks) * self.cache.block_size < r.start + r.count for r in requests):
            raise UsageError("A request has too few KV blocks for its tokens", "", "allocate more blocks to it")
        if any(not 0 <= b < self.cache.num_blocks for b in chain.from_iterable(r.blocks for r in requests)):
            raise UsageError(
                "A request names a KV block that does not exist",
                f"the cache has blocks 0 to {self.cache.num_blocks - 1}",
                "take block numbers from the cache's own range",
            )


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
