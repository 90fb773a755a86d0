"""Holes: batches that do not run as wanted, put together by what they have in common, as few lines as tell it all."""

from collections.abc import Iterable
from dataclasses import dataclass

from precast.capture.coverage import PlacedBatch
from precast.capture.dispatch import Miss
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import Barrier
from precast.capture.traffic import BatchKind

__all__ = ["Hole", "Span", "holes_of", "spans"]


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers with equal steps between them.

    Attributes:
        first: The least.
        last: The most.
        step: From one to the next; 1 of a single number.
    """

    first: int
    last: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Hole:
    """Batches that do not run as wanted, for the same reason.

    Attributes:
        kind: Decode or mixed.
        runs: Mode that they run in.
        wanted: Mode that they were asked to run in.
        reason: Why they have no graph of that mode.
        hidden: Whether a larger graph would fit that dispatch does not see behind a nearer one.
        best: Mode that they can have with more sizes, at best.
        barrier: Why no size closes the hole; None where one does.
        query_len: Tokens of each request, where all batches have the same; else None.
        num_active_loras: Adapters in use.
        num_ubatches: Microbatches.
        requests: Numbers of requests, ascending.
        tokens: Numbers of tokens, ascending.
        batches: How many batches.
        count: How often they run.
    """

    kind: BatchKind
    runs: CUDAGraphMode
    wanted: CUDAGraphMode
    reason: Miss | None
    hidden: bool
    best: CUDAGraphMode | None
    barrier: Barrier | None
    query_len: int | None
    num_active_loras: int
    num_ubatches: int
    requests: tuple[Span, ...]
    tokens: tuple[Span, ...]
    batches: int
    count: float


def holes_of(batches: Iterable[PlacedBatch]) -> tuple[Hole, ...]:
    """Put the holes among some batches together, in the order in which the first of each comes.

    Args:
        batches: Placed batches; those that run as wanted are left out.
    """
    groups: dict[tuple[object, ...], list[PlacedBatch]] = {}
    for placed in batches:
        if placed.is_hole:
            groups.setdefault(_common(placed), []).append(placed)
    return tuple(_hole(group) for group in groups.values())


def spans(numbers: Iterable[int]) -> tuple[Span, ...]:
    """Return numbers as spans, ascending; each number once. Two numbers alone make a span only side by side."""
    left = sorted(set(numbers))
    found: list[Span] = []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        length = 1
        while length < len(left) and left[length] - left[length - 1] == step:
            length += 1
        if length == 1 or (length == 2 and step > 1):
            length, step = 1, 1
        found.append(Span(left[0], left[length - 1], step))
        del left[:length]
    return tuple(found)


def _common(placed: PlacedBatch) -> tuple[object, ...]:
    batch = placed.batch
    return (
        placed.kind,
        placed.mode,
        placed.wanted,
        placed.reason,
        placed.hidden,
        placed.barrier,
        placed.best,
        batch.uniform_token_count,
        batch.num_active_loras,
        batch.num_ubatches,
    )


def _hole(group: list[PlacedBatch]) -> Hole:
    one = group[0]
    return Hole(
        one.kind,
        one.mode,
        one.wanted,
        one.reason,
        one.hidden,
        one.best,
        one.barrier,
        one.batch.uniform_token_count,
        one.batch.num_active_loras,
        one.batch.num_ubatches,
        spans(placed.batch.num_reqs for placed in group),
        spans(placed.batch.num_tokens for placed in group),
        len(group),
        sum(placed.count for placed in group),
    )
