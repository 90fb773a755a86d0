"""Targets, told without torch."""

import dataclasses
import platform
import subprocess
import sys

import pytest
from tests.conftest import REPOSITORY

from precast.aot import target
from precast.aot.description import described_target, known_targets
from precast.aot.settings import resolve_settings
from precast.aot.target import (
    ISA_LEVELS,
    Target,
    cpu_isa,
    detect_device,
    detect_target,
    device_of,
    is_target_name,
    isa_runs_on,
    named_target,
    require_buildable,
    require_compilable,
    unknown_target,
)
from precast.errors import ConfigValueError, IncompatibleError, NoGpuError

H200 = described_target("h200")

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


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 is here, as its own driver describes it."""
    here = dataclasses.replace(H200, name="what the driver says", total_memory_bytes=1, memory_clock_rate_khz=0)
    monkeypatch.setattr(target, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(target, "describe_device", lambda: here)


def test_a_cuda_target_is_the_gpu_here_described(node: None) -> None:
    found = detect_target("cuda", {})
    assert (found.device, found.arch) == ("cuda", "sm_90")
    assert found.description is not None
    assert found.description.name == "what the driver says"
    assert detect_device({}) == "cuda"


@pytest.mark.parametrize("name", ["cuda", "auto", "sm_90", "h100"])
def test_a_node_and_a_runner_name_one_target(node: None, name: str) -> None:
    assert named_target(name, {}).to_json() == named_target("h200", {}).to_json()


def test_auto_without_a_gpu_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_read", lambda path: cpuinfo(V4))
    assert named_target("auto", {"CUDA_VISIBLE_DEVICES": ""}) == Target("cpu", "x86-64-v4")


@pytest.mark.parametrize("name", [*known_targets(), "sm_90"])
def test_a_named_gpu_has_its_description_on_any_machine(name: str) -> None:
    found = named_target(name, {"CUDA_VISIBLE_DEVICES": ""})
    assert found.description is not None
    assert (found.device, found.arch) == ("cuda", found.description.arch)


@pytest.mark.parametrize("name", ["sm_89", "sm_75", "tpu", "aarch64", "absent.json"])
def test_a_name_that_means_no_one_target_is_refused(name: str) -> None:
    with pytest.raises(ConfigValueError):
        named_target(name, {})


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "x86-64-v3", "sm_90", "sm_100", "rtx4090", "gpu.json", "a/b"])
def test_names_of_targets(name: str) -> None:
    assert is_target_name(name)


@pytest.mark.parametrize("name", ["", "x86-64-v2", "sm_", "sm_90a", "H200", "h2000", "gpu.yaml", "Cuda"])
def test_names_of_nothing(name: str) -> None:
    assert not is_target_name(name)
    assert "h200, l4, l40s, rtx4090, sm_NN, FILE.json" in unknown_target(name).why


@pytest.mark.parametrize(
    ("name", "device"),
    [("cpu", "cpu"), ("x86-64-v4", "cpu"), ("cuda", "cuda"), ("sm_90", "cuda"), ("l40s", "cuda"), ("gpu.json", "cuda")],
)
def test_a_name_tells_its_device(name: str, device: str) -> None:
    assert device_of(name) == device


def test_a_setting_that_is_no_target_suggests_near_ones() -> None:
    with pytest.raises(ConfigValueError, match="'h20'") as caught:
        resolve_settings({"target": "h20"})
    assert caught.value.hint == "did you mean `h200`?"


@pytest.mark.parametrize("name", ["h200", "sm_90", "gpu.json"])
def test_every_name_of_a_gpu_gets_the_defaults_of_cuda(name: str) -> None:
    settings = resolve_settings({"target": name})
    assert (settings.target, settings.payload, settings.cudagraph_mode) == (name, "aoti", "FULL_AND_PIECEWISE")


@pytest.mark.parametrize("name", ["h200", "sm_90", "l4", "b200"])
def test_code_for_a_gpu_needs_no_gpu_but_a_cuda_build_of_torch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(target, "torch_cuda", lambda: "13.0")
    require_buildable(named_target(name, {}))
    monkeypatch.setattr(target, "torch_cuda", lambda: None)
    with pytest.raises(IncompatibleError, match="build for the CPU alone") as caught:
        require_buildable(named_target(name, {}))
    assert "pip install --force-reinstall torch==" in caught.value.hint
    assert "+cpu" not in caught.value.hint


@pytest.mark.parametrize(("built", "why"), [(True, "driver"), (False, "CPU build")])
def test_without_a_gpu_the_error_says_why(monkeypatch: pytest.MonkeyPatch, built: bool, why: str) -> None:
    monkeypatch.setattr(target, "_torch_has_cuda", lambda: built)
    monkeypatch.setattr(target, "_gpu_here", lambda environ: None)
    with pytest.raises(NoGpuError, match=why):
        detect_target("cuda", {})
    assert detect_device({}) == "cpu"


def test_a_target_is_shown_and_stored_by_device_and_arch() -> None:
    assert str(Target("cuda", "sm_90")) == "cuda sm_90"
    assert Target("cpu", "aarch64").to_json() == {"device": "cpu", "arch": "aarch64"}


def test_no_module_of_targets_imports_torch() -> None:
    code = "import sys; from precast.aot import target; target.named_target('h200', {}); print('torch' in sys.modules)"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
