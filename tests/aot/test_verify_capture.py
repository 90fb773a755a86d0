"""Level `capture`, through a backend that replays on the CPU: what it proves, and each way in which it must fail."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.aot import graphed
from tests.aot.graphed import one_thread  # noqa: F401 - a fixture
from tests.aot.support import Recorder
from tests.capture.support import ReplayingBackend

from precast.aot.binding import LoadedPieces
from precast.aot.capture_request import CaptureRequest
from precast.aot.loaded import LoadedEntry
from precast.aot.phases import OTHER, PhaseClock
from precast.aot.subject import Subject
from precast.aot.torch_seams.watch import CompileWatch
from precast.aot.verify_capture import check_capture
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.state import BatchShape
from precast.errors import CaptureError, GraphMemoryError, NoGpuError, VerifyError
from precast.examples.decoder.serving import DecoderState

SIZES = (1, 2, 4, 8, 16)
BOTH = CUDAGraphMode.FULL_AND_PIECEWISE
Found = tuple[str, dict[str, Any], str]


class Source:
    """An opened entry of which only the manifest is looked at."""

    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest


def entry(pieces: LoadedPieces | None = None, make_state: Any = graphed.state, progress: Any = None) -> LoadedEntry:
    loaded = pieces or graphed.pieces()
    spec = replace(graphed.spec(), graph_state=make_state)
    subject = Subject(Source(loaded.manifest), lambda: spec)  # type: ignore[arg-type]
    return LoadedEntry(subject, loaded, CompileWatch(), PhaseClock(), progress or Recorder())


def request(mode: CUDAGraphMode = BOTH, **changes: Any) -> CaptureRequest:
    return replace(CaptureRequest(graphed.LIMITS, mode, sizes=SIZES, batches=5), **changes)


def check(
    given: LoadedEntry | None = None, asked: CaptureRequest | None = None, backend: Any = None
) -> tuple[LoadedEntry, Found]:
    given = given or entry()
    with given.watch:
        return given, check_capture(given, asked or request(), backend or ReplayingBackend())


@cache
def sound() -> tuple[LoadedEntry, Found]:
    """Check a sound entry once, with everything on."""
    return check(asked=request(bench=True, batches=40))


def test_every_planned_graph_is_captured_compared_and_served() -> None:
    given, (summary, facts, status) = sound()
    told = given.progress
    assert isinstance(told, Recorder)
    assert status == "ok"
    # 8 requests at most: FULL has sizes 8, 4, 2, 1, PIECEWISE all five
    assert facts["modes"]["PIECEWISE"]["sizes"] == 5
    assert facts["modes"]["PIECEWISE"]["graphs"] == 5 * (graphed.LAYERS + 1)
    assert facts["modes"]["FULL"]["graphs"] == 4
    assert facts["plan"]["graphs"] == sum(mode["graphs"] for mode in facts["modes"].values())
    assert facts["compared"] == len(facts["graphs"]) == 9
    assert facts["limit"] > 0
    assert facts["max_relative_error"] <= facts["limit"]
    assert all(facts["modes"][m]["bytes"] > 0 for m in facts["modes"]), "memory of each mode is told"
    assert sum(f"advance: compare graphs {m} " in line for m in facts["modes"] for line in told.told) == 9
    for part in ("PIECEWISE 15 graphs", "FULL 4 graphs", "0 compiles, 0 late captures"):
        assert part in summary


def test_random_batches_run_on_all_kinds_of_graphs_and_nothing_is_captured_late() -> None:
    served = sound()[1][1]["served"]
    assert served["full"] + served["piecewise"] + served["none"] == served["batches"] == 40
    assert min(served["full"], served["piecewise"], served["none"]) > 0
    assert sum(served["without_graph"].values()) == served["none"]
    assert (served["late_captures"], served["uncaptured"], served["compared"]) == (0, 0, 4)
    assert [served[k] for k in ("dynamo_frames", "inductor_compiles", "triton_compiles")] == [0] * 3


def test_the_phases_name_what_took_the_time() -> None:
    given, (_, facts, _) = sound()
    phases = given.clock.seconds()
    assert {
        "build model", "bind", "graph state", "warm-up", "capture PIECEWISE", "capture FULL", "compare graphs",
        "random batches", "bench", "release graphs", OTHER,
    } <= set(phases)  # fmt: skip
    assert phases["capture PIECEWISE"] >= facts["modes"]["PIECEWISE"]["seconds"]


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_DECODE_ONLY"])
def test_each_mode_alone(mode: str) -> None:
    _, (_, facts, status) = check(asked=request(CUDAGraphMode[mode]))
    assert status == "ok"
    assert set(facts["modes"]) == {"PIECEWISE" if mode == "PIECEWISE" else "FULL"}
    assert "bench" not in facts, "what was not asked for was timed"


def test_drafts_are_compared_and_served_too() -> None:
    limits = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8, drafts=2)
    _, (_, facts, _) = check(asked=request(limits=limits, sizes=(3, 6, 12, 24)))
    assert {g["uniform_token_count"] for g in facts["graphs"] if g["mode"] == "FULL"} == {3}


def test_adaptive_verification_has_graphs_for_any_length_up_to_the_drafts() -> None:
    limits = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8, drafts=2, adaptive_verification=True)
    _, (_, facts, _) = check(asked=request(limits=limits, sizes=(3, 6, 12, 24), batches=10))
    assert facts["served"]["full"] > 0


def test_the_bench_has_all_ways_and_the_floor() -> None:
    facts = sound()[1][1]
    rows = facts["bench"]["rows"]
    assert [row["batch"] for row in rows] == [1, 8]
    assert all(set(row["ms"]) == {"full", "piecewise", "none", "eager"} for row in rows)
    assert all(min(row["ms"].values()) > 0 for row in rows)
    assert all(row["floor_ms"] > 0 for row in rows)
    assert facts["bench"]["copy_bytes_per_second"] > 0


@pytest.mark.parametrize(("span", "named"), [((1, 8), "FULL 8"), ((9, 64), "PIECEWISE 16")])
def test_a_graph_that_computes_something_else_is_named(span: tuple[int, int], named: str) -> None:
    with pytest.raises(VerifyError, match="compute wrong numbers") as caught:
        check(entry(graphed.wrong_at(span, graphed.pieces())))
    assert named in caught.value.what
    assert "result" in caught.value.why


def test_a_random_batch_that_runs_without_a_graph_is_compared_too() -> None:
    pieces = graphed.pieces()
    last = pieces.plan.pieces[-1].key
    wrong = {(key, span): _wrong_from(2, run) for (key, span), run in pieces.callables.items() if key == last}
    asked = request(sizes=(1,), batches=1)
    with pytest.raises(VerifyError, match="1 of 1 compared steps compute wrong numbers: NONE"):
        check(entry(replace(pieces, callables={**pieces.callables, **wrong})), asked)


def _wrong_from(rows: int, right: Any) -> Any:
    def run(inputs: list[Any]) -> Any:
        outputs = right(inputs)
        return outputs if len(outputs[0]) < rows else [out + 0.5 for out in outputs]

    return run


class StaleGraph(ReplayingBackend):
    """A backend whose replays do nothing from the second graph of its kind on: what a graph holds is stale."""

    def record(self, function: Any) -> Any:
        graph, outputs = super().record(function)
        graph.keep(lambda: None)  # type: ignore[attr-defined]
        return graph, outputs


def test_a_replay_that_does_nothing_is_found() -> None:
    with pytest.raises(VerifyError, match="9 of 9 compared steps compute wrong numbers"):
        check(backend=StaleGraph())


class ForgetfulState(DecoderState):
    """A state in which the batch of a graph wrote something else for its first token in one layer."""

    def written(self, shape: BatchShape) -> Any:
        self.looks = getattr(self, "looks", 0) + 1
        keys, values = super().written(shape)
        if self.looks % 2 == 0:
            keys[1, 0] *= 1.01
        return keys, values


def test_what_was_written_to_the_cache_is_compared_too() -> None:
    with pytest.raises(VerifyError) as caught:
        check(entry(make_state=ForgetfulState))
    assert caught.value.why.startswith("cache[0]")


def test_rows_of_padding_are_not_compared_and_may_hold_nan() -> None:
    class Poisoned(DecoderState):
        def fill(self, shape: BatchShape, seed: int) -> None:
            super().fill(shape, seed)
            self.input_ids_T[sum(shape.query_lens) : shape.num_tokens] = 7

    assert check(entry(make_state=Poisoned))[1][2] == "ok"


def test_a_compile_in_a_replay_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    given, real = entry(), GraphManager.run

    def run(self: GraphManager, descriptor: Any) -> Any:
        given.watch._count("triton_compiles", "kernel")
        return real(self, descriptor)

    monkeypatch.setattr(GraphManager, "run", run)
    with pytest.raises(VerifyError, match=r"traced or compiled: .*triton compiles 9"):
        check(given)


def test_own_kernels_may_be_compiled_in_the_warm_up_of_an_entry_without_them_but_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = GraphManager.capture

    def counting(kind: str) -> LoadedEntry:
        given = entry()

        def capture(self: GraphManager, progress: Any = None) -> Any:
            given.watch._count(kind, "kernel")
            return real(self, progress)

        monkeypatch.setattr(GraphManager, "capture", capture)
        return given

    assert check(counting("triton_compiles"))[1][2] == "ok"
    with pytest.raises(VerifyError, match="inductor compiles 1"):
        check(counting("inductor_compiles"))
    given = counting("triton_compiles")
    given.pieces = replace(given.pieces, kernels=("a kernel",))  # type: ignore[arg-type]
    monkeypatch.setattr("precast.aot.binding.offer_kernels", lambda *_: None)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    with pytest.raises(VerifyError, match="triton compiles 1"):
        check(given)


def test_a_graph_that_is_missing_after_the_capture_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GraphManager.counts
    monkeypatch.setattr(GraphManager, "counts", lambda self: replace(real(self), uncaptured=2))
    with pytest.raises(VerifyError, match="2 were missing"):
        check()


def test_too_little_memory_is_passed_on_and_everything_is_released() -> None:
    backend = ReplayingBackend(free=12, cost=1)
    with pytest.raises(GraphMemoryError) as caught:
        check(backend=backend)
    assert isinstance(caught.value, CaptureError)
    assert (backend.graphs, backend.log[-1]) == ([], "release")


def test_too_little_memory_for_the_buffers_is_told_with_what_to_lower() -> None:
    def too_large(module: Any, limits: BatchLimits) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB")

    with pytest.raises(GraphMemoryError, match="8 requests") as caught:
        check(entry(make_state=too_large))
    assert "90 GiB" in caught.value.why
    assert "--max-num-seqs" in caught.value.hint


def test_graphs_are_released_after_success_and_failure() -> None:
    backend = ReplayingBackend()
    check(backend=backend)
    assert (backend.graphs, backend.log[-1]) == ([], "release")
    backend = StaleGraph()
    with pytest.raises(VerifyError):
        check(backend=backend)
    assert (backend.graphs, backend.log[-1]) == ([], "release")


def test_the_replaying_backend_is_only_for_tests() -> None:
    given = entry()
    with pytest.raises(NoGpuError), given.watch:
        check_capture(given, request())
