import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
import torch
from tests.capture.dispatch_backend import DispatchGraphs
from torch import Tensor

from precast.capture.breakable import (
    SegmentedGraph,
    eager_break_during_capture,
    is_segment_recorded,
    record_segments,
)
from precast.capture.context import current, forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode
from precast.errors import CaptureError

PIECEWISE = BatchDescriptor(CUDAGraphMode.PIECEWISE, 4)
FULL = BatchDescriptor(CUDAGraphMode.FULL, 4, 4)


@pytest.fixture
def backend() -> Iterator[DispatchGraphs]:
    found = DispatchGraphs()
    with found.side_stream():
        yield found


def recorded(backend: DispatchGraphs, forward: Callable[[], Any]) -> tuple[SegmentedGraph, Any]:
    with forward_context(PIECEWISE, backend):
        return record_segments(backend, forward)


class Layers:
    """(x + 1) * scale, twice; the product is the op that breaks, and reads the scale of each step."""

    def __init__(self) -> None:
        self.x = torch.arange(4.0)
        self.scale = 2.0
        self.ran: list[BatchDescriptor | None] = []

    @eager_break_during_capture
    def op(self, x: Tensor, out: Tensor) -> None:
        context = current()
        self.ran.append(context.descriptor if context else None)
        assert not is_segment_recorded()
        out.copy_(x * self.scale)

    def forward(self) -> Tensor:
        x = self.x
        for _ in range(2):
            x = x + 1
            out = torch.empty_like(x)
            self.op(x, out)
            x = out
        return x * 1

    def expected(self) -> Tensor:
        return ((self.x + 1) * self.scale + 1) * self.scale


def test_segments_and_ops_replay_as_the_forward_runs(backend: DispatchGraphs) -> None:
    layers = Layers()
    graph, output = recorded(backend, layers.forward)
    assert (graph.graphs, graph.ops) == (3, ("Layers.op",) * 2)
    assert output.isnan().all()  # a recording computes nothing
    for step, scale in enumerate((2.0, 5.0, -1.0)):
        layers.x.fill_(step)
        layers.scale = scale  # what changes is read by the op itself
        with forward_context(PIECEWISE):
            graph.replay()
        assert torch.equal(output, layers.expected())
    assert layers.ran == [PIECEWISE] * 8


def test_a_marked_op_is_itself_where_nothing_is_recorded(backend: DispatchGraphs) -> None:
    layers = Layers()
    assert torch.equal(layers.forward(), layers.expected())
    assert layers.op.__name__ == "op"
    with forward_context(PIECEWISE):
        assert torch.equal(layers.forward(), layers.expected())
    assert backend.begun == []


def test_in_mode_full_nothing_breaks(backend: DispatchGraphs) -> None:
    def forward() -> Tensor:
        out = torch.empty(4)
        double(x, out)
        return out

    @eager_break_during_capture
    def double(x: Tensor, out: Tensor) -> None:
        torch.mul(x, 2, out=out)

    x = torch.ones(4)
    with forward_context(FULL):
        graph, output = record_segments(backend, forward)
    assert (graph.graphs, graph.ops) == (1, ())
    x.fill_(3)
    graph.replay()
    assert output.tolist() == [6.0] * 4


def test_a_compiler_that_traces_a_marked_op_sees_the_op_alone() -> None:
    double = eager_break_during_capture(lambda x: x * 2)
    traced = torch.compile(lambda x: double(x) + 1, backend="eager", fullgraph=True)
    backend = MagicMock(is_recording=lambda: False)  # one that no compiler has to trace
    graph, output = record_segments(backend, lambda: traced(torch.ones(2)))
    assert (graph.graphs, graph.ops) == (1, ())
    assert output.tolist() == [3.0, 3.0]


def test_an_op_inside_an_op_does_not_break(backend: DispatchGraphs) -> None:
    layers = Layers()

    @eager_break_during_capture
    def outer(x: Tensor, out: Tensor) -> None:
        layers.op(x, out)
        layers.op(out.clone(), out)

    def forward() -> Tensor:
        out = torch.empty(4)
        outer(layers.x, out)
        return out + 0

    graph, output = recorded(backend, forward)
    assert graph.graphs == 2
    graph.replay()
    assert torch.equal(output, layers.x * 4)


def test_ops_at_both_ends_and_side_by_side_have_empty_segments_between_them(backend: DispatchGraphs) -> None:
    layers = Layers()
    out, last = torch.empty(4), torch.empty(4)

    def forward() -> Tensor:
        layers.op(layers.x, out)
        layers.op(out, last)
        return last

    graph, output = recorded(backend, forward)
    assert graph.graphs == 3
    graph.replay()
    assert torch.equal(output, layers.x * 4)


def test_another_thread_runs_a_marked_op_as_it_is(backend: DispatchGraphs) -> None:
    layers, other = Layers(), Layers()

    def forward() -> Tensor:
        thread = threading.Thread(target=other.forward)
        thread.start()
        thread.join()
        return layers.forward()

    graph, _ = recorded(backend, forward)
    assert graph.graphs == 3
    assert other.ran == [None, None]


@dataclasses.dataclass(frozen=True, slots=True)
class Quantized:
    values: Tensor
    scales: list[Tensor]


@dataclasses.dataclass
class Metadata:
    lengths: Tensor


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_tensors_in_containers_keep_no_memory_and_other_objects_stay(backend: DispatchGraphs) -> None:
    calls: list[tuple[Any, ...]] = []
    metadata = Metadata(torch.ones(1))

    @eager_break_during_capture
    def op(
        pair: Pair, nested: dict[str, list[Tensor]], quantized: Quantized, metadata: Metadata, *, out: Tensor
    ) -> None:
        calls.append((pair, nested, quantized, metadata, out))
        assert pair.first is pair.second
        nested["list"].pop().add_(metadata.lengths)
        out.copy_(quantized.values + quantized.scales[0])

    tensors = [torch.zeros(4) for _ in range(5)]
    first, listed, values, scales, out = tensors

    def forward() -> None:
        op(Pair(first, first), {"list": [listed]}, Quantized(values, [scales]), metadata, out=out)

    graph, _ = recorded(backend, forward)
    assert {id(t) for t in backend.weakened} == {id(t) for t in tensors}
    assert len(backend.weakened) == len(tensors)
    for _ in range(2):  # a list that the op empties is full again
        graph.replay()
    assert listed.tolist() == [3.0] * 4
    _, again = calls[0], calls[1]
    assert isinstance(again[0], Pair)
    assert isinstance(again[2], Quantized)
    assert again[3] is metadata
    for kept, given in ((again[0].first, first), (again[2].scales[0], scales), (again[4], out)):
        assert kept is not given
        assert kept.data_ptr() == given.data_ptr()


def test_a_closure_keeps_what_it_needs(backend: DispatchGraphs) -> None:
    x = torch.ones(4)
    seen: list[weakref.ref[Tensor]] = []

    def forward() -> Tensor:
        made, out = x + 1, torch.empty(4)
        seen.append(weakref.ref(made))

        @eager_break_during_capture
        def op(out: Tensor) -> None:
            out.copy_(made * 3)

        op(out)
        return out + 0

    graph, output = recorded(backend, forward)
    x.fill_(4)
    graph.replay()
    assert output.tolist() == [15.0] * 4
    assert seen[0]() is not None
    graph.reset()
    for begun in backend.begun:
        begun.reset()
    gc.collect()
    assert seen[0]() is None


def test_an_op_may_return_what_it_was_given(backend: DispatchGraphs) -> None:
    out = torch.zeros(4)

    @eager_break_during_capture
    def op(out: Tensor) -> tuple[Tensor, None, Tensor]:
        out += 1
        return out, None, out[1:]

    graph, (returned, view) = recorded(backend, lambda: op(out)[::2])
    assert returned is out
    graph.replay()
    assert view.tolist() == [2.0] * 3


@pytest.mark.parametrize("result", [lambda x: x + 1, lambda x: {"made": x.clone()}, lambda x: 3, lambda x: [x, 1.5]])
def test_a_result_of_its_own_is_refused(backend: DispatchGraphs, result: Callable[[Tensor], Any]) -> None:
    op = eager_break_during_capture(result)
    with pytest.raises(CaptureError, match="of its own"):
        recorded(backend, lambda: op(torch.zeros(4)))
    check_clean(backend)


def check_clean(backend: DispatchGraphs) -> None:
    """Check that nothing of a failed recording is left, and that the next one works."""
    assert not backend.is_recording()
    assert not is_segment_recorded()
    assert all(graph.is_reset for graph in backend.begun)
    layers = Layers()
    graph, output = recorded(backend, layers.forward)
    graph.replay()
    assert torch.equal(output, layers.expected())
    graph.reset()
    backend.release()


@pytest.mark.parametrize("fails", ["begin 1", "begin 2", "begin 3", "end 1", "end 2", "end 3"])
def test_a_device_that_refuses_leaves_nothing(fails: str) -> None:
    backend = DispatchGraphs(fails)
    with backend.side_stream():
        with pytest.raises(RuntimeError, match=f"the device refused {fails}"):
            recorded(backend, Layers().forward)
        check_clean(backend)


class Breaking(Layers):
    """Fails at one place of the second layer."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def forward(self) -> Tensor:
        x = super().forward()
        if self.place == "body":
            raise ValueError("the body failed")
        if self.place == "sync":
            x.sum().item()
        if self.place == "interrupt":
            raise KeyboardInterrupt
        return x

    @eager_break_during_capture
    def op(self, x: Tensor, out: Tensor) -> None:
        if self.place == "op" and self.ran:
            raise ValueError("the op failed")
        self.ran.append(None)
        out.copy_(x)


@pytest.mark.parametrize(
    ("place", "error"),
    [("body", ValueError), ("op", ValueError), ("sync", RuntimeError), ("interrupt", KeyboardInterrupt)],
)
def test_a_forward_that_fails_leaves_nothing(backend: DispatchGraphs, place: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        recorded(backend, Breaking(place).forward)
    check_clean(backend)


def test_a_forward_that_goes_on_after_a_failed_op_is_refused(backend: DispatchGraphs) -> None:
    def forward() -> None:
        layers = Breaking("op")
        layers.op(layers.x, layers.x)
        with pytest.raises(ValueError):
            layers.op(layers.x, layers.x)
        layers.place = ""
        layers.op(layers.x, layers.x)  # runs as it is

    with pytest.raises(CaptureError, match=r"`Breaking.op`.*: it failed, and the forward went on: the op failed"):
        recorded(backend, forward)
    check_clean(backend)


def test_recordings_do_not_nest(backend: DispatchGraphs) -> None:
    inner = eager_break_during_capture(lambda: recorded(backend, lambda: None))
    for nested in (inner, lambda: recorded(backend, lambda: None)):
        with pytest.raises(CaptureError, match="being recorded already"):
            recorded(backend, nested)
        check_clean(backend)
    with pytest.raises(CaptureError, match="being recorded already"):
        backend.record(lambda: record_segments(backend, lambda: None))


def test_a_graph_that_was_reset_is_not_replayed(backend: DispatchGraphs) -> None:
    graph, _ = recorded(backend, Layers().forward)
    graph.reset()
    graph.reset()
    assert all(segment.is_reset for segment in backend.begun)
    with pytest.raises(CaptureError, match="released"):
        graph.replay()
