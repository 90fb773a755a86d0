"""Several GPUs in one call: one trace for all, unless the model asks about its GPU. Needs a CUDA build of torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import TINY
from torch import Tensor, nn

from precast.aot import trace
from precast.aot.answers import search_path
from precast.aot.compile import CompileRequest, compile_pieces
from precast.aot.each_target import precompile_each
from precast.aot.kernels import pack_kernels, record_kernels
from precast.aot.planning import CompilePlan, plan_compile
from precast.aot.progress import Silent
from precast.aot.reference import SpecReference, parse_reference
from precast.aot.request import CompileInput, compile_input
from precast.aot.settings import resolve_settings
from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.target_list import settings_by_target, wanted_targets
from precast.aot.torch_seams.capture import capture_graph
from precast.aot.torch_seams.watch import CompileWatch
from precast.aot.traces import Traces

pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is a build for the CPU alone"),
]

MODEL = parse_reference(str(TINY))
VALUES = {"dtype": "bfloat16"}


def given(name: str) -> CompileInput:
    settings = resolve_settings({"target": name, "max_num_batched_tokens": 512}, {})
    return compile_input(MODEL.factors(VALUES), settings)


def plan(name: str, traces: Traces) -> CompilePlan:
    return plan_compile(MODEL, VALUES, given(name), search_path(MODEL), Silent(), traces)


def test_three_gpus_two_of_them_equal_are_two_entries_of_one_dynamo_trace(tmp_path: Path) -> None:
    flags = {"target": ("h200", "l40s", "h100"), "max_num_batched_tokens": 512}
    targets = wanted_targets(settings_by_target(flags, {}, {}), {})
    with CompileWatch() as watch:
        outcomes = precompile_each(str(TINY), targets, overrides=VALUES, cache_dir=tmp_path, dry_run=True)
        together = watch.counts()["dynamo_frames"]
    with CompileWatch() as watch:
        plan("h200", Traces())
        alone = watch.counts()["dynamo_frames"]
    assert together == alone > 0
    assert [o.wanted.names for o in outcomes] == [("h200", "h100"), ("l40s",)]
    assert [o.result.status for o in outcomes if o.result] == ["planned", "planned"]


def test_what_is_made_of_a_shared_trace_is_what_is_made_of_an_own_one() -> None:
    traces = Traces()
    plan("h200", traces)
    shared, own = plan("l40s", traces), plan("l40s", Traces())
    assert traces.count == 1
    assert shared.key == own.key
    built = []
    for made in (shared, own):
        target = given("l40s").target
        request = CompileRequest("aoti", target, {}, ("precast.examples.decoder.attention",), (), 0)
        (piece,) = compile_pieces([made.split.pieces[0]], [(1, 512)], request, Silent())
        built.append((piece.data, pack_kernels(record_kernels(made.spec, made.calls, target))))
    assert built[0] == built[1]


class Asks(nn.Module):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        return x * float(torch.cuda.get_device_properties(x.device).multi_processor_count)


def test_a_model_that_asks_about_its_gpu_is_traced_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(*_: Any) -> Any:
        raise AssertionError("not sampled")

    spec = ModelSpec("asks", Asks, (TensorInput("x", ("tokens", 8), "float32"),), (), sample)
    times: list[int] = []

    def counted(*args: Any) -> Any:
        times.append(1)
        return capture_graph(*args)

    monkeypatch.setattr(trace, "capture_graph", counted)
    reference, traces = SpecReference(spec), Traces()
    digests = []
    for name in ("h200", "l40s", "h100"):
        settings = resolve_settings({"target": name}, {})
        made = plan_compile(reference, {}, compile_input((), settings), (), Silent(), traces)
        digests.append(next(f.value for f in made.factors if f.label == "graph/graph"))
    assert (len(times), traces.count) == (2, 2)
    assert digests[0] == digests[2] != digests[1]
