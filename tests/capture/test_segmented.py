"""A forward recorded in segments, under the manager of the other graphs."""

from typing import Any

import pytest
import torch
from tests.capture.dispatch_backend import DispatchGraphs
from tests.capture.support import ToyState
from torch import Tensor

from precast.aot.torch_seams.ops import watched
from precast.capture.breakable import eager_break_during_capture
from precast.capture.candidates import candidates
from precast.capture.context import current
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.segmented import BreakableModel
from precast.errors import CaptureError, ConfigValueError, GraphAddressError

SIZES = (1, 2, 4, 8)
LAYERS = 2


class Eager:
    """(x + 1) * scale, twice; the product reads the scale of each step and the descriptor that it runs under."""

    def __init__(self, state: ToyState) -> None:
        self.state = state
        self.seen: list[BatchDescriptor | None] = []

    def forward(self, tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        x = tokens
        for _ in range(LAYERS):
            x = x + 1
            out = torch.empty_like(x)
            self.attend(x, out)
            x = out
        return {"out": (x, 2 * x)}

    @eager_break_during_capture
    def attend(self, x: Tensor, out: Tensor) -> None:
        context = current()
        self.seen.append(context.descriptor if context else None)
        torch.mul(x, self.state.scale, out=out)

    def expected(self, tokens: Tensor) -> Tensor:
        return ((tokens + 1) * self.state.scale + 1) * self.state.scale


def managed(
    mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE, **options: Any
) -> tuple[GraphManager, Eager, BreakableModel]:
    state = ToyState()
    eager = Eager(state)
    model = BreakableModel(eager.forward, **options)
    table = candidates(mode, SIZES, BatchLimits(max_num_seqs=8))
    return GraphManager(model, state, table, DispatchGraphs()), eager, model


def check_step(manager: GraphManager, eager: Eager, descriptor: BatchDescriptor, seed: int) -> None:
    rows = descriptor.num_tokens
    eager.state.tokens[:rows] = torch.rand(rows, generator=torch.Generator().manual_seed(seed))
    eager.state.scale.fill_(seed + 2)
    out, twice = manager.run(descriptor)["out"]
    assert torch.equal(out, eager.expected(eager.state.tokens[:rows]))
    assert torch.equal(twice, 2 * out)


def test_the_manager_captures_dispatches_and_runs_segments() -> None:
    manager, eager, model = managed()
    report = manager.capture()
    assert report.graphs(CUDAGraphMode.PIECEWISE) == len(SIZES) * (LAYERS + 1)
    assert report.graphs(CUDAGraphMode.FULL) == len(SIZES)
    assert model.breaks == ("Eager.attend",) * LAYERS
    for seed, tokens in enumerate((7, 1, 8, 3, 3, 2)):
        eager.seen.clear()
        descriptor = manager.dispatch(1, tokens)
        assert descriptor.mode is CUDAGraphMode.PIECEWISE
        check_step(manager, eager, descriptor, seed)
        assert eager.seen == [descriptor] * LAYERS  # each break sees the batch of its step
        check_step(manager, eager, manager.dispatch(tokens, tokens, 1), seed)
    check_step(manager, eager, manager.dispatch(1, 9), 3)
    counts = manager.counts()
    assert (counts.piecewise, counts.full, counts.none) == (6, 6, 1)
    assert (counts.uncaptured, counts.late_captures) == (0, 0)


def test_a_release_frees_every_segment() -> None:
    manager, eager, model = managed()
    manager.capture()
    manager.release()
    assert model.pieces[0].graphs == 0
    descriptor = manager.dispatch(1, 3)
    assert descriptor.mode is CUDAGraphMode.NONE
    check_step(manager, eager, descriptor, 1)
    manager.capture()
    check_step(manager, eager, manager.dispatch(1, 3), 2)


def test_a_descriptor_without_segments_runs_and_is_counted() -> None:
    manager, eager, model = managed(CUDAGraphMode.PIECEWISE)
    manager.capture()
    check_step(manager, eager, BatchDescriptor(CUDAGraphMode.PIECEWISE, 3), 1)
    assert manager.counts().uncaptured == 1
    assert model.pieces[0].graphs == len(SIZES) * (LAYERS + 1)


def test_an_input_that_moved_is_refused() -> None:
    manager, _, _ = managed(CUDAGraphMode.PIECEWISE)
    manager.capture()
    manager._inputs = {d: tuple(t.clone() for t in tensors) for d, tensors in manager._inputs.items()}
    with pytest.raises(GraphAddressError, match="the graph of the forward"):
        manager.run(manager.dispatch(1, 3))


def test_a_capture_that_fails_in_an_op_releases_all() -> None:
    manager, eager, model = managed()
    run = eager.attend
    calls = iter(range(100))

    @eager_break_during_capture
    def failing(x: Tensor, out: Tensor) -> None:
        if next(calls) == 9:
            raise ValueError("the op failed")
        run(x, out)

    eager.attend = failing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the op failed"):
        manager.capture()
    assert model.pieces[0].graphs == 0
    eager.attend = run  # type: ignore[method-assign]
    manager.capture()
    check_step(manager, eager, manager.dispatch(1, 3), 1)


def test_an_op_that_must_break_and_is_recorded_is_named() -> None:
    with pytest.raises(ConfigValueError, match="watch"):
        managed(must_break=["aten::mul"])
    manager, _, _ = managed(must_break=["aten::mul"], watch=watched)
    with pytest.raises(CaptureError, match="`aten::mul` was called inside a recorded segment"):
        manager.capture()  # the doubled output multiplies outside of the op


def test_an_op_that_must_break_and_does_is_fine() -> None:
    eager = Eager(ToyState())

    def forward(tokens: Tensor) -> Tensor:
        out = torch.empty_like(tokens)
        eager.attend(tokens + 1, out)
        return out

    model = BreakableModel(forward, must_break=["aten::mul"], watch=watched)
    table = candidates(CUDAGraphMode.PIECEWISE, SIZES, BatchLimits(max_num_seqs=8))
    GraphManager(model, eager.state, table, DispatchGraphs()).capture()
    assert model.breaks == ("Eager.attend",)
