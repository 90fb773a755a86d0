"""Targets, told without torch."""

import platform

import pytest

from precast.aot import target
from precast.aot.target import (
    ISA_LEVELS,
    Target,
    cpu_isa,
    detect_device,
    detect_target,
    isa_runs_on,
    require_compilable,
)
from precast.errors import IncompatibleError, NoGpuError

V2 = "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt cx16"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma movbe abm"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


def cpuinfo(flags: str) -> str:
    processor = f"model name\t: Some CPU\nflags\t\t: {flags}\nvmx flags\t: vnmi\nbugs\t\t: none\n"
    return f"processor\t: 0\n{processor}\nprocessor\t: 1\n{processor}"


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(("flags", "isa"), [(V2, "x86-64-v2"), (V3, "x86-64-v3"), (V4, "x86-64-v4")])
def test_flags_decide_the_level(flags: str, isa: str) -> None:
    assert cpu_isa(cpuinfo(flags)) == isa


@pytest.mark.parametrize("flag", ["avx2", "fma", "bmi2", "movbe", "f16c"])
def test_one_missing_flag_lowers_the_level(flag: str) -> None:
    assert cpu_isa(cpuinfo(" ".join(f for f in V4.split() if f != flag))) == "x86-64-v2"


def test_avx512_alone_is_not_enough_without_its_extensions() -> None:
    assert cpu_isa(cpuinfo(f"{V3} avx512f")) == "x86-64-v3"


@pytest.mark.parametrize("text", ["", "processor: 0\n", "flags\t:\n"])
def test_a_machine_that_tells_nothing_is_the_lowest(text: str) -> None:
    assert cpu_isa(text) == "x86-64-v2"


def test_another_machine_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_isa(cpuinfo(V4)) == "aarch64"


@pytest.mark.parametrize("built", range(3))
@pytest.mark.parametrize("here", range(3))
def test_a_larger_level_runs_a_smaller_one(built: int, here: int) -> None:
    assert isa_runs_on(ISA_LEVELS[built], ISA_LEVELS[here]) is (built <= here)


@pytest.mark.parametrize(
    ("built", "here", "runs"),
    [
        ("aarch64", "aarch64", True),
        ("aarch64", "x86-64-v4", False),
        ("x86-64-v2", "aarch64", False),
        ("sm_90", "sm_100", False),
    ],
)
def test_other_names_must_be_equal(built: str, here: str, runs: bool) -> None:
    assert isa_runs_on(built, here) is runs


def test_inductor_needs_vectors() -> None:
    with pytest.raises(IncompatibleError, match="AVX2"):
        require_compilable("x86-64-v2")
    require_compilable("x86-64-v3")
    require_compilable("aarch64")
    require_compilable("sm_90")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_do_not_count(visible: str) -> None:
    assert detect_device({"CUDA_VISIBLE_DEVICES": visible}) == "cpu"


def test_a_cpu_target_is_this_machine_s_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_read", lambda path: cpuinfo(V3))
    assert detect_target("cpu", {}) == Target("cpu", "x86-64-v3")


def test_a_cuda_target_is_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(target, "_cuda_capability", lambda environ: (9, 0))
    assert detect_target("cuda", {}) == Target("cuda", "sm_90")
    assert detect_device({}) == "cuda"


@pytest.mark.parametrize(("built", "why"), [(True, "driver"), (False, "CPU build")])
def test_without_a_gpu_the_error_says_why(monkeypatch: pytest.MonkeyPatch, built: bool, why: str) -> None:
    monkeypatch.setattr(target, "_torch_has_cuda", lambda: built)
    monkeypatch.setattr(target, "_cuda_capability", lambda environ: None)
    with pytest.raises(NoGpuError, match=why):
        detect_target("cuda", {})
    assert detect_device({}) == "cpu"


def test_a_target_is_shown_and_stored_by_device_and_arch() -> None:
    assert str(Target("cuda", "sm_90")) == "cuda sm_90"
    assert Target("cpu", "aarch64").to_json() == {"device": "cpu", "arch": "aarch64"}
