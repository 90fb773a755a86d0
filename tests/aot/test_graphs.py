"""A loaded model with graphs: wrapped by position, captured without attention, equal to the model without graphs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.aot import graphed
from tests.aot.graphed import one_thread  # noqa: F401 - a fixture
from tests.aot.support import PIECE, SPAN, loaded, plan
from tests.capture.support import ReplayingBackend, ToldProgress, ToyState
from tests.models import make_spec, small, split_spec, stitched_forward
from torch import Tensor

from precast.aot.binding import bind_forward, bind_state, resolve_op
from precast.aot.graphs import GraphedModel, capture_graphs, cuda_backend, graph_candidates, omissible
from precast.aot.load import CompiledModel
from precast.cache.manifest import SettingRecord
from precast.capture.breakable import eager_break_during_capture
from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.manager import Agree
from precast.capture.modes import CUDAGraphMode
from precast.capture.segmented import BreakableModel
from precast.capture.state import BatchShape
from precast.errors import ConfigValueError, NoGpuError, UsageError
from precast.splitter.plan import CallOp, RunPiece

OPS = torch.ops.precast_tests


def model() -> tuple[CompiledModel, Any]:
    module = graphed.module()
    bound = bind_state(graphed.pieces(), module)
    return CompiledModel(bound.pieces.manifest, bind_forward(bound), bound=bound), module


def test_every_position_of_every_range_is_wrapped_once() -> None:
    made = GraphedModel(graphed.bound())
    assert len(made.pieces) == (graphed.LAYERS + 1) * len(graphed.RANGES)
    assert len(set(map(id, made.pieces))) == len(made.pieces)


def test_outside_of_any_step_it_is_the_model_itself() -> None:
    bound = graphed.bound()
    made, plain = GraphedModel(bound), bind_forward(bound)
    state = graphed.state(graphed.module())
    with torch.no_grad(), state.use():
        for shape in (BatchShape((3, 1), 4), BatchShape((20, 9), 29)):
            outputs = []
            for forward in (made.forward, plain):
                state.fill(shape, 0)
                outputs.append(forward(*state.inputs(shape.num_tokens)).clone())
            torch.testing.assert_close(*outputs)


def test_the_ops_of_attention_need_not_run_for_a_capture() -> None:
    split_plan = graphed.traced().plan
    ops = {at for at, step in enumerate(split_plan.steps) if isinstance(step, CallOp)}
    assert omissible(split_plan) == ops
    assert len(ops) == graphed.LAYERS


def test_attention_runs_in_the_whole_forward_and_not_while_pieces_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting(name: str, overload: str) -> Any:
        op = resolve_op(name, overload)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return op(*args, **kwargs)

        return call

    monkeypatch.setattr("precast.aot.binding.resolve_op", counting)
    made = GraphedModel(graphed.bound())
    state = graphed.state(graphed.module())
    with torch.no_grad(), state.use():
        state.fill(BatchShape((3,), 4), 0)
        for forward, expected in ((made.pieces_only, 0), (made.forward, graphed.LAYERS)):
            calls.clear()
            forward(*state.inputs(4))
            assert len(calls) == expected


class FakeOp:
    def __init__(self, *tags: Any) -> None:
        self.tags = tags


@pytest.mark.parametrize(
    ("output", "op", "omitted"),
    [
        (None, FakeOp(), True),
        (None, FakeOp(torch.Tag.inplace_view), False),
        ("y", FakeOp(), False),
        (None, len, True),
    ],
)
def test_only_an_op_that_moves_no_tensor_and_whose_result_is_unused_is_omissible(
    output: str | None, op: Any, omitted: bool
) -> None:
    base = plan()
    step = CallOp("ns::op", "default", ({"$ref": "r"},), (), output)
    made = type(base)(base.arguments, base.inputs, (*base.steps, step), base.result, base.token_input)
    assert omissible(made, lambda name, overload: op) == (frozenset({1}) if omitted else frozenset())


def result_used(self: Any, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    OPS.write(out, x * 2)
    y = OPS.attend(out + 1)
    return torch.relu(y) + out


def test_an_op_whose_result_is_used_runs_and_what_it_makes_may_move() -> None:
    spec = make_spec(small(result_used), ops=("precast_tests::attend", "precast_tests::write"))
    made = split_spec(spec)
    (write, attend) = (at for at, step in enumerate(made.plan.steps) if isinstance(step, CallOp))
    assert omissible(made.plan) == {write}
    step = made.plan.steps[attend]
    assert isinstance(step, CallOp)
    last = made.plan.steps[-1]
    assert isinstance(last, RunPiece)
    assert step.output in last.inputs
    assert stitched_forward(made, spec.build())(torch.ones(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
def test_captured_steps_equal_the_model_without_graphs(mode: str) -> None:
    compiled, module = model()
    state, backend, told = graphed.state(module), ReplayingBackend(), ToldProgress()
    manager = capture_graphs(
        compiled, state, graphed.LIMITS, mode=mode, sizes=[1, 2, 4, 8, 16], backend=backend, progress=told
    )
    assert told.started
    graphs = len(backend.graphs)
    batches = [((1,) * reqs, False) for reqs in (1, 3, 8)] + [((5, 2), True), ((9, 1, 3), True), ((40,), True)]
    with torch.no_grad(), state.use():
        for query_lens, prefilling in batches:
            tokens = sum(query_lens)
            descriptor = manager.dispatch(
                len(query_lens), tokens, None if prefilling else 1, max_query_len=None if prefilling else 1
            )
            shape = BatchShape(query_lens, descriptor.num_tokens)
            state.fill(shape, tokens)
            expected = module(*state.inputs(tokens))
            wrote = state.written(shape)
            state.fill(shape, tokens)
            found = manager.run(descriptor)[:tokens].clone()
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(state.written(shape), wrote)
    counts = manager.counts()
    assert (counts.late_captures, counts.uncaptured) == (0, 0)
    assert counts.full + counts.piecewise + counts.none == len(batches)
    assert counts.none < len(batches)
    assert len(backend.graphs) == graphs
    manager.release()


def test_pieces_are_captured_each_in_a_graph_of_its_own_and_without_attention() -> None:
    compiled, module = model()
    state, backend = graphed.state(module), ReplayingBackend()
    manager = capture_graphs(
        compiled, state, graphed.LIMITS, mode=CUDAGraphMode.PIECEWISE, sizes=[2, 4, 16], backend=backend
    )
    assert len(backend.graphs) == 3 * (graphed.LAYERS + 1)
    assert all(layer.eq(0).all() for layer in state.context.cache.keys_L), "a capture wrote to the cache"
    manager.release()


def test_no_size_is_larger_than_what_the_entry_was_compiled_for() -> None:
    found = graph_candidates(graphed.bound(), BatchLimits(8192, 256), mode=CUDAGraphMode.PIECEWISE)
    assert found.limits.max_num_batched_tokens == 64
    assert max(found.sizes) == 64
    chosen = graph_candidates(graphed.bound(), BatchLimits(8, 4), mode=CUDAGraphMode.PIECEWISE, sizes=[3, 100])
    assert chosen.sizes == (3,)


def test_a_model_without_a_token_dim_is_refused() -> None:
    static = loaded(plan({"x": ("float32", (3, 4))}), {SPAN: lambda inputs: [inputs[0]]})
    assert static.bound is not None
    with pytest.raises(UsageError, match="static shapes"):
        graph_candidates(static.bound, BatchLimits(), mode=CUDAGraphMode.FULL)


def test_without_a_gpu_capture_is_refused_with_one_clear_line() -> None:
    compiled, module = model()
    with pytest.raises(NoGpuError) as caught:
        capture_graphs(compiled, graphed.state(module), graphed.LIMITS)
    assert "compiled for the cpu" in caught.value.why
    assert compiled.bound is not None
    on_gpu = type(compiled.bound)(compiled.bound.pieces, compiled.bound.values, "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(NoGpuError, match="none is usable"):
            cuda_backend(on_gpu)


def test_a_mode_that_is_none_and_a_bare_forward_are_refused() -> None:
    compiled, module = model()
    state = graphed.state(module)
    with pytest.raises(ConfigValueError, match="SOME"):
        capture_graphs(compiled, state, graphed.LIMITS, mode="SOME")
    with pytest.raises(UsageError, match="no pieces"):
        capture_graphs(CompiledModel(compiled.manifest, len), state, graphed.LIMITS)


def test_a_breakable_model_is_captured_by_the_same_manager() -> None:
    state, backend = ToyState(), ReplayingBackend()

    @eager_break_during_capture
    def scale(x: Tensor, out: Tensor) -> None:
        torch.mul(x, state.scale, out=out)

    def forward(tokens: Tensor) -> Tensor:
        x = tokens + 1
        out = torch.empty_like(x)
        scale(x, out)
        return out + 1

    limits = BatchLimits(max_num_batched_tokens=8, max_num_seqs=4)
    manager = capture_graphs(BreakableModel(forward), state, limits, sizes=[2, 4, 8, 16], backend=backend)
    assert max(d.num_tokens for d in manager.dispatcher.candidates.capture_order) == 8
    for batch, mode in (((2, 3), "PIECEWISE"), ((3, 3, 1), "FULL")):
        state.fill(BatchShape((1,), 1), seed=1)
        state.scale.fill_(3.0)
        descriptor = manager.dispatch(*batch)
        assert descriptor.mode.name == mode
        torch.testing.assert_close(manager.run(descriptor)[:3], (state.tokens[:3] + 1) * 3 + 1)
    manager.release()
    if not torch.cuda.is_available():
        with pytest.raises(NoGpuError, match="a breakable model needs a GPU"):
            capture_graphs(BreakableModel(forward), state, limits)


def test_other_ranks_are_asked_about_what_will_be_captured() -> None:
    compiled, module = model()
    asked: list[Candidates] = []
    none = BatchDescriptor(CUDAGraphMode.NONE, 1, 1)

    def agree(found: Candidates) -> Agree:
        assert backend.graphs == [], "it comes before the capture"
        asked.append(found)
        return lambda batch, descriptor, dispatch: none

    backend = ReplayingBackend()
    manager = capture_graphs(
        compiled, graphed.state(module), graphed.LIMITS, sizes=[1, 2], backend=backend, agree=agree
    )
    assert asked == [manager.dispatcher.candidates]
    assert manager.dispatch(1, 1, 1) == none
    manager.release()


def test_a_failed_capture_holds_nothing() -> None:
    compiled, module = model()
    backend = ReplayingBackend(free=3, cost=1)
    with pytest.raises(Exception, match="too little"):
        capture_graphs(compiled, graphed.state(module), graphed.LIMITS, backend=backend)
    assert backend.graphs == []
    assert PIECE


def test_the_mode_is_what_the_entry_s_settings_came_to_unless_it_is_given() -> None:
    compiled, module = model()
    assert compiled.bound is not None
    settled = (SettingRecord("cudagraph_mode", "PIECEWISE", "level", "FULL_AND_PIECEWISE", "attention is NEVER"),)
    manifest = replace(compiled.manifest, settings=settled)
    pieces = replace(compiled.bound.pieces, manifest=manifest)
    lowered = CompiledModel(manifest, len, bound=replace(compiled.bound, pieces=pieces))
    for given, captured in ((None, {"PIECEWISE"}), ("FULL", {"FULL"})):
        manager = capture_graphs(
            lowered, graphed.state(module), graphed.LIMITS, mode=given, sizes=[1, 2, 4], backend=ReplayingBackend()
        )
        assert {p.descriptor.mode.name for p in manager.plan().planned} == captured
        manager.release()
