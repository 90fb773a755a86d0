"""What graphs are captured over: the buffers of a serving process, which stay where they are while graphs live."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BatchShape", "GraphState"]


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A batch, without its values.

    Attributes:
        query_lens: New tokens of each request.
        num_tokens: Rows that the step computes: the requests' tokens, then padded rows.
        max_query_len: Most tokens of a request that kernels are launched for; None for the longest of `query_lens`. A
            FULL graph keeps the launches of its capture, so its capture names the longest request it may ever run.
    """

    query_lens: tuple[int, ...]
    num_tokens: int
    max_query_len: int | None = None

    @classmethod
    def spread(cls, num_tokens: int, num_reqs: int, max_query_len: int | None = None) -> "BatchShape":
        """Spread tokens evenly over requests; the last ones take what is left over (vllm-behaviour.md step 8)."""
        each, rest = divmod(num_tokens, num_reqs)
        return cls((each,) * (num_reqs - rest) + (each + 1,) * rest, num_tokens, max_query_len)


class GraphState(Protocol):
    """Inputs, KV cache and attention metadata of a serving process, allocated once and filled in place."""

    def inputs(self, num_tokens: int) -> "tuple[Tensor, ...]":
        """Return the forward's arguments for so many tokens: the first rows of buffers that never move."""
        ...

    def describe(self, shape: BatchShape) -> None:
        """Fill inputs and metadata for a capture: lengths as the shape says, every row marked as padded."""
        ...

    def fill(self, shape: BatchShape, seed: int) -> None:
        """Fill inputs, metadata and the cache with a batch whose numbers can be compared; equal seeds fill equally.

        Rows after the requests' tokens are padded rows.
        """
        ...

    def use(self) -> AbstractContextManager[object]:
        """Make this the state in which the splitting ops run."""
        ...

    def written(self, shape: BatchShape) -> "Sequence[Tensor]":
        """Return copies of what the last batch wrote to the cache, for a comparison."""
        ...
