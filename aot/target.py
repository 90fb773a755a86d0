"""The target: what the compiled code runs on. Found without importing torch, so that a lookup stays fast.

A CPU target is an x86-64 level or `aarch64`, not the very processor, so that twin machines share entries. A CUDA
target is an architecture such as `sm_90`.
"""

import ctypes
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.errors import IncompatibleError, NoGpuError

__all__ = [
    "ISA_LEVELS",
    "Target",
    "cpu_isa",
    "detect_device",
    "detect_target",
    "device_of",
    "is_target_name",
    "isa_runs_on",
    "named_target",
    "require_buildable",
    "require_compilable",
]

# x86-64 psABI levels; Inductor vectorises for v3 (AVX2) and v4 (AVX-512).
ISA_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
_SM = re.compile(r"sm_\d{2,3}")
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_CUDA_SUCCESS = 0
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for.

    Attributes:
        device: torch device type, `cpu` or `cuda`.
        arch: x86-64 level, machine name, or CUDA architecture.
    """

    device: str
    arch: str

    def to_json(self) -> dict[str, Any]:
        """Return the target as a factor's value."""
        return {"device": self.device, "arch": self.arch}

    def __str__(self) -> str:
        """Return what people see."""
        return f"{self.device} {self.arch}"


def detect_device(environ: Mapping[str, str]) -> str:
    """Return `cuda` when torch is built for CUDA and the driver shows a GPU, else `cpu`."""
    return "cuda" if _torch_has_cuda() and _cuda_capability(environ) is not None else "cpu"


def device_of(name: str) -> str:
    """Return the torch device type of a target's name: `cpu`, `cuda`, an x86-64 level, or `sm_` and a number."""
    return "cuda" if name == "cuda" or _SM.fullmatch(name) else "cpu"


def is_target_name(name: str) -> bool:
    """Tell whether a name says what to compile for: `auto`, this machine's `cpu` or `cuda`, or an architecture."""
    return name in ("auto", "cpu", "cuda", *ISA_LEVELS[1:]) or bool(_SM.fullmatch(name))


def named_target(name: str, environ: Mapping[str, str]) -> Target:
    """Return the target that a name means, for a lookup: an architecture stands for itself, on any machine.

    Raises:
        NoGpuError: The name is `cuda` and no GPU is usable.
    """
    if name in ISA_LEVELS:
        return Target("cpu", name)
    return Target("cuda", name) if _SM.fullmatch(name) else detect_target(name, environ)


def require_buildable(target: Target, environ: Mapping[str, str]) -> None:
    """Refuse a target that this machine cannot make code for.

    Raises:
        NoGpuError: CUDA code is built on a GPU of its architecture.
        IncompatibleError: Inductor would make no vector code.
    """
    if target.device == "cpu":
        require_compilable(target.arch)
        return
    here = detect_target("cuda", environ)
    if here != target:
        raise NoGpuError(
            f"code for {target.arch} cannot be built on {here.arch}", "CUDA code is built where it runs", "use that GPU"
        )


def detect_target(device: str, environ: Mapping[str, str]) -> Target:
    """Describe this machine as a target.

    Args:
        device: `cpu` or `cuda`.
        environ: Environment; `CUDA_VISIBLE_DEVICES` decides which GPU is the first.

    Raises:
        NoGpuError: A CUDA target and no usable GPU.
    """
    if device == "cpu":
        return Target("cpu", cpu_isa())
    capability = _cuda_capability(environ) if _torch_has_cuda() else None
    if capability is None:
        why = "the driver shows no device" if _torch_has_cuda() else "the installed torch is a CPU build"
        raise NoGpuError("no GPU is usable for target `cuda`", why, "use --target cpu, or run on a machine with a GPU")
    return Target("cuda", f"sm_{capability[0]}{capability[1]}")


def cpu_isa(cpuinfo: str | None = None) -> str:
    """Return the highest x86-64 level that this processor reaches, or the machine's name elsewhere.

    Args:
        cpuinfo: Text of /proc/cpuinfo; read from there by default.
    """
    machine = platform.machine()
    if machine != "x86_64":
        return machine
    text = cpuinfo if cpuinfo is not None else _read("/proc/cpuinfo")
    flags = next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
    if not flags >= _V3:
        return ISA_LEVELS[0]
    return ISA_LEVELS[2] if flags >= _V4 else ISA_LEVELS[1]


def isa_runs_on(built: str, here: str) -> bool:
    """Tell whether code for one instruction set runs on another: a larger x86-64 level runs a smaller one's."""
    if built in ISA_LEVELS and here in ISA_LEVELS:
        return ISA_LEVELS.index(built) <= ISA_LEVELS.index(here)
    return built == here


def require_compilable(isa: str) -> None:
    """Refuse a processor for which Inductor would make no vector code.

    Raises:
        IncompatibleError: The processor has no AVX2.
    """
    if isa == ISA_LEVELS[0]:
        raise IncompatibleError(
            "this processor has no AVX2", "Inductor vectorises for AVX2 and AVX-512", "build elsewhere"
        )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _torch_has_cuda() -> bool:
    """Read torch's own version file instead of importing torch."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    text = _read(str(Path(spec.submodule_search_locations[0]) / "version.py"))
    line = next((x for x in text.splitlines() if x.startswith("cuda")), "")
    return bool(line) and not line.rstrip().endswith("None")


def _cuda_capability(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Ask the driver for the first visible device's compute capability; no context is made."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) != _CUDA_SUCCESS or driver.cuDeviceGet(ctypes.byref(device), 0) != _CUDA_SUCCESS:
        return None
    for value, attribute in ((major, _CAPABILITY_MAJOR), (minor, _CAPABILITY_MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != _CUDA_SUCCESS:
            return None
    return major.value, minor.value
