"""The forward context: which batch descriptor the current step runs under, and whether graphs are being recorded.

Wrapped pieces and ops that break a graph read it. It belongs to a thread: a forward on another thread runs without
graphs. Reading it is on the path of every piece of every step, so a descriptor is known there by a small number.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from precast.capture.backend import GraphBackend
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode

__all__ = ["FORWARD", "ForwardContext", "current", "descriptor_number", "forward_context"]

_NUMBERS: dict[BatchDescriptor, int] = {}


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What the current step runs under.

    Attributes:
        descriptor: The batch, as dispatch chose it.
        recorder: What records graphs; only the manager's capture phase sets it, so that nothing is captured later.
    """

    descriptor: BatchDescriptor
    recorder: GraphBackend | None = None

    @property
    def mode(self) -> CUDAGraphMode:
        """Runtime mode: NONE, PIECEWISE or FULL."""
        return self.descriptor.mode


class _Forward(threading.local):
    """The forward of this thread.

    Attributes:
        context: The innermost context, or None outside of any.
        pieces: Number of the descriptor whose piece graphs are replayed, in mode PIECEWISE. Else None: a piece runs
            without a graph of its own outside of any context, in mode NONE, and in mode FULL, where an outer graph
            records it (seed step 5: a wrapper acts in its own runtime mode only).
    """

    context: ForwardContext | None = None
    pieces: int | None = None


FORWARD = _Forward()  # read its attributes; only `forward_context` sets them


def current() -> ForwardContext | None:
    """Return the context that this thread's forward runs under; None outside of any."""
    return FORWARD.context


def descriptor_number(descriptor: BatchDescriptor) -> int:
    """Return the small number of a descriptor: equal ones have the same, for as long as the process lives."""
    return _NUMBERS.setdefault(descriptor, len(_NUMBERS))


@contextmanager
def forward_context(descriptor: BatchDescriptor, recorder: GraphBackend | None = None) -> Iterator[ForwardContext]:
    """Run a forward under a descriptor; contexts nest, and the outer one is back after any way out.

    Args:
        descriptor: The batch; its mode is the runtime mode.
        recorder: What missing graphs are recorded with; None, as always outside of the capture phase, for nothing.
    """
    context = ForwardContext(descriptor, recorder)
    outer = FORWARD.context, FORWARD.pieces
    FORWARD.context = context
    FORWARD.pieces = descriptor_number(descriptor) if descriptor.mode is CUDAGraphMode.PIECEWISE else None
    try:
        yield context
    finally:
        FORWARD.context, FORWARD.pieces = outer
