"""Descriptions of GPUs: by name, from a file, from the driver."""

import ctypes
import dataclasses
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from precast.aot import description
from precast.aot.description import (
    CODE_FACTS,
    FACTS,
    INFORMATION,
    TargetDescription,
    describe_device,
    described_architecture,
    described_target,
    known_targets,
    near_targets,
)
from precast.aot.target import Target, named_target
from precast.errors import ConfigValueError, NoGpuError

NAMES = ("a100", "b200", "h100", "h200", "l4", "l40s", "rtx4090")
H200_FACTOR = {
    "device": "cuda",
    "arch": "sm_90",
    "facts": {
        "multi_processor_count": 132,
        "regs_per_multiprocessor": 65536,
        "max_threads_per_multi_processor": 2048,
        "max_threads_per_block": 1024,
        "warp_size": 32,
        "shared_memory_per_block_optin": 232448,
    },
}
# CUdevice_attribute in cuda.h of CUDA 13.0, and what the driver of an H200 answers.
ANSWERS = {
    1: 1024, 8: 49152, 10: 32, 13: 1980000, 16: 132, 36: 3201000, 37: 6016, 38: 62914560, 39: 2048, 75: 9, 76: 0,
    81: 233472, 82: 65536, 97: 232448,
}  # fmt: skip
MEMORY = 150_110_011_392


class FakeDriver:
    """Stands for libcuda, called as ctypes calls it."""

    def __init__(self, answers: dict[int, int] | None = None, *, count: int = 1, start: int = 0) -> None:
        self.answers = ANSWERS if answers is None else answers
        self.count, self.start = count, start

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.start

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = 40 + index
        return 0 if index < self.count else 101

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        assert size == len(text)
        text.value = f"GPU {device.value}".encode()
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        assert isinstance(size._obj, ctypes.c_size_t)
        size._obj.value = MEMORY
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        assert isinstance(value._obj, ctypes.c_int)
        if attribute not in self.answers:
            return 1
        value._obj.value = self.answers[attribute]
        return 0


def written(folder: Path, change: Callable[[dict[str, Any]], object] = lambda document: None) -> str:
    """Write the description of an H200 into a file of its own, changed."""
    document = described_target("h200").to_json()
    change(document)
    path = folder / "gpu.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_the_gpus_of_the_issue_are_described() -> None:
    assert known_targets() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_described_gpu_is_told_with_its_source(name: str) -> None:
    facts = described_target(name).to_json()["facts"]
    assert tuple(facts) == FACTS
    assert all("http" in told["source"] or "NVIDIA H200" in told["source"] for told in facts.values())


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_hang_together_do(name: str) -> None:
    gpu = described_target(name)
    assert gpu.warp_size == 32
    assert gpu.max_threads_per_multi_processor % gpu.max_threads_per_block in (0, 512)
    # CUDA keeps 1 KiB of shared memory a block for itself from compute capability 8.0 on.
    assert gpu.shared_memory_per_block_optin == gpu.shared_memory_per_multiprocessor - 1024
    assert gpu.shared_memory_per_block < gpu.shared_memory_per_block_optin
    assert gpu.clock_rate_khz > 1_000_000


@pytest.mark.parametrize(
    ("name", "gigabytes_a_second"),
    [("a100", 2039), ("h100", 3350), ("h200", 4800), ("b200", 7700), ("l4", 300), ("l40s", 864), ("rtx4090", 1008)],
)
def test_clock_and_width_of_the_memory_give_its_bandwidth(name: str, gigabytes_a_second: int) -> None:
    gpu = described_target(name)
    assert gpu.memory_clock_rate_khz * 2 * gpu.memory_bus_width_bits / 8e6 == pytest.approx(
        gigabytes_a_second, rel=0.01
    )


def test_every_fact_is_either_in_the_key_or_left_out_for_a_reason() -> None:
    numbers = {f.name for f in dataclasses.fields(TargetDescription)} - {"name", "arch", "sources"}
    assert set(FACTS) == numbers
    assert not set(CODE_FACTS) & set(INFORMATION)
    assert all({**CODE_FACTS, **INFORMATION}.values())


def test_whatever_inductor_writes_into_a_kernel_is_in_the_key() -> None:
    from torch._inductor.runtime.hints import DeviceProperties

    assert set(DeviceProperties._fields) - {"type", "index", "cc", "major"} <= set(CODE_FACTS)


def test_the_factor_of_an_h200_never_changes() -> None:
    assert named_target("h200", {}).to_json() == H200_FACTOR


@pytest.mark.parametrize(("arch", "capability"), [("sm_90", (9, 0)), ("sm_100", (10, 0)), ("sm_89", (8, 9))])
def test_the_capability_is_the_architecture(arch: str, capability: tuple[int, int]) -> None:
    assert dataclasses.replace(described_target("h200"), arch=arch).capability == capability


def test_a_written_description_reads_back(tmp_path: Path) -> None:
    read, known = described_target(written(tmp_path)), described_target("h200")
    assert (read, read.sources) == (known, known.sources)


def test_the_factor_is_the_same_whatever_the_name_and_the_file(tmp_path: Path) -> None:
    def other_name_and_memory(document: dict[str, Any]) -> None:
        document["name"] = "GPU of the third rack"
        document["facts"]["total_memory_bytes"]["value"] = 1
        document["facts"]["warp_size"]["source"] = "hearsay"
        for fact in ("clock_rate_khz", "memory_bus_width_bits", "l2_cache_bytes"):
            del document["facts"][fact]

    file = written(tmp_path, other_name_and_memory)
    assert named_target(file, {}).to_json() == named_target("h100", {}).to_json() == H200_FACTOR
    assert "clock_rate_khz" not in described_target(file).to_json()["facts"]


@pytest.mark.parametrize("fact", CODE_FACTS)
def test_each_code_fact_alone_changes_the_factor(tmp_path: Path, fact: str) -> None:
    def smaller(document: dict[str, Any]) -> None:
        document["facts"][fact]["value"] -= 1

    assert named_target(written(tmp_path, smaller), {}).to_json() != H200_FACTOR


@pytest.mark.parametrize("fact", CODE_FACTS)
def test_a_missing_code_fact_is_named(tmp_path: Path, fact: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        described_target(written(tmp_path, lambda document: document["facts"].pop(fact)))
    assert caught.value.why == f"facts.{fact} is missing"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.pop("name"), "name is missing"),
        (lambda d: d.update(name=7), "name is not a text"),
        (lambda d: d.pop("arch"), "arch is missing"),
        (lambda d: d.update(arch="sm90"), "arch is 'sm90', not such as sm_90"),
        (lambda d: d.pop("facts"), "facts is missing"),
        (lambda d: d.update(facts=[]), "facts is not an object"),
        (lambda d: d.update(memory="141 GB"), "memory is no field of it"),
        (lambda d: d["facts"].update(cores={}), "facts.cores is not known"),
        (lambda d: d["facts"].update(warp_size=32), "facts.warp_size is not an object with value and source"),
        (lambda d: d["facts"]["warp_size"].update(source=" "), "facts.warp_size has no source"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        described_target(written(tmp_path, change))
    assert caught.value.why == why
    assert "--describe-target" in caught.value.hint


@pytest.mark.parametrize("fact", ["warp_size", "l2_cache_bytes"])
@pytest.mark.parametrize("value", [32.0, True, 0, -1, "32", None])
def test_a_number_that_is_none_is_refused(tmp_path: Path, fact: str, value: object) -> None:
    with pytest.raises(ConfigValueError) as caught:
        described_target(written(tmp_path, lambda document: document["facts"][fact].update(value=value)))
    assert caught.value.why == f"facts.{fact} has value {value!r}, not a whole number from 1"


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    def spoil(document: dict[str, Any]) -> None:
        document["facts"]["multi_procesor_count"] = document["facts"].pop("multi_processor_count")
        del document["name"]

    with pytest.raises(ConfigValueError) as caught:
        described_target(written(tmp_path, spoil))
    wrong = ["name is missing", "facts.multi_processor_count is missing", "facts.multi_procesor_count is not known"]
    assert caught.value.why == "; ".join(wrong)


@pytest.mark.parametrize(
    ("text", "why"), [("{", "it is not JSON"), ("[]", "it is not an object"), (None, "No such file")]
)
def test_a_file_that_is_no_description_is_refused_by_its_path(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "gpu.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigValueError, match=str(path)) as caught:
        described_target(str(path))
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("name", "near"), [("H200", ("h200",)), ("rtx-4090", ("rtx4090",)), ("h20", ("h200",)), ("l40", ("l40s", "l4"))]
)
def test_a_name_that_is_nearly_right_gets_a_suggestion(name: str, near: tuple[str, ...]) -> None:
    assert near_targets(name) == near
    with pytest.raises(ConfigValueError, match=f"`{name}`") as caught:
        described_target(name)
    assert all(f"`{n}`" in caught.value.hint for n in near)


def test_a_name_like_no_other_is_told_where_to_get_a_description() -> None:
    with pytest.raises(ConfigValueError, match="mi300x") as caught:
        described_target("mi300x")
    assert ", ".join(NAMES) in caught.value.why
    assert "--describe-target" in caught.value.hint


def test_an_architecture_means_its_gpus_where_they_agree() -> None:
    assert described_architecture("sm_90").code_facts() == described_target("h200").code_facts()
    with pytest.raises(ConfigValueError, match="which GPU") as caught:
        described_architecture("sm_89")
    assert caught.value.hint == "choose one of l4, l40s, rtx4090"
    with pytest.raises(ConfigValueError, match="sm_75"):
        described_architecture("sm_75")


def test_a_device_is_described_by_what_its_driver_answers() -> None:
    gpu = describe_device(0, FakeDriver())
    assert (gpu.name, gpu.arch, gpu.capability) == ("GPU 40", "sm_90", (9, 0))
    assert Target("cuda", gpu.arch, gpu).to_json() == H200_FACTOR
    assert gpu.to_json()["facts"] == {
        "multi_processor_count": {"value": 132, "source": "the driver: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"},
        "regs_per_multiprocessor": {
            "value": 65536,
            "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR",
        },
        "max_threads_per_multi_processor": {
            "value": 2048,
            "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR",
        },
        "max_threads_per_block": {"value": 1024, "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK"},
        "warp_size": {"value": 32, "source": "the driver: CU_DEVICE_ATTRIBUTE_WARP_SIZE"},
        "shared_memory_per_block_optin": {
            "value": 232448,
            "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        },
        "shared_memory_per_block": {
            "value": 49152,
            "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK",
        },
        "shared_memory_per_multiprocessor": {
            "value": 233472,
            "source": "the driver: CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        },
        "l2_cache_bytes": {"value": 62914560, "source": "the driver: CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"},
        "total_memory_bytes": {"value": MEMORY, "source": "the driver: cuDeviceTotalMem"},
        "clock_rate_khz": {"value": 1980000, "source": "the driver: CU_DEVICE_ATTRIBUTE_CLOCK_RATE"},
        "memory_clock_rate_khz": {"value": 3201000, "source": "the driver: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE"},
        "memory_bus_width_bits": {"value": 6016, "source": "the driver: CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH"},
    }


def test_what_a_driver_told_is_a_target_elsewhere(tmp_path: Path) -> None:
    gpu = describe_device(0, FakeDriver())
    path = tmp_path / "node.json"
    path.write_text(json.dumps(gpu.to_json()))
    assert described_target(str(path)) == gpu


def test_the_asked_for_device_is_described() -> None:
    assert describe_device(2, FakeDriver(count=3)).name == "GPU 42"


@pytest.mark.parametrize("number", [13, 36, 37, 38])
def test_information_that_the_driver_does_not_tell_is_left_out(number: int) -> None:
    gpu = describe_device(0, FakeDriver({k: v for k, v in ANSWERS.items() if k != number}))
    assert len(gpu.to_json()["facts"]) == len(FACTS) - 1


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (FakeDriver(start=100), "cuInit with error 100"),
        (FakeDriver(count=0), "cuDeviceGet(0) with error 101"),
        (FakeDriver({k: v for k, v in ANSWERS.items() if k != 16}), "MULTIPROCESSOR_COUNT with error 1"),
        (FakeDriver({k: v for k, v in ANSWERS.items() if k != 76}), "COMPUTE_CAPABILITY_MINOR with error 1"),
        (FakeDriver({**ANSWERS, 97: 0}), "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN with nothing"),
    ],
)
def test_a_device_that_cannot_be_described_is_told(driver: FakeDriver, why: str) -> None:
    with pytest.raises(NoGpuError) as caught:
        describe_device(0, driver)
    assert why in caught.value.why


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(NoGpuError) as caught:
        describe_device()
    assert "libcuda.so.1" in caught.value.why


def test_the_attribute_numbers_are_those_of_the_header() -> None:
    wheel = find_spec("nvidia.cu13") if find_spec("nvidia") else None
    folders = [Path(folder) for folder in (wheel.submodule_search_locations if wheel else None) or ()]
    header = next((f / "include" / "cuda.h" for f in folders if (f / "include" / "cuda.h").is_file()), None)
    if header is None:
        pytest.skip("needs cuda.h of a CUDA build of torch")
    text = header.read_text(errors="replace")
    told = [*description._ATTRIBUTES.values(), description._CAPABILITY_MAJOR, description._CAPABILITY_MINOR]
    assert all(f"CU_DEVICE_ATTRIBUTE_{name} = {number}," in text for number, name in told)
