"""The capture phase: records the graphs of every descriptor, in order, and tells what each took.

All PIECEWISE first, then all FULL, the largest first in each: pieces need more memory between graphs, so that FULL
graphs fit into what the pool has already (seed step 8). Nothing is run per size but what is recorded: kernels load
inside a recording, so that one warm-up for each mode and compile range is enough. Its purpose is what a recording
cannot do or should not own: kernels that are compiled or tuned at their first call, and workspaces of libraries.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from time import perf_counter
from typing import Any, Protocol

import torch

from precast.capture.backend import GraphBackend
from precast.capture.collecting import collection_held_off
from precast.capture.context import forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.full import FullGraphs
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphHolder
from precast.capture.plan import CapturedGraph, CapturePlan
from precast.capture.state import BatchShape, GraphState
from precast.errors import CaptureError, GraphMemoryError

__all__ = ["CapturePhase", "CaptureProgress", "CaptureReport", "GraphModel", "capture_shape"]


class GraphModel(Protocol):
    """A model whose pieces are wrapped."""

    @property
    def pieces(self) -> Sequence[GraphHolder]:
        """What holds graphs inside the model: each wrapped piece, also those that share their code."""
        ...

    def forward(self, *inputs: Any) -> Any:
        """Run the whole forward, with the wrapped pieces inside."""
        ...

    def pieces_only(self, *inputs: Any) -> Any:
        """Run the same wrapped pieces in the same order, without splitting ops that need not run for a capture.

        Such an op has a result that nothing uses, and writes only into tensors that it was given; any other op runs.
        Every value lives as long as in `forward`, also where its last use is an op that does not run: see
        `precast.capture.pieces` for why.
        """
        ...


class CaptureProgress(Protocol):
    """Receives the stages of a capture; the library's progress has this shape."""

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of `total` items."""
        ...

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Report that the item `label` took `seconds` and `size` bytes."""
        ...

    def finish(self, stage: str) -> None:
        """End a stage."""
        ...

    def note(self, text: str) -> None:
        """Tell one line that belongs to no stage."""
        ...


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What a capture did.

    Attributes:
        captured: Each descriptor with its graphs, seconds and bytes, in capture order.
        phases: Seconds of `prepare`, `warm-up`, `piecewise`, `full` and `finish`, as far as there were any; their sum
            is `seconds` but for the steps between them.
        seconds: Wall time of the whole.
        size: Bytes of free device memory that it took: graphs and pool, and what the warm-up left, such as loaded
            kernels and workspaces of libraries.
    """

    captured: tuple[CapturedGraph, ...]
    phases: dict[str, float]
    seconds: float
    size: int

    def graphs(self, mode: CUDAGraphMode) -> int:
        """Return the number of graphs of PIECEWISE or of FULL."""
        return sum(c.graphs for c in self.captured if c.descriptor.mode is mode)

    def bytes_of(self, mode: CUDAGraphMode) -> int:
        """Return the bytes that the graphs of PIECEWISE or of FULL took."""
        return sum(c.size for c in self.captured if c.descriptor.mode is mode)


def capture_shape(descriptor: BatchDescriptor, limits: BatchLimits) -> BatchShape:
    """Return the batch that a descriptor is captured with (vllm-behaviour.md step 8, dummy batch).

    The tokens are spread over as many requests as there can be. Attention runs inside a FULL graph, so its launches
    must do for the longest request that the graph may serve: a mixed batch may be one request.
    """
    reqs = descriptor.num_reqs or min(descriptor.num_tokens, limits.max_num_seqs)
    longest = None
    if descriptor.mode is CUDAGraphMode.FULL:
        longest = descriptor.max_query_len or descriptor.uniform_token_count or descriptor.num_tokens
    return BatchShape.spread(descriptor.num_tokens, reqs, longest)


class CapturePhase:
    """One run of the capture phase; it records into a model's pieces and a manager's FULL graphs.

    Args:
        model: The model.
        state: Buffers that the graphs read.
        full: Where FULL graphs are kept; holds none yet.
        backend: What records.
        limits: Limits of a batch.
        ranges: Compile ranges, both ends included; sizes outside of all of them count as one more.

    Attributes:
        captured: What is captured so far.
        inputs: The forward's arguments by PIECEWISE descriptor, as captured.
    """

    def __init__(
        self,
        model: GraphModel,
        state: GraphState,
        full: FullGraphs,
        backend: GraphBackend,
        limits: BatchLimits,
        ranges: Sequence[tuple[int, int]],
    ) -> None:
        self.captured: list[CapturedGraph] = []
        self.inputs: dict[BatchDescriptor, tuple[torch.Tensor, ...]] = {}
        self._model = model
        self._state = state
        self._full = full
        self._backend = backend
        self._limits = limits
        self._ranges = sorted(ranges)
        self._phases: dict[str, float] = {}
        self._current: BatchDescriptor | None = None

    def run(self, plan: CapturePlan, progress: CaptureProgress) -> CaptureReport:
        """Capture every descriptor of a plan.

        After an error nothing is being recorded, garbage collection and stream are as before; graphs recorded so far
        are still there, for the caller to release.

        Raises:
            GraphMemoryError: The device has too little memory.
            CaptureError: There are PIECEWISE descriptors, and no wrapped piece recorded a graph.
            Exception: What the model raised.
        """
        started = perf_counter()
        progress.note(
            f"capturing {_count(plan.graphs, 'graph')}: about {plan.seconds:.1f} s and {_mebibytes(plan.size)}"
        )
        try:
            with collection_held_off(), self._state.use(), torch.no_grad():
                self._phases["prepare"] = perf_counter() - started
                free = self._backend.free_bytes()
                for mode, group in groupby((p.descriptor for p in plan.planned), key=lambda d: d.mode):
                    self._capture_mode(mode, list(group), progress)
                leaving = perf_counter()
            self._backend.synchronize()
        except BaseException as error:
            wanted = self._backend.wanted_bytes(error)
            if wanted is None:
                raise
            raise self._no_memory(plan, wanted) from error
        self._phases["finish"] = perf_counter() - leaving
        taken = max(free - self._backend.free_bytes(), 0)
        return CaptureReport(tuple(self.captured), dict(self._phases), perf_counter() - started, taken)

    def _capture_mode(self, mode: CUDAGraphMode, order: list[BatchDescriptor], progress: CaptureProgress) -> None:
        name = mode.name.lower()
        with self._phase("warm-up"), self._backend.side_stream():
            self._warm_up(order)
        stage = f"capture {name}"
        record: Callable[[BatchDescriptor], int]
        record = self._record_pieces if mode is CUDAGraphMode.PIECEWISE else self._record_full
        progress.start(stage, len(order))
        try:
            # a second time, since that gives back the memory of the warm-up, which no recording could use
            with self._phase(name), self._backend.side_stream():
                for descriptor in order:
                    one = self._measured(descriptor, record)
                    self.captured.append(one)
                    progress.advance(stage, _label(descriptor), one.seconds, one.size)
        finally:
            progress.finish(stage)
        self._current = None

    def _warm_up(self, order: Sequence[BatchDescriptor]) -> None:
        """Run the largest descriptor of each compile range once, without graphs.

        Of equally large ones that is the one with the most adapters, so that the kernels of adapters have run too.
        """
        warmed = set()
        for descriptor in sorted(order, key=lambda d: (d.num_tokens, d.num_active_loras), reverse=True):
            span = next((r for r in self._ranges if r[0] <= descriptor.num_tokens <= r[1]), None)
            if span in warmed:
                continue
            warmed.add(span)
            self._current = descriptor
            plain = replace(descriptor, mode=CUDAGraphMode.NONE)
            with forward_context(plain):
                self._state.describe(capture_shape(descriptor, self._limits))
                self._model.forward(*self._state.inputs(descriptor.num_tokens))

    def _measured(self, descriptor: BatchDescriptor, record: Callable[[BatchDescriptor], int]) -> CapturedGraph:
        self._current = descriptor
        free, started = self._backend.free_bytes(), perf_counter()
        graphs = record(descriptor)
        seconds = perf_counter() - started
        return CapturedGraph(descriptor, graphs, seconds, max(free - self._backend.free_bytes(), 0))

    def _record_pieces(self, descriptor: BatchDescriptor) -> int:
        before = sum(piece.graphs for piece in self._model.pieces)
        inputs = self._state.inputs(descriptor.num_tokens)
        with forward_context(descriptor, self._backend):
            self._state.describe(capture_shape(descriptor, self._limits))
            self._model.pieces_only(*inputs)
        recorded: int = sum(piece.graphs for piece in self._model.pieces) - before
        if not recorded:
            raise CaptureError(
                "no piece recorded a graph",
                "mode PIECEWISE captures wrapped pieces, and the model has none that ran",
                "wrap the model's pieces, or take a mode without PIECEWISE",
            )
        self.inputs[descriptor] = inputs
        return recorded

    def _record_full(self, descriptor: BatchDescriptor) -> int:
        inputs = self._state.inputs(descriptor.num_tokens)
        with forward_context(descriptor):
            self._state.describe(capture_shape(descriptor, self._limits))
            self._full.record(self._backend, descriptor, lambda: self._model.forward(*inputs))
        return 1

    def _no_memory(self, plan: CapturePlan, wanted: int) -> GraphMemoryError:
        """Say at which descriptor the memory ended, with the bytes, and which fit."""
        free = self._backend.free_bytes()
        rest = plan.refined(self.captured).planned[len(self.captured) :]
        failed = self._current or rest[0].descriptor
        need = max(wanted, rest[0].size if rest else 1)
        fit = [c.descriptor for c in self.captured]
        what = f"too little device memory to capture {failed.mode.name} graphs of {_label(failed)}"
        why = f"about {_mebibytes(need)} more are needed and {_mebibytes(free)} are free; {_fitting(fit)}"
        hint = "capture fewer or smaller sizes (`--max-cudagraph-capture-size`), or give the KV cache less memory"
        details = {
            "failed": _facts(failed), "need_bytes": need, "free_bytes": free, "fit": [_facts(d) for d in fit],
        }  # fmt: skip
        return GraphMemoryError(what, why, hint, details=details)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + perf_counter() - started


def _label(descriptor: BatchDescriptor) -> str:
    """Name a descriptor in a progress line or an error: tokens, and what else tells it from its neighbors."""
    parts = [_count(descriptor.num_tokens, "token")]
    if descriptor.num_reqs is not None:
        parts.append(_count(descriptor.num_reqs, "request"))
    if descriptor.num_active_loras:
        parts.append(_count(descriptor.num_active_loras, "adapter"))
    if descriptor.num_ubatches > 1:
        parts.append(_count(descriptor.num_ubatches, "microbatch", "es"))
    return ", ".join(parts)


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else plural}"


def _fitting(fit: Sequence[BatchDescriptor]) -> str:
    """Say which sizes fit, as ranges of tokens of each mode."""
    if not fit:
        return "none fits"
    groups = [(mode.name, [d.num_tokens for d in ds]) for mode, ds in groupby(fit, key=lambda d: d.mode)]
    return "; ".join(f"{name} of {max(ns)} down to {min(ns)} tokens fit ({len(ns)})" for name, ns in groups)


def _facts(descriptor: BatchDescriptor) -> dict[str, object]:
    return {"mode": descriptor.mode.name, "num_tokens": descriptor.num_tokens, "num_reqs": descriptor.num_reqs}


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
