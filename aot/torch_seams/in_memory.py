"""Seam to AOTInductor's runner: a library for the CPU, mapped from memory where no folder will do.

torch's loader of packages unpacks into a folder, and torch 2.11 always into /tmp. This one takes the path of a library,
and a file in memory has one. Tried on torch 2.11.0 and 2.13.0.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["is_about_folder", "load_library"]

# What torch's loader and the dynamic linker say of a folder that cannot be written, and of one that runs no code.
_UNFIT = ("Failed to create temporary directory", "failed to map segment")

_MFD_EXEC = 0x0010  # Linux 6.3; `os` does not have it yet
_LOADS = itertools.count(1)


def is_about_folder(error: RuntimeError) -> bool:
    """Tell whether a package did not load because of the folder that it was to be unpacked into."""
    return any(words in str(error) for words in _UNFIT)


def load_library(library: bytes) -> Callable[[list[Any]], Sequence[Any]]:
    """Load the library of a package that needs no other file; the callable is as that of `load_package`.

    It frees its inputs only when the run is over, where a package frees each when it was used last.

    Raises:
        OSError: The system has no files in memory, or lets no code in them run.
        RuntimeError: The library is none, or does not fit this torch.
    """
    descriptor = _memory_file()
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(library)
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(_unique_path(descriptor), 1)
    finally:
        os.close(descriptor)

    def run(inputs: list[Any]) -> Sequence[Any]:
        given = [*inputs]
        inputs.clear()
        results: Sequence[Any] = runner.run(given)
        return results

    return run


def _memory_file() -> int:
    try:
        return os.memfd_create("precast", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:  # an older kernel, where files in memory can always be executed
        return os.memfd_create("precast", os.MFD_CLOEXEC)


def _unique_path(descriptor: int) -> str:
    """Name an open file as no library was named before.

    The linker takes a library that it has under a name for the one that is asked for by that name, and descriptors are
    used again. So a number goes into the name, as folders that lead nowhere.
    """
    digits = f"{next(_LOADS):b}"
    return f"/proc/self/{''.join('./' if digit == '0' else './/' for digit in digits)}fd/{descriptor}"
