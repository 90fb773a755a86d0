"""Breakable graphs on a GPU: segments around ops that wait for the device, their memory, and recordings that fail."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from tests.examples.padding import CASES, DECODE, LIMITS, MIXED, SIZES, check, nan_module
from torch import Tensor

from precast.aot.torch_seams.graphs import CudaGraphs
from precast.aot.torch_seams.ops import watched
from precast.capture.breakable import eager_break_during_capture, is_segment_recorded, record_segments
from precast.capture.candidates import candidates
from precast.capture.context import current
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.segmented import BreakableModel
from precast.capture.state import BatchShape
from precast.errors import CaptureError, GraphAddressError
from precast.examples.decoder import model as decoder
from precast.examples.decoder.attention import OP_NAME, paged_attention
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PAIR = CUDAGraphMode.FULL_AND_PIECEWISE
WIDTH = 1024
LAYERS = 40
ROWS = 512
CAPTURED = (1, 2, 4, 8, 64, ROWS)
ROW_LIMITS = BatchLimits(max_num_batched_tokens=ROWS, max_num_seqs=ROWS)


class State:
    """Rows of numbers, and a factor that the op reads in each step: on the device, and by waiting for it."""

    def __init__(self) -> None:
        self.x = torch.zeros(ROWS, WIDTH, device="cuda")
        self.scale = torch.ones(1, device="cuda")

    def inputs(self, num_tokens: int) -> tuple[Tensor, ...]:
        return (self.x[:num_tokens],)

    def describe(self, shape: BatchShape) -> None:
        self.x.zero_()

    def fill(self, shape: BatchShape, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        self.x.copy_(torch.randn(self.x.shape, device="cuda", generator=generator))
        self.scale.fill_((1 + seed % 3) / 2)

    def use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def written(self, shape: BatchShape) -> Sequence[Tensor]:
        return ()


class Eager:
    """Layers whose op reads two tensors in a container and writes a third.

    Attributes:
        inside: Called in each layer, where something is recorded.
        between: Called in each op, where nothing is.
    """

    def __init__(self, state: State) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self.state = state
        self.weights = [torch.randn(WIDTH, WIDTH, device="cuda", generator=generator) / 64 for _ in range(LAYERS)]
        self.inside: Callable[[], object] = lambda: None
        self.between: Callable[[], object] = lambda: None

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        residual = x
        for weight in self.weights:
            hidden = torch.tanh(residual @ weight)
            self.inside()
            out = torch.empty_like(hidden)
            self.op({"pair": [hidden, residual]}, out=out)
            residual = 0.5 * residual + out
        return residual, {"mean": residual.mean(-1)}

    @eager_break_during_capture
    def op(self, tensors: dict[str, list[Tensor]], *, out: Tensor) -> None:
        hidden, residual = tensors["pair"]
        self.between()
        context = current()
        if context is not None and context.mode is CUDAGraphMode.FULL:  # nothing can be waited for
            out.copy_(hidden * self.state.scale + 0.1 * residual)
        else:
            out.copy_(hidden * self.state.scale.item() + 0.1 * residual)


class Serving:
    """The layers with their manager."""

    def __init__(self, mode: CUDAGraphMode = PAIR) -> None:
        self.state = State()
        self.eager = Eager(self.state)
        self.model = BreakableModel(self.eager.forward, debug=True)
        self.backend = CudaGraphs()
        table = candidates(mode, CAPTURED, ROW_LIMITS)
        self.manager = GraphManager(self.model, self.state, table, self.backend)
        self.eager.forward(self.state.x)  # so that libraries have their workspaces on this stream

    def compare(self, descriptor: BatchDescriptor, seed: int) -> None:
        self.state.fill(BatchShape.spread(descriptor.num_tokens, 1), seed)
        found, more = self.manager.run(descriptor)
        made = found.clone(), more["mean"].clone()
        wanted, means = self.eager.forward(*self.state.inputs(descriptor.num_tokens))
        torch.testing.assert_close(made, (wanted, means["mean"]), rtol=1e-3, atol=1e-3)

    def check_works(self) -> None:
        self.manager.capture()
        try:
            for seed, tokens in enumerate((3, ROWS, 1, 7, 64)):
                self.compare(self.manager.dispatch(1, tokens), seed)
        finally:
            self.manager.release()


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    assert not torch.cuda.is_current_stream_capturing()
    assert not is_segment_recorded()
    gc.collect()
    torch.cuda.empty_cache()


def test_every_size_of_both_modes_equals_eager() -> None:
    serving = Serving()
    report = serving.manager.capture()
    assert report.graphs(CUDAGraphMode.PIECEWISE) == len(CAPTURED) * (LAYERS + 1)
    assert serving.model.breaks == ("Eager.op",) * LAYERS
    for seed, tokens in enumerate((*CAPTURED, *reversed(CAPTURED), 3, 5, 100)):
        mixed = serving.manager.dispatch(1, tokens)
        assert mixed.mode is CUDAGraphMode.PIECEWISE
        serving.compare(mixed, seed)
        serving.compare(serving.manager.dispatch(tokens, tokens, 1), seed + 1)
    counts = serving.manager.counts()
    assert (counts.uncaptured, counts.late_captures, counts.none) == (0, 0, 0)
    assert counts.full == len(CAPTURED) * 2 + 3
    serving.manager.release()


def taken_by(layers: int) -> int:
    """Return the bytes that a capture of so many layers takes; captured twice, as libraries keep workspaces."""
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.eager.weights = serving.eager.weights[:layers]
    serving.manager.capture()
    serving.manager.release()
    before = reserved()
    serving.manager.capture()
    taken = reserved() - before
    serving.manager.release()
    assert reserved() <= before
    return taken


def reserved() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


def test_segments_share_memory_although_ops_keep_their_arguments() -> None:
    """Of all layers only a few values are alive at a time, and the other sizes lie in the same memory."""
    few = 2
    one = ROWS * WIDTH * 4
    more = taken_by(LAYERS) - taken_by(few)
    assert more < (LAYERS - few) * one  # an op is given three such tensors in each layer


def test_ops_side_by_side_have_empty_segments_without_a_warning() -> None:
    backend = CudaGraphs()
    x, y, z = (torch.full((4,), float(n), device="cuda") for n in range(3))

    @eager_break_during_capture
    def add(x: Tensor, out: Tensor) -> None:
        out.copy_(x + x.sum().item())

    def forward() -> None:
        add(x, y)
        add(y, z)

    with backend.side_stream():
        graph, _ = record_segments(backend, forward)
    assert graph.graphs == 3
    x.fill_(1)
    graph.replay()
    assert z.tolist() == [25.0] * 4
    graph.reset()
    backend.release()


def fail(x: Tensor) -> None:
    raise ValueError("it failed")


def synchronize(x: Tensor) -> None:
    x.sum().item()


def begin_another(backend: CudaGraphs) -> Callable[[Tensor], object]:
    return lambda x: record_segments(backend, lambda: x + 1)


@pytest.mark.parametrize("place", ["body", "wait", "nested", "op", "nested in an op"])
@pytest.mark.parametrize("after", [0, LAYERS + 5])
def test_a_recording_that_fails_leaves_a_clean_state(place: str, after: int) -> None:
    """Fail in the first size, and in the second, when many segments are there already."""
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.check_works()
    before = reserved()
    calls = iter(range(10**6))
    nested = begin_another(serving.backend)
    act = {"body": fail, "op": fail, "wait": synchronize}.get(place, nested)

    def late() -> None:
        context = current()
        if context is not None and context.recorder is not None and next(calls) >= after:
            act(serving.state.x)

    if "op" in place:
        serving.eager.between = late
    else:
        serving.eager.inside = late
    kinds = {"body": ValueError, "op": ValueError, "wait": RuntimeError}
    with pytest.raises(kinds.get(place, CaptureError)):
        serving.manager.capture()
    assert not torch.cuda.is_current_stream_capturing()
    assert not is_segment_recorded()
    assert serving.model.pieces[0].graphs == 0
    assert reserved() <= before
    serving.eager.inside = serving.eager.between = lambda: None
    serving.check_works()


def test_an_input_that_moved_is_refused() -> None:
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.manager.capture()
    serving.manager._inputs = {d: tuple(t.clone() for t in ts) for d, ts in serving.manager._inputs.items()}
    with pytest.raises(GraphAddressError, match="the graph of the forward"):
        serving.manager.run(serving.manager.dispatch(1, 8))
    serving.manager.release()


def decoder_manager(module: decoder.DecoderModel) -> tuple[DecoderState, BreakableModel, GraphManager]:
    state = DecoderState(module, LIMITS)
    model = BreakableModel(module, must_break=[OP_NAME], watch=watched)
    return state, model, GraphManager(model, state, candidates(PAIR, SIZES, LIMITS), CudaGraphs())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_padded_batches_of_a_decoder_equal_eager(monkeypatch: pytest.MonkeyPatch, dtype: str, tolerance: float) -> None:
    monkeypatch.setattr(decoder, "paged_attention", eager_break_during_capture(paged_attention))
    module = nan_module(tiny(num_hidden_layers=2, dtype=dtype), "cuda")
    state, model, manager = decoder_manager(module)
    manager.capture()
    assert model.breaks == ("paged_attention",) * 2
    for case in (*CASES.values(), MIXED, DECODE):
        check(module, state, manager, case, tolerance)
    counts = manager.counts()
    assert counts.full > 0
    assert counts.piecewise > 0
    manager.release()


def test_attention_of_a_decoder_that_nobody_marked_is_named() -> None:
    module = nan_module(tiny(num_hidden_layers=2, dtype="float32"), "cuda")
    _, _, manager = decoder_manager(module)
    with pytest.raises(CaptureError, match=f"`{OP_NAME}` was called inside a recorded segment"):
        manager.capture()
