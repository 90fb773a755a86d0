"""The target: what the compiled code runs on. Found without importing torch, so that a lookup stays fast.

A CPU target is an x86-64 level or `aarch64`, not the very processor, so that twin machines share entries. A CUDA
target is a described GPU: its architecture and the numbers on which generated code can depend. The GPU of a node and a
description of its kind, by name or from a file, are equal targets when these are.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from precast.aot.description import (
    TargetDescription,
    describe_device,
    described_architecture,
    described_target,
    is_description_file,
    known_targets,
    near_targets,
)
from precast.errors import ConfigValueError, IncompatibleError, NoGpuError

__all__ = [
    "ISA_LEVELS",
    "Target",
    "cpu_build_of_torch",
    "cpu_isa",
    "detect_device",
    "detect_target",
    "device_of",
    "host_isa",
    "is_target_name",
    "isa_runs_on",
    "named_target",
    "require_buildable",
    "require_compilable",
    "torch_cuda",
    "unknown_target",
]

# x86-64 psABI levels; Inductor vectorizes for v3 (AVX2) and v4 (AVX-512).
ISA_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
_SM = re.compile(r"sm_\d{2,3}")
_CUDA_VERSION = re.compile(r"""^cuda\b[^=\n]*=\s*['"]([\d.]+)['"]""", re.MULTILINE)
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for.

    Attributes:
        device: torch device type, `cpu` or `cuda`.
        arch: x86-64 level, machine name, or CUDA architecture.
        description: The GPU in numbers; None for a CPU.
    """

    device: str
    arch: str
    description: TargetDescription | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the target as a factor's value: a GPU's code facts, not its name, so that equal ones share keys."""
        plain: dict[str, Any] = {"device": self.device, "arch": self.arch}
        return plain if self.description is None else {**plain, "facts": self.description.code_facts()}

    def __str__(self) -> str:
        """Return what people see."""
        return f"{self.device} {self.arch}"


def detect_device(environ: Mapping[str, str]) -> str:
    """Return `cuda` when torch is built for CUDA and the driver shows a GPU, else `cpu`."""
    return "cuda" if _torch_has_cuda() and _gpu_here(environ) is not None else "cpu"


def device_of(name: str) -> str:
    """Return the torch device type of a target's name."""
    return "cuda" if name == "cuda" or _names_gpu(name) else "cpu"


def is_target_name(name: str) -> bool:
    """Tell whether a name says what to compile for.

    `auto`, this machine's `cpu` or `cuda`, an architecture, a described GPU such as `h200`, or a description's path.
    """
    return name in ("auto", "cpu", "cuda", *ISA_LEVELS[1:]) or _names_gpu(name)


def unknown_target(name: object) -> ConfigValueError:
    """Return the error for a name that `is_target_name` does not take."""
    near = near_targets(name) if isinstance(name, str) else ()
    return ConfigValueError(
        f"`target` cannot be {name!r}",
        f"targets: auto, cpu, cuda, {', '.join(ISA_LEVELS[1:])}, {', '.join(known_targets())}, sm_NN, FILE.json",
        f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else "choose one of these",
    )


def named_target(name: str, environ: Mapping[str, str]) -> Target:
    """Return the target that a name means, for a lookup: all but `auto`, `cpu` and `cuda` mean the same anywhere.

    Raises:
        ConfigValueError: It is no target's name; or a description cannot be read; or GPUs of the architecture differ.
        NoGpuError: The name is `cuda` and no GPU is usable.
    """
    if name in ISA_LEVELS:
        return Target("cpu", name)
    if name in ("auto", "cpu", "cuda"):
        return detect_target(detect_device(environ) if name == "auto" else name, environ)
    if not _names_gpu(name):
        raise unknown_target(name)
    return _described(described_architecture(name) if _SM.fullmatch(name) else described_target(name))


def require_buildable(target: Target) -> None:
    """Refuse a target that this machine cannot make code for. A GPU need not be here, only torch's CUDA build.

    Raises:
        IncompatibleError: torch is a build for the CPU alone; or Inductor would make no vector code.
    """
    if target.device == "cpu":
        require_compilable(target.arch)
    elif not _torch_has_cuda():
        raise cpu_build_of_torch(target)


def cpu_build_of_torch(target: object) -> IncompatibleError:
    """Return the error for a GPU's code where the installed torch is a build for the CPU alone.

    Args:
        target: What the code is for, as people should see it.
    """
    try:
        wanted = f"torch=={metadata.version('torch').partition('+')[0]}"
    except metadata.PackageNotFoundError:
        wanted = "torch"
    return IncompatibleError(
        f"no code for {target} can be made here",
        "the installed torch is a build for the CPU alone",
        f"pip install --force-reinstall {wanted}, which PyPI has as a build for CUDA; the machine needs no GPU",
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
    description = _gpu_here(environ) if _torch_has_cuda() else None
    if description is None:
        why = "the driver shows no device" if _torch_has_cuda() else "the installed torch is a CPU build"
        raise NoGpuError("no GPU is usable for target `cuda`", why, "use --target cpu, or run on a machine with a GPU")
    return _described(description)


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


def host_isa(target: Target) -> str:
    """Return the instruction set of a target's host code: its own on a CPU, a common one around a GPU's kernels."""
    if target.device == "cpu":
        return target.arch
    machine = platform.machine()
    return ISA_LEVELS[1] if machine == "x86_64" else machine


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
            "this processor has no AVX2", "Inductor vectorizes for AVX2 and AVX-512", "build elsewhere"
        )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def torch_cuda() -> str | None:
    """Return the version of CUDA that the installed torch is built for, such as `13.0`; None for a CPU build.

    torch's own version file is read instead of importing torch.
    """
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = _read(str(Path(spec.submodule_search_locations[0]) / "version.py"))
    found = _CUDA_VERSION.search(text)
    return found[1] if found else None


def _torch_has_cuda() -> bool:
    return torch_cuda() is not None


def _gpu_here(environ: Mapping[str, str]) -> TargetDescription | None:
    """Describe the first visible GPU, if the driver shows one."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    try:
        return describe_device()
    except NoGpuError:
        return None


def _names_gpu(name: str) -> bool:
    """Tell whether a name means a GPU that need not be here."""
    return bool(_SM.fullmatch(name)) or name in known_targets() or is_description_file(name)


def _described(description: TargetDescription) -> Target:
    return Target("cuda", description.arch, description)
