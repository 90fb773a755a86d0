"""Coverage: which expected batches have no graph, or a slower one than their mode has, and which sizes would help.

Also what padding costs: tokens that a graph computes beyond those of the batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from precast.capture.candidates import Candidates, candidates
from precast.capture.closing import fewest_sizes
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, Miss, choose, fits, why_none
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import Barrier, barrier, reach
from precast.capture.traffic import BatchKind, ExpectedBatch, kind_of
from precast.errors import ConfigValueError

__all__ = ["Coverage", "Padding", "PlacedBatch", "coverage"]

_EAGER = CUDAGraphMode.NONE


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """An expected batch and the graph that it gets.

    Attributes:
        batch: What dispatch is asked.
        count: How often it runs.
        kind: Decode or mixed.
        wanted: Mode that such batches were asked to run in; at least PIECEWISE, as no graph is never what is wanted.
        graph: What it runs on; None for no graph.
        reason: Why it has no graph of the mode wanted; None where it has.
        hidden: Whether a larger graph of a better mode would fit, which dispatch does not see behind a nearer one.
        best: Mode that it can have with more sizes, at best; None where it runs as wanted.
        barrier: Why no size gives it the mode wanted; None where it has that or a size does.
    """

    batch: Batch
    count: float
    kind: BatchKind
    wanted: CUDAGraphMode
    graph: BatchDescriptor | None
    reason: Miss | None = None
    hidden: bool = False
    best: CUDAGraphMode | None = None
    barrier: Barrier | None = None

    @property
    def mode(self) -> CUDAGraphMode:
        """The mode that it runs in."""
        return _EAGER if self.graph is None else self.graph.mode

    @property
    def is_hole(self) -> bool:
        """Whether it has no graph, or a slower one than wanted."""
        return bool(self.mode.value < self.wanted.value)

    @property
    def gains(self) -> bool:
        """Whether more sizes give it a better graph."""
        return self.best is not None and self.best.value > self.mode.value


@dataclass(frozen=True, slots=True)
class Padding:
    """Tokens of batches, each as often as it runs.

    Attributes:
        asked: Tokens of the batches.
        computed: Tokens that are computed for them; without a graph nothing is padded.
    """

    asked: float
    computed: float

    @property
    def padded(self) -> float:
        """Tokens computed beyond those asked for."""
        return self.computed - self.asked

    @property
    def share(self) -> float:
        """Which part of the computed tokens is padding; 0 of none."""
        return self.padded / self.computed if self.computed else 0.0


@dataclass(frozen=True)
class Coverage:
    """What the graphs of a mode and sizes are to some traffic.

    Attributes:
        graphs: The graphs.
        asked: Mode before any rule lowered it.
        batches: Every batch of the traffic, in its order.
        extra: The fewest sizes that close all holes that sizes can close.
        after: The same with these sizes added; None where there are none.
    """

    graphs: Candidates
    asked: CUDAGraphMode
    batches: tuple[PlacedBatch, ...]
    extra: tuple[int, ...] = ()
    after: "Coverage | None" = None

    @cached_property
    def holes(self) -> tuple[PlacedBatch, ...]:
        """Batches without a graph, or on a slower one than wanted."""
        return tuple(placed for placed in self.batches if placed.is_hole)

    @property
    def is_full(self) -> bool:
        """Whether every batch runs as wanted."""
        return not self.holes

    @property
    def closes_all(self) -> bool:
        """Whether every batch runs as wanted once the extra sizes are added."""
        return (self.after or self).is_full

    @cached_property
    def padding(self) -> Padding:
        """What padding costs over all batches."""
        asked = sum(placed.count * placed.batch.num_tokens for placed in self.batches)
        return Padding(asked, sum(placed.count * _computed(placed) for placed in self.batches))

    def lost(self) -> tuple[BatchDescriptor, ...]:
        """Return FULL graphs that sizes round up to and that are left out: they would be above the largest size.

        The rule is that of vllm-behaviour.md step 8. Decode steps that such a graph was for run on another, or on none.
        """
        graphs, limits = self.graphs, self.graphs.limits
        if not graphs.mode.is_pair or limits.adaptive_verification or not graphs.sizes:
            return ()
        rounded = {(-(-size // length), length) for size in graphs.sizes for length, _ in limits.decode_tiers}
        return tuple(
            BatchDescriptor(CUDAGraphMode.FULL, reqs * length, reqs, length)
            for reqs, length in sorted(rounded)
            if reqs * length > graphs.sizes[-1] and reqs <= limits.max_num_seqs
        )


def coverage(
    mode: CUDAGraphMode,
    sizes: Sequence[int],
    limits: BatchLimits,
    traffic: Iterable[ExpectedBatch],
    *,
    asked: CUDAGraphMode | None = None,
) -> Coverage:
    """Say what the graphs of a mode and sizes are to some traffic, and which sizes would close its holes.

    Args:
        mode: Mode of the graphs, as rules left it; may be a pair.
        sizes: Capture sizes, as `capture_sizes` returns them.
        limits: Limits of a batch.
        traffic: The batches.
        asked: Mode before any rule; None where none lowered it.

    Raises:
        ConfigValueError: A size is below 1, or above the budget.
    """
    if sizes and max(sizes) > limits.max_num_batched_tokens:
        most = limits.max_num_batched_tokens
        raise ConfigValueError(
            f"a capture size cannot be {max(sizes)}", f"a step has at most {most} tokens", "leave that size out"
        )
    expected, asked = tuple(traffic), asked or mode
    found = _placed(mode, sizes, limits, expected, asked)
    if not any(placed.gains for placed in found.holes):
        return found
    extra = fewest_sizes(mode, found.graphs.sizes, limits, (e.batch for e in expected))
    after = _placed(mode, (*sizes, *extra), limits, expected, asked)
    return Coverage(found.graphs, asked, found.batches, extra, after)


def _placed(
    mode: CUDAGraphMode,
    sizes: Sequence[int],
    limits: BatchLimits,
    expected: tuple[ExpectedBatch, ...],
    asked: CUDAGraphMode,
) -> Coverage:
    graphs = candidates(mode, sizes, limits)
    return Coverage(graphs, asked, tuple(_place(graphs, asked, one) for one in expected))


def _place(graphs: Candidates, asked: CUDAGraphMode, expected: ExpectedBatch) -> PlacedBatch:
    batch, limits = expected.batch, graphs.limits
    kind = kind_of(batch, limits)
    wanted = asked.decode_mode if kind is BatchKind.DECODE else asked.mixed_mode
    wanted = CUDAGraphMode.PIECEWISE if wanted is _EAGER else wanted
    graph = choose(graphs, batch)
    placed = PlacedBatch(batch, expected.count, kind, wanted, graph)
    if not placed.is_hole:
        return placed
    best = reach(graphs.mode, graphs.sizes, limits, batch)
    obstacle = barrier(graphs.mode, asked, limits, batch) if best.value < wanted.value else None
    reason = why_none(graphs, batch, None if graph is None else wanted)
    return PlacedBatch(batch, expected.count, kind, wanted, graph, reason, _is_hidden(graphs, placed), best, obstacle)


def _is_hidden(graphs: Candidates, placed: PlacedBatch) -> bool:
    batch, case = placed.batch, graphs.lora_case(placed.batch.num_active_loras)
    if not graphs.seen(batch.num_tokens, batch.num_active_loras):
        return False  # no graph has so many tokens
    return any(
        descriptor.num_active_loras == case and descriptor.mode.value > placed.mode.value and fits(descriptor, batch)
        for descriptor in graphs.capture_order
    )


def _computed(placed: PlacedBatch) -> int:
    return placed.batch.num_tokens if placed.graph is None else placed.graph.num_tokens
