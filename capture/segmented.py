"""A model whose forward is recorded in segments, for the same manager as a model of wrapped pieces.

To the manager it is a model with one piece, which is the whole forward: recorded under each PIECEWISE descriptor,
replayed under it afterwards, checked for moved inputs and released as any piece. FULL graphs record the same forward
without breaks.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

from precast.capture.backend import Graph, GraphBackend
from precast.capture.breakable import SegmentedGraph, is_segment_recorded, record_segments
from precast.capture.pieces import GraphedPiece
from precast.errors import CaptureError, ConfigValueError

__all__ = ["BreakableModel", "OpWatch"]

T = TypeVar("T")

OpWatch = Callable[[Callable[[str], None]], AbstractContextManager[object]]


class BreakableModel:
    """A forward that runs without a compiler, recorded around the ops marked with `eager_break_during_capture`.

    Args:
        forward: Takes tensors, returns a tree of tensors. Keeps nothing from call to call but in buffers that stay.
        must_break: Ops, such as `precast::paged_attention`, that must run between segments. Recorded inside one they
            would compute with the batch of the recording for ever: fast, and wrong. Needs `watch`.
        watch: Runs a block and tells the name of each op that torch dispatches in it, as
            `precast.aot.torch_seams.ops.watched` does.
        debug: Compare all that is known of the inputs at each replay, not only their addresses.

    Raises:
        ConfigValueError: Ops must break, and nothing watches them.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        *,
        must_break: Collection[str] = (),
        watch: OpWatch | None = None,
        debug: bool = False,
    ) -> None:
        if must_break and watch is None:
            raise ConfigValueError("`must_break` needs `watch`", "nothing would see these ops", "give both")
        self._whole = _Whole(forward, frozenset(must_break), watch if must_break else None, debug=debug)

    @property
    def pieces(self) -> "Sequence[_Whole]":
        """The one piece: the forward."""
        return (self._whole,)

    @property
    def breaks(self) -> tuple[str, ...]:
        """Names of the ops between the segments, in order, as the last recording had them."""
        return self._whole.breaks

    def forward(self, *inputs: Any) -> Any:
        """Run the forward, or replay its segments under the current descriptor."""
        return self._whole(list(inputs))[0]

    def pieces_only(self, *inputs: Any) -> Any:
        """Run the forward for a recording. Its marked ops run too, as any of them may make what a later one needs."""
        return self.forward(*inputs)


class _Whole(GraphedPiece):
    """The forward as a wrapped piece that records segments.

    Attributes:
        breaks: Ops between the segments of the last recording.
    """

    __slots__ = ("_must_break", "_watch", "breaks")

    def __init__(
        self, forward: Callable[..., Any], must_break: frozenset[str], watch: OpWatch | None, *, debug: bool
    ) -> None:
        super().__init__(lambda inputs: [forward(*inputs)], "the forward", debug=debug)
        self.breaks: tuple[str, ...] = ()
        self._must_break = must_break
        self._watch = watch

    @property
    def graphs(self) -> int:
        """How many segments are held."""
        return sum(cast("SegmentedGraph", recorded.graph).graphs for recorded in self._recorded.values())

    def _record(self, recorder: GraphBackend, number: int, inputs: list[Any]) -> Sequence[Any]:
        # a piece asks its recorder for nothing but `record` and `weak`
        return super()._record(cast("GraphBackend", _Segments(recorder, self)), number, inputs)

    def record_with(self, backend: GraphBackend, function: Callable[[], T]) -> tuple[Graph, T]:
        """Record the forward in segments, with its ops watched if any of them must break."""
        with self._watch(self._refuse_recorded) if self._watch else nullcontext():
            graph, outputs = record_segments(backend, function)
        self.breaks = graph.ops
        return graph, outputs

    def _refuse_recorded(self, op: str) -> None:
        if op in self._must_break and is_segment_recorded():
            raise CaptureError(
                f"`{op}` was called inside a recorded segment",
                "it reads the batch of each step, and a replay would repeat that of the recording",
                "mark the function that calls it with `eager_break_during_capture`",
            )


class _Segments:
    """Records for a piece as a backend does, in segments."""

    def __init__(self, backend: GraphBackend, whole: _Whole) -> None:
        self.weak = backend.weak
        self._backend = backend
        self._whole = whole

    def record(self, function: Callable[[], T]) -> tuple[Graph, T]:
        return self._whole.record_with(self._backend, function)
