"""The plan of a capture: which graphs, and about how many seconds and bytes they take.

Before anything is captured the numbers are estimates from what was measured on one H200 with pieces of an 8B model
(51 sizes, 33 pieces): they are for the order of magnitude. Once the first descriptors of a mode are captured, the rest
of that mode is estimated from them. An estimate is never zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode

__all__ = ["CapturePlan", "CapturedGraph", "PlannedGraph"]

# Of a piece, in a graph of its own and inside a FULL graph: 1,683 piece graphs took 0.9 s and 0.37 GiB, and 51 FULL
# graphs of 33 pieces and 32 attention ops 0.55 s and 0.10 GiB.
_SECONDS = {CUDAGraphMode.PIECEWISE: 0.0006, CUDAGraphMode.FULL: 0.00033}
_BYTES = {CUDAGraphMode.PIECEWISE: 236_000, CUDAGraphMode.FULL: 64_000}


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """One descriptor to capture.

    Attributes:
        descriptor: What is captured.
        graphs: Graphs that it takes: one a piece, or one.
        seconds: Estimate, above 0.
        size: Estimated bytes of device memory, above 0.
    """

    descriptor: BatchDescriptor
    graphs: int
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """One descriptor that was captured.

    Attributes:
        descriptor: What was captured.
        graphs: Graphs that it took.
        seconds: Time that it took.
        size: Bytes of free device memory that it took. The device gives memory in blocks of some MiB that later graphs
            use up, so most take 0.
    """

    descriptor: BatchDescriptor
    graphs: int
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What a capture will do, in this order.

    Attributes:
        planned: Descriptors in capture order.
    """

    planned: tuple[PlannedGraph, ...]

    @classmethod
    def estimate(cls, order: Iterable[BatchDescriptor], pieces: int) -> "CapturePlan":
        """Plan a capture before anything is known of it.

        Args:
            order: Descriptors in capture order.
            pieces: Wrapped pieces of the model.
        """
        return cls(tuple(_estimate(descriptor, max(pieces, 1)) for descriptor in order))

    @property
    def graphs(self) -> int:
        """Graphs of all descriptors."""
        return sum(p.graphs for p in self.planned)

    @property
    def seconds(self) -> float:
        """Estimated seconds of all descriptors."""
        return sum(p.seconds for p in self.planned)

    @property
    def size(self) -> int:
        """Estimated bytes of all descriptors."""
        return sum(p.size for p in self.planned)

    def refined(self, captured: Sequence[CapturedGraph]) -> "CapturePlan":
        """Return the plan with what was captured so far, and the rest of each mode estimated from it.

        The first, and largest, of a mode pays for what all share: kernels that are loaded, and most of the pool. So the
        rest is estimated from those after it, as soon as there are any.

        Args:
            captured: The first descriptors of the plan, as captured.
        """
        rest = list(self.planned[len(captured) :])
        for mode in {p.descriptor.mode for p in rest}:
            done = [c for c in captured if c.descriptor.mode is mode]
            done = done[1:] or done
            if done:
                seconds = sum(c.seconds for c in done) / len(done)
                size = sum(c.size for c in done) // len(done)
                rest = [_refine(p, seconds, size) if p.descriptor.mode is mode else p for p in rest]
        taken = (PlannedGraph(c.descriptor, c.graphs, max(c.seconds, 1e-6), max(c.size, 1)) for c in captured)
        return CapturePlan((*taken, *rest))


def _estimate(descriptor: BatchDescriptor, pieces: int) -> PlannedGraph:
    mode = descriptor.mode
    graphs = pieces if mode is CUDAGraphMode.PIECEWISE else 1
    return PlannedGraph(descriptor, graphs, _SECONDS[mode] * pieces, _BYTES[mode] * pieces)


def _refine(planned: PlannedGraph, seconds: float, size: int) -> PlannedGraph:
    """Take measured numbers; of bytes that measure as none, a block not yet used up, keep the estimate."""
    return replace(planned, seconds=max(seconds, 1e-6), size=size or planned.size)
