"""The node: the facts about this machine that stamps are compared with, each read only when it is asked for."""

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from typing import Any, TypeAlias

from precast.aot.description import CODE_FACTS
from precast.aot.libraries import FIELDS, MARKERS, node_version
from precast.aot.target import Target, cpu_isa, detect_target
from precast.errors import NoGpuError

__all__ = ["ABSENT", "GPU_FACT", "Facts", "driver_version", "node_facts", "python_minor", "system", "version"]

ABSENT = "absent"
GPU_FACT = "gpu."  # stamps of a described GPU begin so

_CUDA_SUCCESS = 0

# By name of the stamp. A later version of precast may stamp what is not in here; that is never taken to fit.
Facts: TypeAlias = Mapping[str, Callable[[], str]]


def node_facts(device: str, environ: Mapping[str, str]) -> Facts:
    """Return what this node offers.

    Args:
        device: torch device type of the entry, for what depends on the device.
        environ: Environment, for the visible GPU and the compiler.
    """
    here = _node_target(device, environ)
    libraries = {field: partial(node_version, field) for field in (*FIELDS, MARKERS)}
    return {
        "torch": partial(version, "torch"),
        "triton": partial(version, "triton"),
        "python": python_minor,
        "system": system,
        "device": lambda: here.device,
        "arch": lambda: here.arch,
        "isa": cpu_isa,
        "driver": driver_version,
        "compiler": lambda: "c++" if _compiler(environ) else ABSENT,
        **libraries,
        **{f"{GPU_FACT}{fact}": partial(_gpu_fact, here, fact) for fact in CODE_FACTS},
    }


def driver_version(driver: Any = None) -> str:
    """Return the CUDA version that NVIDIA's driver supports, such as `12.8`, or `absent`. No context is made.

    Args:
        driver: `libcuda.so.1`, as ctypes loads it; by default it is loaded.
    """
    number = ctypes.c_int()
    try:
        library = driver or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ABSENT
    if library.cuDriverGetVersion(ctypes.byref(number)) != _CUDA_SUCCESS or number.value <= 0:
        return ABSENT
    return f"{number.value // 1000}.{number.value % 1000 // 10}"  # 1000 * major + 10 * minor (CUDA driver API)


def system() -> str:
    """Return the operating system and the kind of machine, such as `linux x86_64`."""
    return f"{platform.system().lower()} {platform.machine()}"


def python_minor() -> str:
    """Return Python's minor version, such as `3.12`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def version(distribution: str) -> str:
    """Return the version of an installed distribution, or `absent`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ABSENT


def _node_target(device: str, environ: Mapping[str, str]) -> Target:
    try:
        return detect_target(device, environ)
    except NoGpuError:
        return Target("no gpu", "none")


def _gpu_fact(here: Target, fact: str) -> str:
    return ABSENT if here.description is None else str(here.description.code_facts()[fact])


def _compiler(environ: Mapping[str, str]) -> str | None:
    """Find the compiler that Inductor would run (`torch._inductor.config.cpp.cxx`)."""
    return shutil.which(environ.get("CXX") or "g++", path=environ.get("PATH", os.defpath))
