"""The graph manager on the CPU: plan, capture, dispatch, run, release, and every way in which a capture can fail."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.capture.support import MEMORY, OutOfMemoryError, ReplayingBackend, ToldProgress, ToyModel, ToyState

from precast.capture.candidates import candidates
from precast.capture.context import current, forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch
from precast.capture.limits import BatchLimits, LoraLimits
from precast.capture.manager import GraphManager, RunCounts
from precast.capture.modes import CUDAGraphMode
from precast.errors import CaptureError, ExitCode, GraphMemoryError

SIZES = (1, 2, 4, 8, 16)
LIMITS = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8)
PAIR = CUDAGraphMode.FULL_AND_PIECEWISE


@pytest.fixture(autouse=True)
def collecting_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture collects once, which takes most of its time here; test_collecting.py has the collection itself."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class Serving:
    """A toy model with its manager."""

    def __init__(
        self,
        mode: CUDAGraphMode = PAIR,
        backend: ReplayingBackend | None = None,
        limits: BatchLimits = LIMITS,
        **options: Any,
    ) -> None:
        self.state = ToyState()
        self.model = ToyModel(self.state)
        self.backend = backend or ReplayingBackend()
        found = candidates(mode, SIZES, limits)
        self.manager = GraphManager(self.model, self.state, found, self.backend, **options)

    def step(self, *query_lens: int) -> torch.Tensor:
        """Dispatch and run a decode or mixed batch of random tokens; compare with the plain computation."""
        tokens = sum(query_lens)
        uniform = query_lens[0] if len(set(query_lens)) == 1 else None
        descriptor = self.manager.dispatch(len(query_lens), tokens, uniform)
        self.state.tokens.copy_(torch.rand(len(self.state.tokens)))
        self.state.scale.fill_(float(tokens))
        out, more = self.manager.run(descriptor)
        assert len(out) == descriptor.num_tokens
        expected = self.model.expected(self.state.tokens)[:tokens]
        torch.testing.assert_close(out[:tokens], expected)
        torch.testing.assert_close(more["twice"][:tokens], 2 * expected)
        return out


def is_clean(serving: Serving) -> bool:
    """Tell whether nothing of a capture is left."""
    held = sum(piece.graphs for piece in serving.model.pieces)
    busy = serving.backend.is_recording() or serving.backend.on_side or current() is not None
    return not busy and not held and not serving.backend.graphs and gc.isenabled() and gc.get_freeze_count() < 1_000


def test_every_batch_runs_right_on_the_graph_of_its_mode() -> None:
    serving = Serving()
    serving.manager.capture()
    before = list(serving.model.forwards)
    for query_lens in [(1,), (1,) * 3, (1,) * 8, (3, 1), (9,), (5, 5, 5), (1,) * 2, (16,)]:
        serving.step(*query_lens)
    assert serving.manager.counts() == RunCounts(piecewise=4, full=4)
    assert serving.model.forwards[len(before) :] == [1, 4, 8, 4, 16, 16, 2, 16]  # the backend replays FULL by a call


def test_a_batch_without_a_graph_runs_unpadded() -> None:
    serving = Serving()
    serving.manager.capture()
    assert len(serving.step(17)) == 17
    assert serving.model.forwards[-1] == 17
    assert serving.manager.counts() == RunCounts(none=1)


def test_before_capture_and_after_release_every_batch_is_none() -> None:
    serving = Serving()
    serving.step(1)
    serving.manager.capture()
    serving.step(1)
    serving.manager.release()
    serving.step(1)
    assert serving.manager.counts() == RunCounts(full=1, none=2)
    assert is_clean(serving)


def test_pieces_are_captured_before_full_graphs_and_the_largest_first() -> None:
    serving = Serving()
    report = serving.manager.capture()
    order = [(c.descriptor.mode, c.descriptor.num_tokens) for c in report.captured]
    pieces, full = CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
    assert order == [(pieces, n) for n in (16, 8, 4, 2, 1)] + [(full, n) for n in (8, 4, 2, 1)]
    assert [c.graphs for c in report.captured] == [3] * 5 + [1] * 4
    assert (report.graphs(pieces), report.graphs(full)) == (15, 4)


def test_ops_run_for_warm_up_and_full_graphs_but_not_while_pieces_are_captured() -> None:
    serving = Serving(CUDAGraphMode.PIECEWISE)
    serving.manager.capture()
    assert serving.model.ops == 2  # the one warm-up
    assert serving.model.forwards == [16]


@pytest.mark.parametrize(
    ("ranges", "warmed"),
    [((), [16, 8]), ([(1, 64)], [16, 8]), ([(1, 4), (5, 64)], [16, 4, 8, 4]), ([(3, 9)], [16, 8, 8, 2])],
)
def test_one_warm_up_for_each_mode_and_compile_range(ranges: list[tuple[int, int]], warmed: list[int]) -> None:
    serving = Serving(ranges=ranges)
    serving.manager.capture()
    plain = [d.num_tokens for _, d in serving.state.described if d and d.mode is CUDAGraphMode.NONE]
    assert plain == warmed


def test_a_warm_up_runs_with_the_most_adapters() -> None:
    serving = Serving(limits=BatchLimits(max_num_batched_tokens=64, max_num_seqs=8, lora=LoraLimits(max_loras=2)))
    serving.manager.capture()
    plain = [d for _, d in serving.state.described if d and d.mode is CUDAGraphMode.NONE]
    assert [(d.num_tokens, d.num_active_loras) for d in plain] == [(16, 3), (8, 3)]


def test_the_state_is_described_as_each_graph_needs_it() -> None:
    limits = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8, drafts=1)
    serving = Serving(CUDAGraphMode.FULL, limits=limits)
    serving.manager.capture()
    shapes = {d.num_tokens: shape for shape, d in serving.state.described if d and d.mode is CUDAGraphMode.FULL}
    assert shapes[16].query_lens == (2,) * 8
    assert shapes[16].max_query_len == 16  # a mixed batch may be one request
    assert shapes[2].query_lens == (1, 1)

    serving = Serving(PAIR, limits=limits)
    serving.manager.capture()
    described = [(shape, d) for shape, d in serving.state.described if d and d.mode is not CUDAGraphMode.NONE]
    assert {shape.max_query_len for shape, d in described if d.mode is CUDAGraphMode.PIECEWISE} == {None}
    assert {shape.max_query_len for shape, d in described if d.mode is CUDAGraphMode.FULL} == {2}
    assert all(set(shape.query_lens) == {2} for shape, d in described if d.mode is CUDAGraphMode.FULL)
    assert max(len(shape.query_lens) for shape, _ in described) == 8


def test_the_plan_is_of_the_right_graphs_and_becomes_what_was_measured() -> None:
    serving = Serving()
    plan = serving.manager.plan()
    assert plan.graphs == 3 * 5 + 4
    assert min(plan.seconds, plan.size) > 0
    report = serving.manager.capture()
    measured = serving.manager.plan()
    assert [p.descriptor for p in measured.planned] == [c.descriptor for c in report.captured]
    assert measured.size == 19 << 20
    serving.manager.release()
    assert serving.manager.plan() == plan


def test_pieces_of_several_compile_ranges_are_not_counted_for_each_size() -> None:
    assert Serving(ranges=[(1, 8), (9, 64)]).manager.plan().graphs == 2 * 5 + 4


def test_the_report_tells_seconds_bytes_and_phases() -> None:
    serving = Serving()
    report = serving.manager.capture()
    assert report.size == 19 << 20
    assert report.bytes_of(CUDAGraphMode.PIECEWISE) == 15 << 20
    assert report.bytes_of(CUDAGraphMode.FULL) == 4 << 20
    assert list(report.phases) == ["prepare", "warm-up", "piecewise", "full", "finish"]
    assert sum(report.phases.values()) <= report.seconds
    assert sum(c.seconds for c in report.captured) <= report.seconds


def test_the_progress_is_told_the_plan_and_each_descriptor() -> None:
    serving, told = Serving(), ToldProgress()
    serving.manager.capture(told)
    assert told.started == [("capture piecewise", 5), ("capture full", 4)]
    assert told.finished == ["capture piecewise", "capture full"]
    assert told.advanced[:2] == [("capture piecewise", "16 tokens"), ("capture piecewise", "8 tokens")]
    assert told.advanced[-1] == ("capture full", "1 token, 1 request")
    assert told.notes[0].startswith("capturing 19 graphs: about ")


def test_garbage_collection_is_held_off_during_the_capture_only() -> None:
    serving = Serving()
    seen: list[bool] = []
    model: Any = serving.model
    run = model.pieces_only

    def watched(*inputs: Any) -> Any:
        seen.append(gc.isenabled())
        return run(*inputs)

    model.pieces_only = watched
    serving.manager.capture()
    assert seen == [False] * 5
    assert gc.isenabled()


def test_a_second_capture_is_refused_until_the_first_is_released() -> None:
    serving = Serving()
    serving.manager.capture()
    with pytest.raises(CaptureError, match="captured already"):
        serving.manager.capture()
    serving.step(1)
    serving.manager.release()
    serving.manager.release()
    assert serving.backend.log.count("release") == 2
    serving.manager.capture()
    serving.step(1)
    assert serving.manager.counts() == RunCounts(full=2)


def test_mode_none_captures_nothing() -> None:
    serving = Serving(CUDAGraphMode.NONE)
    report = serving.manager.capture()
    assert (report.captured, report.size, serving.state.described) == ((), 0, [])
    serving.step(1)
    assert serving.manager.counts() == RunCounts(none=1)


@pytest.mark.parametrize("mode", [CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL])
def test_a_descriptor_that_nobody_captured_runs_and_is_counted(mode: CUDAGraphMode) -> None:
    serving = Serving()
    serving.manager.capture()
    graphs = len(serving.backend.graphs)
    out, _ = serving.manager.run(BatchDescriptor(mode, 3, 3))
    assert len(out) == 3
    assert serving.manager.counts() == RunCounts(uncaptured=1)
    assert len(serving.backend.graphs) == graphs


def test_calls_of_single_pieces_without_a_graph_are_counted() -> None:
    serving = Serving(CUDAGraphMode.FULL_DECODE_ONLY)
    serving.manager.capture()
    with forward_context(BatchDescriptor(CUDAGraphMode.PIECEWISE, 4)):
        serving.model.forward(*serving.state.inputs(4))
    assert serving.manager.counts() == RunCounts(uncaptured=3)


def test_a_graph_that_appears_after_the_capture_is_counted() -> None:
    serving = Serving()
    serving.manager.capture()
    with serving.backend.side_stream(), forward_context(BatchDescriptor(CUDAGraphMode.PIECEWISE, 3), serving.backend):
        serving.model.forward(*serving.state.inputs(3))
    assert serving.manager.counts() == RunCounts(late_captures=3)


def test_agreement_comes_between_dispatch_and_run() -> None:
    asked: list[tuple[Batch, BatchDescriptor]] = []

    def agree(batch: Batch, found: BatchDescriptor, again: Callable[..., BatchDescriptor]) -> BatchDescriptor:
        asked.append((batch, found))
        return again(batch.num_reqs, 8)  # another rank has more tokens

    serving = Serving(CUDAGraphMode.PIECEWISE, agree=agree)
    serving.manager.capture()
    assert len(serving.step(1, 2)) == 8
    ((batch, found),) = asked
    assert (batch.num_reqs, batch.num_tokens, found.num_tokens) == (2, 3, 4)


@pytest.mark.parametrize("graphs", [0, 1, 4, 14, 15, 18])
def test_too_little_memory_stops_at_that_size_and_releases_everything(graphs: int) -> None:
    cost = 1 << 20
    serving = Serving(backend=ReplayingBackend(free=graphs * cost + cost // 2, cost=cost))
    with pytest.raises(GraphMemoryError) as failed:
        serving.manager.capture()
    error = failed.value
    assert (error.code, error.exit_code) == ("capture.memory", ExitCode.CAPTURE_FAILED)
    order = serving.manager._candidates.capture_order
    done = graphs // 3 if graphs < 15 else graphs - 10
    assert [fit["num_tokens"] for fit in error.details["fit"]] == [d.num_tokens for d in order[:done]]
    assert error.details["failed"]["num_tokens"] == order[done].num_tokens
    assert error.details["need_bytes"] >= cost
    assert error.details["free_bytes"] == cost // 2
    assert order[done].mode.name in error.what
    assert "0.5 MiB are free" in error.why
    assert isinstance(error.__cause__, OutOfMemoryError)
    assert is_clean(serving)
    assert serving.backend.free_bytes() == serving.backend.memory
    serving.step(1)
    assert serving.manager.counts() == RunCounts(none=1)


def test_the_error_says_which_sizes_fit() -> None:
    cost = 1 << 20
    serving = Serving(backend=ReplayingBackend(free=16 * cost, cost=cost))
    with pytest.raises(GraphMemoryError) as failed:
        serving.manager.capture()
    assert failed.value.what == "too little device memory to capture FULL graphs of 4 tokens, 4 requests"
    assert failed.value.why.endswith(
        "PIECEWISE of 16 down to 1 tokens fit (5); FULL of 8 down to 8 tokens fit (1)"
    )  # fmt: skip
    serving = Serving(backend=ReplayingBackend(free=0))
    with pytest.raises(GraphMemoryError, match="none fits"):
        serving.manager.capture()


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_capture_that_fails_in_any_way_leaves_a_clean_state(after: int, stop: type[BaseException]) -> None:
    serving = Serving()
    calls = iter(range(100))

    def failing(run: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*inputs: Any) -> Any:
            result = run(*inputs)
            if next(calls) == after:
                raise stop
            return result

        return forward

    model: Any = serving.model
    model.forward, model.pieces_only = failing(model.forward), failing(model.pieces_only)
    with pytest.raises(stop):
        serving.manager.capture()
    assert is_clean(serving)
    assert serving.backend.free_bytes() == MEMORY
    del model.forward, model.pieces_only
    serving.manager.capture()
    serving.step(3)
    serving.step(1)


@pytest.mark.parametrize("free", [MEMORY, 0])
def test_the_error_of_a_failed_capture_keeps_no_tensors(free: int) -> None:
    serving = Serving(backend=ReplayingBackend(free=free))
    made: list[weakref.ref[torch.Tensor]] = []
    model: Any = serving.model
    run = model.pieces_only

    def failing(tokens: torch.Tensor) -> None:
        kept = torch.ones(4)
        made.append(weakref.ref(kept))
        run(tokens)
        raise ValueError

    model.pieces_only = failing
    with pytest.raises((ValueError, GraphMemoryError)) as failed:
        serving.manager.capture()
    assert isinstance(failed.value, ValueError if free else GraphMemoryError)
    assert made[0]() is None


def test_piecewise_without_wrapped_pieces_is_refused() -> None:
    serving = Serving()
    model: Any = serving.model
    model.pieces = []
    model.pieces_only = model.forward = lambda tokens: tokens
    with pytest.raises(CaptureError, match="no piece recorded a graph"):
        serving.manager.capture()
    assert is_clean(serving)


def test_an_error_of_the_release_does_not_hide_why_the_capture_failed() -> None:
    class Lost(ReplayingBackend):
        def synchronize(self) -> None:
            raise RuntimeError("the device is lost")

    serving = Serving(backend=Lost(free=0))
    with pytest.raises(GraphMemoryError) as failed:
        serving.manager.capture()
    assert failed.value.__notes__ == ["releasing the graphs failed too: the device is lost"]
