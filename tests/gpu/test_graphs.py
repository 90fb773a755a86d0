"""CUDA graphs on a GPU: every size in both modes against the plain run, the shared pool, and captures that fail."""

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from precast.aot.torch_seams.graphs import CudaGraphs, weak_tensor
from precast.capture.candidates import candidates
from precast.capture.context import descriptor_number
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager, RunCounts
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphedPiece
from precast.capture.state import BatchShape
from precast.errors import CaptureError, GraphAddressError, GraphMemoryError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WIDTH = 256
LAYERS = 8
SIZES = (1, 2, 4, *range(8, 129, 8))
LIMITS = BatchLimits(max_num_batched_tokens=256, max_num_seqs=256)
PAIR = CUDAGraphMode.FULL_AND_PIECEWISE


class State:
    """Rows of numbers, and a factor that the op between the pieces reads."""

    def __init__(self) -> None:
        self.x = torch.zeros(256, WIDTH, device="cuda")
        self.scale = torch.ones(1, device="cuda")

    def inputs(self, num_tokens: int) -> tuple[Tensor, ...]:
        return (self.x[:num_tokens],)

    def describe(self, shape: BatchShape) -> None:
        self.x.zero_()

    def fill(self, shape: BatchShape, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        self.x.copy_(torch.randn(self.x.shape, device="cuda", generator=generator))
        self.scale.fill_((1 + seed % 3) / 4)

    def use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def written(self, shape: BatchShape) -> Sequence[Tensor]:
        return ()


class Model:
    """Pieces whose outputs are read by the next op, by the piece after it, and by an op and a piece further on.

    The output of one piece lives over two others, so that memory which is handed out too early changes results.
    """

    def __init__(self, state: State) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self.state = state
        self.weights = [torch.randn(WIDTH, WIDTH, device="cuda", generator=generator) / 64 for _ in range(LAYERS + 1)]
        self.plain = [self._piece(weight) for weight in self.weights]
        self.pieces = [GraphedPiece(piece, f"piece {i}") for i, piece in enumerate(self.plain)]
        self.inside: Callable[[int], object] = lambda rows: None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self._run(self.pieces, x, runs_ops=True)

    def pieces_only(self, x: Tensor) -> dict[str, Tensor]:
        return self._run(self.pieces, x, runs_ops=False)

    def reference(self, x: Tensor) -> dict[str, Tensor]:
        return self._run(self.plain, x, runs_ops=True)

    def _run(self, pieces: Sequence[Callable[..., Any]], x: Tensor, *, runs_ops: bool) -> dict[str, Tensor]:
        hidden, residual, out = pieces[0]([x, x, x])
        older = hidden
        for piece in pieces[1:]:
            if runs_ops:
                torch.add(hidden * self.state.scale, older, out=out)
            before = hidden
            hidden, residual, out = piece([out, residual, older])
            older = before
            del before
        return {"hidden": hidden, "residual": residual}

    def _piece(self, weight: Tensor) -> Callable[[list[Any]], Sequence[Any]]:
        def piece(inputs: list[Any]) -> Sequence[Any]:
            out, residual, older = inputs
            inputs.clear()
            self.inside(len(out))
            residual = 0.5 * residual + out
            hidden = torch.tanh(residual @ weight) + 0.5 * older
            return hidden, residual, torch.empty_like(hidden)

        return piece


class Serving:
    """The model with its manager."""

    def __init__(self, mode: CUDAGraphMode = PAIR) -> None:
        self.state = State()
        self.model = Model(self.state)
        self.backend = CudaGraphs()
        self.candidates = candidates(mode, SIZES, LIMITS)
        self.manager = GraphManager(self.model, self.state, self.candidates, self.backend)
        self.model.reference(self.state.x)  # so that libraries have their workspaces on this stream

    def compare(self, descriptor: BatchDescriptor, seed: int) -> None:
        shape = BatchShape.spread(descriptor.num_tokens, 1)
        self.state.fill(shape, seed)
        made = {name: value.clone() for name, value in self.manager.run(descriptor).items()}
        wanted = self.model.reference(*self.state.inputs(descriptor.num_tokens))
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)

    def held_outputs(self, size: int) -> list[Tensor]:
        """Return what the pieces keep of one size."""
        number = descriptor_number(BatchDescriptor(CUDAGraphMode.PIECEWISE, size))
        return [out for piece in self.model.pieces for out in piece._recorded[number].outputs]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    assert not torch.cuda.is_current_stream_capturing()
    gc.collect()
    torch.cuda.empty_cache()


def reserved() -> int:
    """Return the bytes that torch's allocator keeps once it gave back what it could."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


@pytest.mark.parametrize("mode", [CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL, PAIR])
def test_every_size_replays_to_the_numbers_of_the_plain_run(mode: CUDAGraphMode) -> None:
    serving = Serving(mode)
    report = serving.manager.capture()
    order = list(serving.candidates.capture_order)
    assert [c.descriptor for c in report.captured] == order
    steps = [(descriptor, seed) for seed in range(3) for descriptor in order]
    random.Random(0).shuffle(steps)  # so that each size runs after every other one, whose memory it shares
    for descriptor, seed in steps:
        serving.compare(descriptor, seed)
    counts = serving.manager.counts()
    assert (counts.uncaptured, counts.late_captures) == (0, 0)
    assert counts.piecewise + counts.full == len(steps)


def test_pieces_and_sizes_share_memory() -> None:
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.manager.capture()
    held = {size: serving.held_outputs(size) for size in SIZES}
    for size in (128, 64, 1):
        addresses = [out.data_ptr() for out in held[size]]
        assert len(set(addresses)) < len(addresses) * 2 / 3  # a layer uses the memory of one that is done
    shared = {out.data_ptr() for out in held[128]} & {out.data_ptr() for out in held[120]}
    assert shared


def test_outputs_do_not_keep_memory() -> None:
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.manager.capture()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    serving.manager.release()
    # The outputs of all sizes are megabytes; what is freed here are the small buffers of moving inputs.
    assert 0 <= before - torch.cuda.memory_allocated() < 1 << 14


def test_full_graphs_of_all_sizes_share_their_output_buffers() -> None:
    serving = Serving(CUDAGraphMode.FULL)
    serving.manager.capture()
    small, large = (BatchDescriptor(CUDAGraphMode.FULL, n, n) for n in (8, 128))
    first = serving.manager.run(small)["hidden"]
    assert first.data_ptr() == serving.manager.run(large)["hidden"].data_ptr()


def test_an_input_that_moved_is_refused_before_the_replay() -> None:
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.manager.capture()
    serving.state.x = serving.state.x.clone()
    serving.manager._inputs = {d: serving.state.inputs(d.num_tokens) for d in serving.manager._inputs}
    with pytest.raises(GraphAddressError, match="input 0 lies at"):
        serving.manager.run(BatchDescriptor(CUDAGraphMode.PIECEWISE, 8))


def test_release_gives_all_memory_back_and_capture_works_again() -> None:
    serving = Serving()
    serving.manager.capture()
    serving.manager.release()
    baseline = reserved()
    for _ in range(2):
        report = serving.manager.capture()
        assert reserved() > baseline
        serving.compare(report.captured[0].descriptor, 1)
        serving.manager.release()
        serving.manager.release()
        assert reserved() == baseline
    assert serving.manager.counts().late_captures == 0


def raises(rows: int) -> None:
    raise KeyError(rows)


def reads_a_value(rows: int) -> None:
    torch.ones(1, device="cuda").item()


def waits(rows: int) -> None:
    torch.cuda.synchronize()


def wants_too_much(rows: int) -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def hides_that_it_wants_too_much(rows: int) -> None:
    try:
        wants_too_much(rows)
    except torch.OutOfMemoryError:
        raise RuntimeError("run_func_(...) API call failed") from None


FAILURES = [raises, reads_a_value, waits, wants_too_much, hides_that_it_wants_too_much]


@pytest.mark.parametrize("mode", [CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_capture_that_fails_leaves_a_clean_state(failure: Callable[[int], None], mode: CUDAGraphMode) -> None:
    serving = Serving(mode)
    serving.manager.capture()
    serving.manager.release()
    baseline = reserved()
    serving.model.inside = lambda rows: failure(rows) if rows == 64 else None
    kind = GraphMemoryError if "wants" in failure.__name__ else Exception
    with pytest.raises(kind) as failed:
        serving.manager.capture()
    if isinstance(failed.value, GraphMemoryError):
        assert failed.value.details["failed"]["num_tokens"] == 64
        assert [fit["num_tokens"] for fit in failed.value.details["fit"]] == list(range(128, 64, -8))
        assert failed.value.details["free_bytes"] > 0
    del failed
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert gc.isenabled()
    assert reserved() == baseline
    assert serving.manager.counts() == RunCounts()

    serving.model.inside = lambda rows: None
    serving.manager.capture()
    for descriptor in serving.candidates.capture_order:
        serving.compare(descriptor, 2)
    serving.manager.release()
    assert reserved() == baseline


def test_the_bytes_that_were_wanted_are_read_from_the_error() -> None:
    backend = CudaGraphs()
    with backend.side_stream(), pytest.raises(torch.OutOfMemoryError) as failed:
        backend.record(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    assert backend.wanted_bytes(failed.value) == 1 << 50
    assert CudaGraphs().wanted_bytes(KeyError("x")) is None
    del failed
    backend.release()


def test_recording_is_refused_elsewhere_and_inside_another() -> None:
    backend = CudaGraphs()
    x = torch.ones(4, device="cuda")
    with pytest.raises(CaptureError, match="side stream only"):
        backend.record(lambda: x + 1)

    def nested() -> Tensor:
        with pytest.raises(CaptureError, match="recorded already"):
            backend.record(lambda: x + 1)
        return x + 2

    with backend.side_stream():
        graph, made = backend.record(nested)
    assert not backend.is_recording()
    graph.replay()
    assert made.tolist() == [3] * 4
    del made
    graph.reset()
    backend.release()


def test_a_recording_in_segments_with_work_between_them() -> None:
    backend = CudaGraphs()
    x = torch.ones(4, device="cuda")
    with backend.side_stream():
        first = backend.begin()
        doubled = 2 * x
        backend.end(first)
        shifted = doubled + 1  # runs, and is not recorded
        second = backend.begin()
        squared = shifted * shifted
        backend.end(second)
    x.fill_(3)
    first.replay()
    torch.add(doubled, 1, out=shifted)
    second.replay()
    assert squared.tolist() == [49] * 4
    for graph in (first, second):
        graph.reset()
    backend.release()


def test_an_abandoned_recording_is_gone() -> None:
    backend = CudaGraphs()
    before = reserved()
    for _ in range(8):
        with backend.side_stream():
            graph = backend.begin()
            made = torch.ones(1 << 20, device="cuda")
            backend.abandon(graph)
            assert not backend.is_recording()
            with pytest.raises(RuntimeError):
                graph.replay()
        del made
        backend.release()
        backend.release()
    assert reserved() <= before + (1 << 21)  # one block of small things, of 8 times 4 MiB


def test_a_weak_tensor_is_the_same_memory_and_does_not_keep_it() -> None:
    strong = torch.arange(24.0, device="cuda").view(4, 6)[1:, ::2].t()
    weak = weak_tensor(strong)
    assert torch.equal(weak, strong)
    assert (weak.shape, weak.stride(), weak.dtype, weak.device) == (
        strong.shape,
        strong.stride(),
        strong.dtype,
        strong.device,
    )
    assert (weak.data_ptr(), weak.storage_offset()) == (strong.data_ptr(), strong.storage_offset())
    strong.fill_(7)
    assert weak.unique().tolist() == [7]
    allocated = torch.cuda.memory_allocated()
    del strong
    assert torch.cuda.memory_allocated() < allocated
    del weak
    assert torch.cuda.memory_allocated() < allocated


def test_weak_tensors_without_elements_or_on_the_cpu() -> None:
    empty = weak_tensor(torch.empty(0, 5, device="cuda", dtype=torch.bfloat16))
    assert (empty.shape, empty.dtype, empty.device.type) == ((0, 5), torch.bfloat16, "cuda")
    on_cpu = torch.ones(3)
    assert weak_tensor(on_cpu) is on_cpu


def test_free_bytes_heed_the_share_of_the_process() -> None:
    backend = CudaGraphs()
    free = backend.free_bytes()
    total = torch.cuda.get_device_properties(0).total_memory
    kept = reserved()
    try:
        torch.cuda.set_per_process_memory_fraction((kept + (64 << 20)) / total)
        assert backend.free_bytes() <= 65 << 20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert backend.free_bytes() > 64 << 20 or free <= 64 << 20
