"""The graph manager: captures every graph that dispatch may ask for, then runs each step on one of them.

Capture is a phase that ends. Only it records graphs, so a graph that is missing afterwards stays missing: such a step
runs without one and is counted (seed steps 8 and 9; vllm-behaviour.md W36). One thread captures and runs.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from precast.capture.backend import GraphBackend
from precast.capture.candidates import Candidates
from precast.capture.context import forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, Dispatcher
from precast.capture.full import FullGraphs
from precast.capture.modes import CUDAGraphMode
from precast.capture.phase import CapturePhase, CaptureProgress, CaptureReport, GraphModel, capture_shape
from precast.capture.plan import CapturedGraph, CapturePlan
from precast.capture.state import GraphState
from precast.errors import CaptureError

__all__ = ["Agree", "CaptureProgress", "CaptureReport", "GraphManager", "GraphModel", "RunCounts"]

# Agrees with other ranks: takes the batch, what this rank's dispatch found, and dispatch itself, to ask it again for
# the batch that was agreed; returns the descriptor to run.
Agree = Callable[[Batch, BatchDescriptor, Callable[..., BatchDescriptor]], BatchDescriptor]


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What ran so far.

    Attributes:
        piecewise: Steps whose pieces were replayed.
        full: Steps that were one graph.
        none: Steps that ran without graphs, as dispatch said.
        uncaptured: Steps whose graph was missing, and calls of single pieces whose graph was missing; they ran without.
        late_captures: Graphs that appeared after the capture phase.
    """

    piecewise: int = 0
    full: int = 0
    none: int = 0
    uncaptured: int = 0
    late_captures: int = 0


class GraphManager:
    """Graphs of one model over one state.

    Args:
        model: The model, its pieces wrapped.
        state: Buffers that the graphs read; they stay where they are. `describe` is called inside a forward context,
            where `current().descriptor` tells adapters and microbatches.
        candidates: What to capture.
        backend: What records graphs; one manager has it for itself.
        ranges: Compile ranges of the model, both ends included; a warm-up runs once for each.
        agree: Agrees with other data-parallel ranks between dispatch and run; None for a rank of its own.

    Attributes:
        dispatcher: Finds the graph of a batch; counts what it found.
    """

    def __init__(
        self,
        model: GraphModel,
        state: GraphState,
        candidates: Candidates,
        backend: GraphBackend,
        *,
        ranges: Sequence[tuple[int, int]] = (),
        agree: Agree | None = None,
    ) -> None:
        self.dispatcher = Dispatcher(candidates)
        self._model = model
        self._state = state
        self._candidates = candidates
        self._backend = backend
        self._ranges = tuple(ranges)
        self._agree = agree
        self._full = FullGraphs()
        self._inputs: dict[BatchDescriptor, tuple[torch.Tensor, ...]] = {}
        self._captured: tuple[CapturedGraph, ...] = ()
        self._graphs = 0
        self._steps = dict.fromkeys(("piecewise", "full", "none", "uncaptured"), 0)

    def plan(self) -> CapturePlan:
        """Return what a capture does; once it was done, with the measured numbers."""
        pieces = -(-len(self._model.pieces) // max(len(self._ranges), 1))  # each compile range has its own
        return CapturePlan.estimate(self._candidates.capture_order, pieces).refined(self._captured)

    def capture(self, progress: CaptureProgress | None = None) -> CaptureReport:
        """Capture every candidate: all PIECEWISE, then all FULL, the largest first.

        After an error everything is as before the call, and all that was captured is released.

        Args:
            progress: Told of the plan, and of each descriptor.

        Raises:
            CaptureError: Graphs are captured already, or no piece recorded one.
            GraphMemoryError: The device has too little memory; the error says where it ended, and which sizes fit.
            Exception: What the model raised.
        """
        if self.dispatcher.enabled:
            raise CaptureError("graphs are captured already", "", "call `release` first")
        limits = self._candidates.limits
        phase = CapturePhase(self._model, self._state, self._full, self._backend, limits, self._ranges)
        try:
            report = phase.run(self.plan(), progress or _Silent())
        except BaseException as error:
            self._release_after(error)
            raise
        self._inputs = phase.inputs
        self._captured = report.captured
        self._graphs = self._held()
        self.dispatcher.enable()
        return report

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchDescriptor:
        """Return the descriptor that a batch runs under, agreed with the other ranks if there are any.

        The arguments are those of `Dispatcher.dispatch`.
        """
        batch = num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len, num_ubatches
        found = self.dispatcher.dispatch(*batch)
        return found if self._agree is None else self._agree(Batch(*batch), found, self.dispatcher.dispatch)

    def run(self, descriptor: BatchDescriptor) -> Any:
        """Run one step; the state's buffers hold its inputs already, padded rows included.

        Args:
            descriptor: What dispatch returned. A NONE step runs the model's forward with as many rows as it has tokens.

        Returns:
            The model's outputs, for `descriptor.num_tokens` rows. Those of a graph are valid until the next step.
        """
        mode = descriptor.mode
        if mode is CUDAGraphMode.FULL and descriptor in self._full:
            self._steps["full"] += 1
            return self._full.replay(descriptor)
        inputs = self._inputs.get(descriptor)
        if inputs is None:
            self._steps["none" if mode is CUDAGraphMode.NONE else "uncaptured"] += 1
            descriptor = replace(descriptor, mode=CUDAGraphMode.NONE)
            inputs = self._state.inputs(descriptor.num_tokens)
        else:
            self._steps["piecewise"] += 1
        with torch.no_grad(), self._state.use(), forward_context(descriptor):
            return self._model.forward(*inputs)

    def run_idle(self, descriptor: BatchDescriptor) -> None:
        """Run a step of padded rows alone: this rank has no work, but layers of the other ranks wait for it.

        Args:
            descriptor: What dispatch returned for a batch of 0 tokens. With 0 tokens no rank has work and nothing runs.
        """
        if descriptor.num_tokens == 0:
            return
        with torch.no_grad(), self._state.use(), forward_context(descriptor):
            self._state.describe(capture_shape(descriptor, self._candidates.limits))
        self.run(descriptor)

    def counts(self) -> RunCounts:
        """Return what ran so far."""
        missing = sum(piece.uncaptured for piece in self._model.pieces)
        counts = RunCounts(**self._steps, late_captures=self._held() - self._graphs)
        return replace(counts, uncaptured=counts.uncaptured + missing)

    def release(self) -> None:
        """Free graphs and pool; twice is harmless. Every batch is NONE then, until `capture` is called again."""
        self.dispatcher.disable()
        self._backend.synchronize()
        for piece in self._model.pieces:
            piece.release()
        self._full.release()
        self._inputs = {}
        self._captured = ()
        self._graphs = 0
        self._backend.release()

    def _held(self) -> int:
        held: int = sum(piece.graphs for piece in self._model.pieces)
        return held + len(self._full)

    def _release_after(self, error: BaseException) -> None:
        """Release what a failed capture left. Frames in tracebacks hold tensors of the pool, so they are cleared."""
        seen: BaseException | None = error
        while seen is not None:
            traceback.clear_frames(seen.__traceback__)
            seen = seen.__cause__ or seen.__context__
        try:
            self.release()
        except Exception as more:  # noqa: BLE001 - the device is lost, say; what is told is why the capture failed
            error.add_note(f"releasing the graphs failed too: {more}")


class _Silent:
    """A progress that says nothing."""

    def start(self, stage: str, total: int) -> None:
        """Ignore."""

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Ignore."""

    def finish(self, stage: str) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""
