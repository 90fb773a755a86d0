"""Descriptions of GPUs: the numbers that compilers ask the driver for, by name, from a file, or of the GPU here.

A description stands in for the driver where there is no GPU. Its code facts are what generated code can depend on: they
are part of the key, whatever the description is called and wherever it came from. Never imports torch.
"""

import ctypes
import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precast.errors import ConfigValueError, NoGpuError

__all__ = [
    "CODE_FACTS",
    "FACTS",
    "INFORMATION",
    "TargetDescription",
    "describe_device",
    "described_architecture",
    "described_target",
    "is_description_file",
    "known_targets",
    "near_targets",
    "read_description",
]

# What can change generated code, with the reason. Inductor writes `DeviceProperties` into every Triton kernel's source
# (torch/_inductor/runtime/hints.py, 2.11 to 2.13); its index and type are not facts, its `cc` and `major` are the arch.
CODE_FACTS: Mapping[str, str] = MappingProxyType(
    {
        "multi_processor_count": "in DeviceProperties; splits reductions, sizes cooperative ones and grouped kernels",
        "regs_per_multiprocessor": "in DeviceProperties; an occupancy estimate adds configs (dynamic_scale_rblock)",
        "max_threads_per_multi_processor": "in DeviceProperties; splits reductions, numbers random offsets",
        "max_threads_per_block": "in DeviceProperties; bounds the warps of a config",
        "warp_size": "in DeviceProperties and in Triton's target",
        "shared_memory_per_block_optin": "Triton and Inductor drop configs that need more",
    }
)

# What changes no code under the options that payload kinds set, with the reason; 0 where it is not told.
INFORMATION: Mapping[str, str] = MappingProxyType(
    {
        "shared_memory_per_block": "asked only of devices without an opt-in limit",
        "shared_memory_per_multiprocessor": "nobody asks for it",
        "l2_cache_bytes": "sizes the buffer that clears the cache between timings",
        "total_memory_bytes": "bounds partitioned scatters, which are off; differs between drivers of one GPU",
        "clock_rate_khz": "rooflines that rank kernels or pad matrices, which are timed, and so off",
        "memory_clock_rate_khz": "as clock_rate_khz",
        "memory_bus_width_bits": "as clock_rate_khz; drivers have corrected it",
    }
)

FACTS = (*CODE_FACTS, *INFORMATION)

_FOLDER = Path(__file__).parent / "targets"
_ARCH = re.compile(r"sm_\d{2,3}")
_CUDA_SUCCESS, _NOT_TOLD = 0, -1
_NAME_BYTES = 256
# CUdevice_attribute in cuda.h; total_memory_bytes has a call of its own.
_ATTRIBUTES: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "max_threads_per_block": (1, "MAX_THREADS_PER_BLOCK"),
        "shared_memory_per_block": (8, "MAX_SHARED_MEMORY_PER_BLOCK"),
        "warp_size": (10, "WARP_SIZE"),
        "clock_rate_khz": (13, "CLOCK_RATE"),
        "multi_processor_count": (16, "MULTIPROCESSOR_COUNT"),
        "memory_clock_rate_khz": (36, "MEMORY_CLOCK_RATE"),
        "memory_bus_width_bits": (37, "GLOBAL_MEMORY_BUS_WIDTH"),
        "l2_cache_bytes": (38, "L2_CACHE_SIZE"),
        "max_threads_per_multi_processor": (39, "MAX_THREADS_PER_MULTIPROCESSOR"),
        "shared_memory_per_multiprocessor": (81, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        "regs_per_multiprocessor": (82, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        "shared_memory_per_block_optin": (97, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    }
)
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = (75, "COMPUTE_CAPABILITY_MAJOR"), (76, "COMPUTE_CAPABILITY_MINOR")


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A GPU in numbers, named as torch and the driver name them; memory in bytes, clocks in kHz.

    Attributes:
        name: What the driver calls it, such as `NVIDIA H200`.
        arch: CUDA architecture, such as `sm_90`.
        sources: Where each number is from, by fact.
    """

    name: str
    arch: str
    multi_processor_count: int
    regs_per_multiprocessor: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    warp_size: int
    shared_memory_per_block_optin: int
    shared_memory_per_block: int = 0
    shared_memory_per_multiprocessor: int = 0
    l2_cache_bytes: int = 0
    total_memory_bytes: int = 0
    clock_rate_khz: int = 0
    memory_clock_rate_khz: int = 0
    memory_bus_width_bits: int = 0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability, major and minor."""
        digits = self.arch.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    def code_facts(self) -> dict[str, int]:
        """Return what generated code can depend on besides the architecture."""
        return {fact: getattr(self, fact) for fact in CODE_FACTS}

    def to_json(self) -> dict[str, Any]:
        """Return the description as a file holds it, without what is not told."""
        told = {fact: value for fact in FACTS if (value := getattr(self, fact))}
        facts = {fact: {"value": value, "source": self.sources.get(fact, "not said")} for fact, value in told.items()}
        return {"name": self.name, "arch": self.arch, "facts": facts}


@functools.cache
def known_targets() -> tuple[str, ...]:
    """Return the names of the GPUs that precast describes, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def near_targets(name: str) -> tuple[str, ...]:
    """Return the names of described GPUs that are spelled much like another name, nearest first."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return (plain,) if plain in known_targets() else tuple(difflib.get_close_matches(plain, known_targets(), 3))


def is_description_file(name: str) -> bool:
    """Tell whether a target's name is the path of a description."""
    return name.endswith(".json") or "/" in name


def described_target(name: str) -> TargetDescription:
    """Return a description by the name of a GPU, or by the path of a file.

    Raises:
        ConfigValueError: No GPU has that name; or the file cannot be read, or a field of it is wrong or missing.
    """
    if name in known_targets():
        return _read(_FOLDER / f"{name}.json")
    if is_description_file(name):
        return _read(Path(name).expanduser())
    near = near_targets(name)
    raise ConfigValueError(
        f"no GPU called `{name}` is described",
        f"described are {', '.join(known_targets())}",
        f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else _OWN_FILE,
    )


def described_architecture(arch: str) -> TargetDescription:
    """Return the description that an architecture alone means: its GPUs must have equal code facts.

    Args:
        arch: Such as `sm_90`.

    Raises:
        ConfigValueError: No described GPU has it, or those that do differ.
    """
    found = {name: made for name in known_targets() if (made := described_target(name)).arch == arch}
    if not found:
        raise ConfigValueError(
            f"no GPU of architecture {arch} is described", "code depends on more than that", _OWN_FILE
        )
    first, *others = found.values()
    if any(other.code_facts() != first.code_facts() for other in others):
        names = ", ".join(found)
        raise ConfigValueError(
            f"`{arch}` alone does not say which GPU", f"code differs between {names}", f"choose one of {names}"
        )
    return first


def describe_device(index: int = 0, driver: Any = None) -> TargetDescription:
    """Describe a GPU of this machine by what its driver says; no context is made.

    Args:
        index: Which of the visible GPUs.
        driver: `libcuda.so.1`, as ctypes loads it; by default it is loaded.

    Raises:
        NoGpuError: There is no driver or no such GPU, or the driver does not tell a code fact.
    """
    asked = _Driver(driver or _load_driver(), index)
    major, minor = asked.number(*_CAPABILITY_MAJOR), asked.number(*_CAPABILITY_MINOR)
    facts = {fact: asked.fact(fact, *attribute) for fact, attribute in _ATTRIBUTES.items()}
    sources = {fact: f"the driver: CU_DEVICE_ATTRIBUTE_{name}" for fact, (_, name) in _ATTRIBUTES.items()}
    return TargetDescription(
        asked.name(),
        f"sm_{major}{minor}",
        total_memory_bytes=asked.memory(),
        sources={**sources, "total_memory_bytes": "the driver: cuDeviceTotalMem"},
        **facts,
    )


class _Driver:
    """The driver's answers about one GPU."""

    def __init__(self, library: Any, index: int) -> None:
        self.library, self.device = library, ctypes.c_int()
        self._require(library.cuInit(0), "cuInit")
        self._require(library.cuDeviceGet(ctypes.byref(self.device), index), f"cuDeviceGet({index})")

    def name(self) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._require(self.library.cuDeviceGetName(text, _NAME_BYTES, self.device), "cuDeviceGetName")
        return text.value.decode(errors="replace")

    def memory(self) -> int:
        size = ctypes.c_size_t()
        self._require(self.library.cuDeviceTotalMem_v2(ctypes.byref(size), self.device), "cuDeviceTotalMem")
        return size.value

    def fact(self, fact: str, attribute: int, name: str) -> int:
        """Return a fact; information that the driver does not tell is 0, a code fact must be told."""
        status, value = self._attribute(attribute)
        if fact not in CODE_FACTS:
            return value if status == _CUDA_SUCCESS else 0
        self._require(status or (0 if value > 0 else _NOT_TOLD), f"CU_DEVICE_ATTRIBUTE_{name}")
        return value

    def number(self, attribute: int, name: str) -> int:
        status, value = self._attribute(attribute)
        self._require(status, f"CU_DEVICE_ATTRIBUTE_{name}")
        return value

    def _attribute(self, attribute: int) -> tuple[int, int]:
        value = ctypes.c_int()
        status = self.library.cuDeviceGetAttribute(ctypes.byref(value), attribute, self.device)
        return status, value.value

    @staticmethod
    def _require(status: int, question: str) -> None:
        if status != _CUDA_SUCCESS:
            told = "nothing" if status == _NOT_TOLD else f"error {status}"
            raise NoGpuError("no GPU can be described here", f"the driver answers {question} with {told}", _RUN)


_OWN_FILE = "give a FILE.json that `precast precompile --describe-target` printed on such a GPU"
_RUN = "run it on a machine with a GPU"


def _load_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpuError("no GPU can be described here", "NVIDIA's driver, libcuda.so.1, is not there", _RUN) from error


def _read(path: Path) -> TargetDescription:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        what = f"target description {path} cannot be read"
        raise ConfigValueError(what, str(why), _OWN_FILE, path=str(path)) from error
    problems = _problems(document)
    if problems:
        raise ConfigValueError(f"target description {path} is wrong", "; ".join(problems), _OWN_FILE, path=str(path))
    return read_description(document)


def read_description(document: Mapping[str, Any]) -> TargetDescription:
    """Return the description that `TargetDescription.to_json` wrote."""
    facts = document["facts"]
    values = {fact: told["value"] for fact, told in facts.items()}
    return TargetDescription(
        document["name"], document["arch"], **values, sources={fact: told["source"] for fact, told in facts.items()}
    )


def _problems(document: Any) -> list[str]:
    """Return everything that is wrong with the JSON of a description, each by the name of its field."""
    if not isinstance(document, dict):
        return ["it is not an object with name, arch and facts"]
    found = [f"{key} is no field of it" for key in sorted(document.keys() - {"name", "arch", "facts"})]
    name, arch, facts = document.get("name"), document.get("arch"), document.get("facts")
    if not isinstance(name, str) or not name:
        found.append("name is missing" if name is None else "name is not a text")
    if not isinstance(arch, str) or not _ARCH.fullmatch(arch):
        found.append("arch is missing" if arch is None else f"arch is {arch!r}, not such as sm_90")
    if not isinstance(facts, dict):
        return [*found, "facts is missing" if facts is None else "facts is not an object"]
    found += [f"facts.{fact} is missing" for fact in CODE_FACTS if fact not in facts]
    found += [f"facts.{fact} is not known" for fact in sorted(facts.keys() - set(FACTS))]
    return found + [f"facts.{fact} {why}" for fact in FACTS if fact in facts and (why := _fault(facts[fact]))]


def _fault(told: Any) -> str:
    """Say what is wrong with a fact, or nothing."""
    if not isinstance(told, dict) or told.keys() != {"value", "source"}:
        return "is not an object with value and source"
    value, source = told["value"], told["source"]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return f"has value {value!r}, not a whole number from 1"
    return "" if isinstance(source, str) and source.strip() else "has no source"
