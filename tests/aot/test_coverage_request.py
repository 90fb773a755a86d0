"""What coverage is asked about, from settings and from a model's spec."""

from typing import Any

import pytest

from precast.aot import coverage_request as module
from precast.aot.coverage_request import CoverageRequest, coverage_request, coverage_settings
from precast.aot.spec import ModelSpec, TensorInput
from precast.capture.modes import CUDAGraphMode
from precast.capture.support import AttentionGraphSupport
from precast.errors import ConfigValueError, NoGpuError

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
PAIR = CUDAGraphMode.FULL_AND_PIECEWISE


def spec(**more: Any) -> ModelSpec:
    """A spec that nothing is built of."""

    def never(*_: object) -> Any:
        raise AssertionError("coverage builds no model")

    fields: dict[str, Any] = {"inputs": (TensorInput("x", ("tokens",)),), "splitting_ops": ("a::attend",)}
    return ModelSpec("m", never, sample=never, **{**fields, **more})


def asked(flags: dict[str, Any] | None = None, of: ModelSpec | None = None, **environ: str) -> CoverageRequest:
    """The request of some flags on a machine without a GPU."""
    given = {**NO_GPU, **environ}
    return coverage_request(coverage_settings(flags or {}, given, {}), given, of)


def test_a_machine_without_a_gpu_is_asked_about_one() -> None:
    found = asked({"max_num_seqs": 12})
    assert (found.mode, found.asked, found.lowered, found.target) == (PAIR, PAIR, (), "cuda")
    assert found.limits.max_num_seqs == 12
    assert found.sizes.sizes == (1, 2, 4, 8, 12, 16, 24)


def test_a_cpu_that_was_named_has_no_graphs() -> None:
    found = asked({"target": "cpu"})
    assert (found.mode, found.asked, found.sizes.sizes) == (CUDAGraphMode.NONE, PAIR, ())
    assert [step.reason for step in found.lowered] == ["a CPU has no CUDA graphs"]


def test_sizes_that_depend_on_the_gpu_are_said_to() -> None:
    assert asked({"max_num_seqs": 256}).gpu_known  # a maximum of 512 either way
    assert not asked({"max_num_seqs": 300}).gpu_known
    assert asked({"max_num_seqs": 300}).sizes.largest == 512
    named = asked({"max_num_seqs": 600, "target": "b200"})
    assert (named.gpu_known, named.sizes.largest) == (True, 1024)
    assert asked({"max_num_seqs": 600, "target": "h200"}).sizes.largest == 512
    assert asked({"max_num_seqs": 600, "max_cudagraph_capture_size": 64}).gpu_known


def test_compile_sizes_are_left_alone_as_they_may_need_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    word = "cudagraph_capture_sizes"
    settings = coverage_settings({"compile_sizes": (word,)}, {**NO_GPU, "PRECAST_COMPILE_SIZES": word}, {})
    assert settings.compile_sizes == ()
    assert coverage_settings({}, NO_GPU, {"compile_sizes": [word]}).compile_sizes == ()

    def no_gpu(*_: object) -> Any:
        raise NoGpuError("none")

    monkeypatch.setattr(module, "planned_sizes", no_gpu)
    assert coverage_request(settings, NO_GPU).sizes.largest == 512


def test_environment_and_file_count_and_flags_overrule_them() -> None:
    environ = {**NO_GPU, "PRECAST_MAX_NUM_SEQS": "7", "PRECAST_DRAFTS": "2"}
    settings = coverage_settings({"drafts": 1}, environ, {"max_num_seqs": 5, "cudagraph_mode": "FULL"})
    found = coverage_request(settings, environ)
    assert (found.limits.max_num_seqs, found.limits.drafts, found.mode) == (7, 1, CUDAGraphMode.FULL)


@pytest.mark.parametrize(
    ("more", "mode", "reason"),
    [
        ({}, CUDAGraphMode.PIECEWISE, "a::attend can be captured for nothing"),
        ({"kind": "pooling"}, CUDAGraphMode.PIECEWISE, "a pooling model has no decode steps"),
        ({"graph_support": {"a::attend": AttentionGraphSupport.ALWAYS}}, PAIR, ""),
    ],
)
def test_a_spec_lowers_the_mode_without_being_built(more: dict[str, Any], mode: CUDAGraphMode, reason: str) -> None:
    found = asked(of=spec(**more))
    assert (found.asked, found.mode) == (PAIR, mode)
    assert len(found.lowered) == (1 if reason else 0)
    assert all(reason in step.reason for step in found.lowered)


def test_a_full_mode_that_attention_rules_out_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="`cudagraph_mode` cannot be 'FULL'"):
        asked({"cudagraph_mode": "FULL"}, spec())


def test_splitting_ops_of_the_user_count_in_place_of_the_model_s() -> None:
    able = spec(graph_support={"a::attend": AttentionGraphSupport.ALWAYS})
    found = asked({"splitting_ops": ("b::other",)}, able)
    assert found.mode is CUDAGraphMode.FULL
    assert "not cut at a::attend" in found.lowered[0].reason
