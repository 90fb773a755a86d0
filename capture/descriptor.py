"""The batch descriptor: what one CUDA graph was captured for, or how one step runs (seed steps 8 and 9)."""

from dataclasses import dataclass

from precast.capture.modes import CUDAGraphMode

__all__ = ["BatchDescriptor"]


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """The shape of a batch as graphs see it.

    Attributes:
        mode: NONE, PIECEWISE or FULL; never a pair.
        num_tokens: Tokens, padded rows included; of NONE the batch's own count.
        num_reqs: Request slots; None where a graph holds nothing per request, so that any number fits.
        uniform_token_count: Tokens that every request brings; None where requests may differ.
        max_query_len: Most tokens that a request may bring; None where nothing limits it.
        num_active_loras: LoRA adapters that kernels are launched for; 0 for none.
        num_ubatches: Microbatches that the batch is split into.
    """

    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_token_count: int | None = None
    max_query_len: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1
