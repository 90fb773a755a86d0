"""Reach: what a batch could run on with other capture sizes, and what stands in the way of more.

Sizes can be added and never taken away, so a size that is there and serves a batch badly stays the next one.
"""

from collections.abc import Collection
from enum import StrEnum

from precast.capture.dispatch import Batch
from precast.capture.limits import BatchLimits
from precast.capture.loras import lora_case, lora_cases
from precast.capture.modes import CUDAGraphMode
from precast.capture.traffic import BatchKind, kind_of

__all__ = ["Barrier", "barrier", "reach"]


class Barrier(StrEnum):
    """Why no capture size gives a batch the graph that its mode has for such batches."""

    ABOVE_BUDGET = "a step may not have so many tokens (max_num_batched_tokens)"
    NO_LORA = "no graph serves adapters (max_loras)"
    LOWERED = "a rule lowered the mode"
    NO_GRAPHS = "mode NONE captures no graphs"
    DECODE_ONLY = "the mode captures graphs of decode steps alone"
    TOO_MANY_REQS = "no graph has slots for so many requests (max_num_seqs)"
    MICROBATCHES = "no size that could be the next is split into so many microbatches"


def reach(mode: CUDAGraphMode, sizes: Collection[int], limits: BatchLimits, batch: Batch) -> CUDAGraphMode:
    """Return the best mode that a batch can run in with these sizes and any others: FULL, PIECEWISE or NONE.

    All batches together reach their best: sizes that serve one of them can be chosen so that they hide nothing from
    another. A split batch below `ubatch_decode_tokens`, which no server makes, counts as NONE.

    Args:
        mode: Mode of the graphs; may be a pair.
        sizes: Capture sizes that there are; none is above the budget.
        limits: Limits of a batch.
        batch: The batch.
    """
    if batch.num_tokens > limits.max_num_batched_tokens or _case(batch, limits) is None:
        return CUDAGraphMode.NONE
    if _can_be_full(mode, sizes, limits, batch):
        return CUDAGraphMode.FULL
    if mode.mixed_mode is CUDAGraphMode.PIECEWISE and batch.num_ubatches == 1:
        return CUDAGraphMode.PIECEWISE
    return CUDAGraphMode.NONE


def barrier(mode: CUDAGraphMode, asked: CUDAGraphMode, limits: BatchLimits, batch: Batch) -> Barrier:
    """Say what keeps a batch from a graph, where `reach` is less than was asked for.

    Args:
        mode: Mode of the graphs, as rules left it.
        asked: Mode before any rule.
        limits: Limits of a batch.
        batch: The batch.
    """
    is_decode = kind_of(batch, limits) is BatchKind.DECODE
    had, has = ((m.decode_mode if is_decode else m.mixed_mode) for m in (asked, mode))
    found = {
        Barrier.ABOVE_BUDGET: batch.num_tokens > limits.max_num_batched_tokens,
        Barrier.NO_LORA: _case(batch, limits) is None,
        Barrier.LOWERED: had.value > has.value,
        Barrier.NO_GRAPHS: mode is CUDAGraphMode.NONE,
        Barrier.DECODE_ONLY: has is CUDAGraphMode.NONE,
        Barrier.TOO_MANY_REQS: batch.num_reqs > limits.max_num_seqs,
    }
    return next((reason for reason, holds in found.items() if holds), Barrier.MICROBATCHES)


def _case(batch: Batch, limits: BatchLimits) -> int | None:
    return lora_case(batch.num_active_loras, lora_cases(limits.lora))


def _can_be_full(mode: CUDAGraphMode, sizes: Collection[int], limits: BatchLimits, batch: Batch) -> bool:
    if CUDAGraphMode.FULL not in (mode.decode_mode, mode.mixed_mode) or batch.num_reqs > limits.max_num_seqs:
        return False
    if mode.is_pair:  # a size equal to its tokens gives a decode step a graph without any padding
        splits = _may_split(batch, limits) and not limits.adaptive_verification
        return kind_of(batch, limits) is BatchKind.DECODE and (batch.num_ubatches == 1 or splits)
    return batch.num_ubatches == 1 or (_may_split(batch, limits) and _splits_next(sizes, limits, batch.num_tokens))


def _may_split(batch: Batch, limits: BatchLimits) -> bool:
    least = max(limits.num_ubatches, limits.ubatch_decode_tokens)
    return batch.num_ubatches == limits.num_ubatches and batch.num_tokens >= least


def _splits_next(sizes: Collection[int], limits: BatchLimits, num_tokens: int) -> bool:
    """Tell whether the next size can be one that gives every request slot equally many tokens.

    Such a FULL graph of mixed batches has a twin of microbatches; below `max_num_seqs` each slot has one token.
    """
    slots = limits.max_num_seqs
    even = num_tokens if num_tokens <= slots else -(-num_tokens // slots) * slots
    return even <= limits.max_num_batched_tokens and not any(num_tokens <= size < even for size in sizes)
