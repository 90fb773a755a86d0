"""The wrapper of a piece: when it replays, when it runs the piece, what it refuses, and what it keeps."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.capture.support import OutOfMemoryError, ReplayingBackend
from torch import Tensor

from precast.capture.context import forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphedPiece
from precast.errors import GraphAddressError

SIZES = (8, 4)


def piecewise(size: int) -> BatchDescriptor:
    return BatchDescriptor(CUDAGraphMode.PIECEWISE, size)


class Doubling:
    """A piece: doubles its first input and adds the second; empties its list of inputs, as a loaded package may."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        self.calls += 1
        x, weight = inputs[:2]
        inputs.clear()
        return [2 * x + weight, None]


class Captured:
    """A doubling piece captured for both sizes, with the buffers that its graphs read."""

    def __init__(self, **options: Any) -> None:
        self.backend = ReplayingBackend()
        self.piece = Doubling()
        self.x = torch.zeros(max(SIZES))
        self.weight = torch.ones(1)
        self.wrapped = GraphedPiece(self.piece, "piece 7", inputs=["x", "weight"], **options)
        with self.backend.side_stream():
            for size in SIZES:
                with forward_context(piecewise(size), self.backend):
                    self.wrapped(self.inputs(size))
        self.piece.calls = 0

    def inputs(self, size: int) -> list[Any]:
        return [self.x[:size], self.weight]

    def run(self, size: int, inputs: list[Any] | None = None) -> Tensor:
        with forward_context(piecewise(size)):
            out: Tensor = self.wrapped(self.inputs(size) if inputs is None else inputs)[0]
            return out

    @property
    def replays(self) -> list[int]:
        return [graph.replays for graph in self.backend.graphs]


def test_outside_of_any_context_it_is_the_piece() -> None:
    captured = Captured()
    assert torch.equal(captured.wrapped(captured.inputs(4))[0], torch.ones(4))
    assert (captured.piece.calls, captured.replays) == (1, [0, 0])


@pytest.mark.parametrize("mode", [CUDAGraphMode.NONE, CUDAGraphMode.FULL])
def test_in_another_mode_it_is_the_piece(mode: CUDAGraphMode) -> None:
    captured = Captured()
    for recorder in (None, captured.backend):
        with forward_context(BatchDescriptor(mode, 4, 4), recorder):
            captured.wrapped(captured.inputs(4))
    assert (captured.piece.calls, captured.replays) == (2, [0, 0])
    assert captured.wrapped.uncaptured == 0


def test_a_replay_reads_the_buffers_and_gives_what_was_recorded_for_the_size() -> None:
    captured = Captured()
    captured.x.copy_(torch.arange(8.0))
    assert torch.equal(captured.run(4), 2 * torch.arange(4.0) + 1)
    captured.weight.fill_(5)
    assert torch.equal(captured.run(8), 2 * torch.arange(8.0) + 5)
    assert captured.replays == [1, 1]


def test_outputs_that_are_no_tensors_are_kept() -> None:
    captured = Captured()
    with forward_context(piecewise(4)):
        assert captured.wrapped(captured.inputs(4))[1] is None


def test_outputs_are_kept_as_weak_references_and_the_capture_gets_strong_ones() -> None:
    class Weakening(ReplayingBackend):
        def weak(self, tree: Any) -> Any:
            self.log.append("weak")
            return tuple("weak" for _ in tree)

    backend = Weakening()
    wrapped = GraphedPiece(Doubling(), "piece")
    inputs = [torch.zeros(4), torch.ones(1)]
    with backend.side_stream(), forward_context(piecewise(4), backend):
        strong = wrapped(list(inputs))
    assert torch.equal(strong[0], torch.ones(4))
    with forward_context(piecewise(4)):
        assert wrapped(list(inputs)) == ("weak", "weak")


def test_a_size_that_was_not_captured_runs_the_piece_and_is_counted() -> None:
    captured = Captured()
    with forward_context(piecewise(2)):
        captured.wrapped(captured.inputs(2))
        captured.wrapped(captured.inputs(2))
    assert (captured.piece.calls, captured.wrapped.uncaptured, captured.wrapped.graphs) == (2, 2, 2)


@pytest.mark.parametrize("debug", [False, True])
def test_an_input_that_moved_is_refused_by_name(debug: bool) -> None:
    captured = Captured(debug=debug)
    with pytest.raises(GraphAddressError, match=r"input `weight` lies at 0x\w+ and not at 0x\w+$") as refused:
        captured.run(4, [captured.x[:4], torch.ones(1)])
    assert refused.value.what == "the graph of piece 7 cannot be replayed"
    assert captured.replays == [0, 0]
    with pytest.raises(GraphAddressError, match="input `x` lies"):
        captured.run(4, [captured.x[1:5], captured.weight])


def test_inputs_without_names_are_told_by_position() -> None:
    backend = ReplayingBackend()
    wrapped = GraphedPiece(Doubling(), "piece")
    kept = torch.zeros(4)
    with backend.side_stream(), forward_context(piecewise(4), backend):
        wrapped([kept, kept])
    with forward_context(piecewise(4)), pytest.raises(GraphAddressError, match="input 1 lies"):
        wrapped([kept, torch.ones(4)])


def test_the_full_check_sees_what_addresses_do_not_tell() -> None:
    plain, full = Captured(), Captured(debug=True)
    plain.run(4, [plain.x[:3], plain.weight])
    with pytest.raises(GraphAddressError, match=r"input `x` is \(\(3,\).* and not \(\(4,\)"):
        full.run(4, [full.x[:3], full.weight])
    assert torch.equal(full.run(4), torch.ones(4))


def test_plain_values_among_the_inputs_are_compared_by_the_full_check() -> None:
    backend = ReplayingBackend()
    wrapped = GraphedPiece(lambda inputs: [inputs[0] * inputs[1]], "piece", debug=True)
    kept = torch.ones(4)
    with backend.side_stream(), forward_context(piecewise(4), backend):
        wrapped([kept, 3])
    with forward_context(piecewise(4)):
        assert torch.equal(wrapped([kept, 3])[0], 3 * kept)
        with pytest.raises(GraphAddressError, match="input 1 is 4 and not 3"):
            wrapped([kept, 4])


def test_inputs_at_moving_positions_are_copied() -> None:
    captured = Captured(moving=[0])
    for size in (*SIZES, 4):
        x = torch.rand(size)
        assert torch.equal(captured.run(size, [x, captured.weight]), 2 * x + 1)
    with pytest.raises(GraphAddressError, match="input `weight` lies"):
        captured.run(4, [torch.rand(4), torch.ones(1)])
    assert captured.piece.calls == 3  # the backend replays by a call; none of the refused


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("other", [torch.rand(1), torch.rand(4, dtype=torch.float64)])
def test_a_moving_input_of_another_shape_or_dtype_is_refused(other: Tensor, debug: bool) -> None:
    captured = Captured(moving=[0], debug=debug)
    with pytest.raises(GraphAddressError, match="input `x` is "):
        captured.run(4, [other, captured.weight])
    assert captured.replays == [0, 0]


def test_moving_inputs_of_all_sizes_share_one_buffer() -> None:
    captured = Captured(moving=[0])
    assert [buffer.numel() for buffer in captured.wrapped._buffers.values()] == [8]


def test_a_moving_input_keeps_its_strides() -> None:
    backend = ReplayingBackend()
    wrapped = GraphedPiece(lambda inputs: [inputs[0] + 0, torch.tensor(inputs[0].stride())], "piece", moving=[0])
    with backend.side_stream(), forward_context(piecewise(4), backend):
        wrapped([torch.rand(6, 4).t()])
    given = torch.rand(6, 4).t()
    with forward_context(piecewise(4)):
        out, stride = wrapped([given])
    assert torch.equal(out, given)
    assert tuple(stride.tolist()) == given.stride()


def test_a_moving_input_may_be_empty() -> None:
    backend = ReplayingBackend()
    wrapped = GraphedPiece(lambda inputs: [inputs[0] + 1], "piece", moving=[0])
    with backend.side_stream(), forward_context(piecewise(4), backend):
        assert wrapped([torch.rand(0, 4)])[0].shape == (0, 4)


def test_release_frees_the_graphs_and_twice_is_harmless() -> None:
    captured = Captured(moving=[0])
    graphs = captured.backend.graphs
    for _ in range(2):
        captured.wrapped.release()
        assert all(graph.is_reset for graph in graphs)
        assert captured.wrapped.graphs == 0
    assert torch.equal(captured.run(4), torch.ones(4))
    assert (captured.piece.calls, captured.wrapped.uncaptured) == (1, 1)


def test_a_recording_that_fails_leaves_no_graph() -> None:
    backend = ReplayingBackend(free=0)
    wrapped = GraphedPiece(Doubling(), "piece")
    inputs = [torch.zeros(4), torch.ones(1)]
    with backend.side_stream(), forward_context(piecewise(4), backend), pytest.raises(OutOfMemoryError):
        wrapped(list(inputs))
    assert (wrapped.graphs, backend.is_recording()) == (0, False)
