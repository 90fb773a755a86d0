"""What level `capture` is to do, and what stands in its way."""

from dataclasses import replace
from typing import Any

import pytest
from tests.aot import graphed
from tests.aot.support import Recorder

from precast.aot.capture_request import CaptureRequest, Obstacle, capture_request, require_gpu
from precast.aot.loaded import LoadedEntry
from precast.aot.phases import PhaseClock
from precast.aot.settings import Settings, resolve_settings
from precast.aot.spec import ModelSpec
from precast.aot.subject import Subject
from precast.aot.torch_seams.watch import CompileWatch
from precast.capture.modes import CUDAGraphMode
from precast.capture.support import AttentionGraphSupport
from precast.errors import ExitCode, NoGpuError, UsageError

ATTENTION = "precast::paged_attention"


class Source:
    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest


def entry(spec: ModelSpec | None = None, device: str = "cuda") -> LoadedEntry:
    """Return a loaded entry of a decoder; its model is built on the CPU whatever the manifest says."""
    loaded = graphed.pieces()
    manifest = replace(loaded.manifest, target={**loaded.manifest.target, "device": device})
    given = spec or decoder()
    made = LoadedEntry(Subject(Source(manifest), lambda: given), loaded, CompileWatch(), PhaseClock(), Recorder())  # type: ignore[arg-type]
    made._model = graphed.model(given)
    return made


def decoder(support: AttentionGraphSupport = AttentionGraphSupport.ALWAYS, **changes: Any) -> ModelSpec:
    made = replace(graphed.spec(), graph_state=graphed.state, graph_support={ATTENTION: support})
    return replace(made, **changes)


def settings(**given: object) -> Settings:
    return resolve_settings({"target": "h200", **given})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.capture_request.detect_device", lambda _: "cuda")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.capture_request.detect_device", lambda _: "cpu")


@pytest.mark.usefixtures("gpu")
def test_settings_say_what_is_captured() -> None:
    given = settings(
        cudagraph_capture_sizes="1,8,32", max_num_seqs=16, drafts=1, interactivity=True, max_num_batched_tokens=2048
    )
    found = capture_request(entry(), given, bench=True)
    assert isinstance(found, CaptureRequest)
    assert (found.mode, found.sizes, found.largest) == (CUDAGraphMode.FULL_AND_PIECEWISE, (1, 8, 32), None)
    assert (found.limits.max_num_seqs, found.limits.drafts, found.limits.max_num_batched_tokens) == (16, 1, 2048)
    assert (found.bench, found.interactivity, found.lowered) == (True, True, ())
    largest = capture_request(entry(), settings(max_cudagraph_capture_size=64), bench=False)
    assert isinstance(largest, CaptureRequest)
    assert (largest.sizes, largest.largest, largest.bench) == (None, 64, False)


@pytest.mark.usefixtures("gpu")
def test_a_mode_that_attention_cannot_be_captured_in_is_lowered_and_that_is_recorded() -> None:
    found = capture_request(entry(decoder(AttentionGraphSupport.NEVER)), settings(), bench=False)
    assert isinstance(found, CaptureRequest)
    assert found.mode is CUDAGraphMode.PIECEWISE
    (lowered,) = found.lowered
    assert (lowered["from"], lowered["to"]) == ("FULL_AND_PIECEWISE", "PIECEWISE")
    assert ATTENTION in str(lowered["reason"])


@pytest.mark.usefixtures("gpu")
def test_lowered_to_none_is_an_obstacle_with_every_reason() -> None:
    never = decoder(AttentionGraphSupport.NEVER)
    found = capture_request(entry(never), settings(cudagraph_mode="FULL_DECODE_ONLY", compile=False), bench=False)
    assert isinstance(found, Obstacle)
    assert isinstance(found.problem, UsageError)
    assert "became NONE" in found.why


@pytest.mark.usefixtures("gpu")
def test_a_mode_that_cannot_hold_at_all_is_told() -> None:
    never = decoder(AttentionGraphSupport.NEVER)
    found = capture_request(entry(never), settings(cudagraph_mode="FULL"), bench=False)
    assert isinstance(found, Obstacle)
    assert found.problem is not None
    assert found.problem.exit_code == ExitCode.USAGE


@pytest.mark.usefixtures("gpu")
def test_a_spec_that_allocates_no_buffers_is_an_obstacle() -> None:
    found = capture_request(entry(decoder(graph_state=None)), settings(), bench=False)
    assert isinstance(found, Obstacle)
    assert isinstance(found.problem, UsageError)
    assert "graph_state" in found.why


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("device", "why"),
    [("cuda", "compiled for a GPU and none is usable"), ("cpu", "compiled for the cpu, which has no CUDA graphs")],
)
def test_without_a_gpu_or_an_entry_for_one_nothing_can_be_captured(device: str, why: str) -> None:
    made = entry(device=device)
    found = capture_request(made, settings(), bench=False)
    assert isinstance(found, Obstacle)
    assert why in found.why
    with pytest.raises(NoGpuError, match="graphs cannot be captured") as caught:
        require_gpu(made.subject.manifest, settings())
    assert why in caught.value.why
    assert int(caught.value.exit_code) == 9


@pytest.mark.parametrize("target", ["cpu", "h200"])
def test_a_mode_lowered_for_the_cpu_was_asked_for_all_the_same(no_gpu: None, target: str) -> None:
    made = entry(device="cpu")
    with pytest.raises(NoGpuError):
        require_gpu(made.subject.manifest, settings(target=target))


@pytest.mark.usefixtures("no_gpu")
def test_mode_none_asks_for_no_graphs_and_needs_no_gpu() -> None:
    for given in (settings(cudagraph_mode="NONE"), settings(optimization_level=0)):
        made = entry(device="cuda")
        require_gpu(made.subject.manifest, given)
        found = capture_request(made, given, bench=False)
        assert found == Obstacle("mode NONE captures no graphs", None)


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_an_entry_for_one_is_let_through() -> None:
    require_gpu(entry().subject.manifest, settings())
    with pytest.raises(NoGpuError):
        require_gpu(entry(device="cpu").subject.manifest, settings())
