"""Breakable graphs: a forward recorded in segments around marked ops, with no compiler (seed step 10).

One recording runs the whole forward. A marked op ends the segment, runs as outside of graphs, and the next segment
begins; a replay replays the segments and calls the ops again, each with the arguments of the recording. So what an op
was called with is fixed, plain values and containers too; what changes from step to step it reads from the forward
context or from buffers that are filled in place. Segments hand tensors on by where they lie: an op writes into tensors
that it was given, because what it returns is not there when a segment is replayed.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

from precast.capture.backend import Graph, GraphBackend
from precast.capture.breaks import Break, check_result
from precast.capture.context import FORWARD
from precast.capture.modes import CUDAGraphMode
from precast.errors import CaptureError

__all__ = ["SegmentedGraph", "eager_break_during_capture", "is_segment_recorded", "record_segments"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Thread(threading.local):
    """The recording of this thread; None outside of any."""

    recording: "_Recording | None" = None


_THREAD = _Thread()


def eager_break_during_capture(function: Callable[P, R]) -> Callable[P, R]:
    """Mark an op that breaks a breakable graph; put it outside of any other decorator.

    The op runs as it is where nothing is recorded in segments on this thread, inside an op that breaks already, in mode
    FULL, and where `torch.compile` traces it (vllm-behaviour.md step 10).

    Args:
        function: The op. It writes into tensors that it is given, and returns None or some of them.
    """

    @functools.wraps(function)
    def breaking(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # first, so that a trace sees nothing of the rest
            return function(*args, **kwargs)
        recording = _THREAD.recording
        if recording is None or not recording.running or _is_full():
            return function(*args, **kwargs)
        return recording.cut(function, args, kwargs)

    return breaking


def is_segment_recorded() -> bool:
    """Tell whether this thread records a segment now, so that what it launches does not run."""
    return _THREAD.recording is not None and _THREAD.recording.running


def record_segments(backend: GraphBackend, function: Callable[[], T]) -> "tuple[SegmentedGraph, T]":
    """Record what a function launches, in segments around the marked ops that it calls.

    Args:
        backend: What records; call this inside its `side_stream`.
        function: The forward. Its marked ops run once.

    Returns:
        The graph, and what the function returned: strong references, as of `GraphBackend.record`.

    Raises:
        CaptureError: Something is being recorded already, an op returned a result of its own, or the function went on
            after an op had failed.
        Exception: What the function, an op or the device said. Nothing is being recorded then, nothing of the recording
            is left, and the next one may begin.
    """
    if _THREAD.recording is not None or backend.is_recording():
        raise CaptureError(
            "a graph is being recorded already",
            "recordings do not nest, also not inside an op that breaks one",
            "end that recording first",
        )
    recording = _Recording(backend)
    _THREAD.recording = recording
    try:
        with _empty_segments_allowed():
            return recording.run(function)
    except BaseException:
        recording.discard()
        raise
    finally:
        _THREAD.recording = None


class SegmentedGraph:
    """A graph of segments with ops between them; replayed and reset as one.

    Args:
        parts: Segments and ops, in order.

    Attributes:
        graphs: How many segments there are.
        ops: Names of the ops that broke the graph, in order.
    """

    __slots__ = ("_runs", "_segments", "graphs", "ops")

    def __init__(self, parts: "list[Graph | Break]") -> None:
        self._segments = [part for part in parts if not isinstance(part, Break)]
        self._runs: tuple[Callable[[], None], ...] = tuple(
            part.run if isinstance(part, Break) else part.replay for part in parts
        )
        self.graphs = len(self._segments)
        self.ops = tuple(part.name for part in parts if isinstance(part, Break))

    def replay(self) -> None:
        """Replay the segments and call the ops, on the current stream."""
        for run in self._runs:
            run()

    def reset(self) -> None:
        """Free segments and arguments; it cannot be replayed afterwards. Twice is harmless."""
        for segment in self._segments:
            segment.reset()
        self._segments = []
        self._runs = (_refuse,)


class _Recording:
    """One recording under way.

    Attributes:
        running: Whether a segment is being recorded; not so while an op runs, and after an error.
    """

    def __init__(self, backend: GraphBackend) -> None:
        self.running = False
        self._backend = backend
        self._parts: list[Graph | Break] = []
        self._segment: Graph | None = None
        self._failed: tuple[str, BaseException] | None = None

    def run(self, function: Callable[[], T]) -> tuple[SegmentedGraph, T]:
        self._begin()
        outputs = function()
        if self._failed is not None:
            name, error = self._failed
            raise CaptureError(
                f"the recording broke off at `{name}`",
                f"it failed, and the forward went on: {error}",
                "let the error through, or mend the op",
            ) from error
        self._end()
        return SegmentedGraph(self._parts), outputs

    def cut(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run an op between two segments."""
        kept = Break.of(function, args, kwargs, self._backend.weak)
        try:
            self._end()
            result = function(*args, **kwargs)
            check_result(kept.name, result, (args, kwargs))
            self._parts.append(kept)
            self._begin()
        except BaseException as error:
            self._failed = kept.name, error
            raise
        return result

    def discard(self) -> None:
        """Stop recording, and free what was recorded."""
        self.running = False
        if self._segment is not None:
            self._backend.abandon(self._segment)
        for part in self._parts:
            if not isinstance(part, Break):
                part.reset()

    def _begin(self) -> None:
        self._segment = self._backend.begin()
        self.running = True

    def _end(self) -> None:
        segment, self._segment = self._segment, None
        self.running = False
        if segment is None:
            raise RuntimeError("no segment is being recorded")
        try:
            self._backend.end(segment)
        except BaseException:
            segment.reset()
            raise
        self._parts.append(segment)


def _is_full() -> bool:
    context = FORWARD.context
    return context is not None and context.mode is CUDAGraphMode.FULL


def _refuse() -> None:
    raise CaptureError("this graph was released", "", "capture again")


@contextmanager
def _empty_segments_allowed() -> Iterator[None]:
    """Hold back torch's warning of an empty graph: between two ops there may be nothing to record."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        yield
