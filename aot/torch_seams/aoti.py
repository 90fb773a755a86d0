"""Seams to AOTInductor: build a package for a target, load one with neither Dynamo nor Inductor.

Tried on torch 2.11.0 and 2.13.0.
"""

import inspect
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from precast.errors import IncompatibleError

__all__ = ["build_package", "load_package"]

_UNPACKED = re.compile(r" (/tmp/\w{6})/(?:[^/]+/)?data/aotinductor/model/[^/]+\.so$")
_LOADING = threading.Lock()  # one process has one TMPDIR
_OWN_MACHINE = ("march=", "mtune=", "mcpu=")  # flags that Inductor fills in for the machine it runs on
# Instruction set: the compiler's name for it, and Inductor's class of vectors. torch's wheels are built for armv8-a.
_ISAS = {
    "x86-64-v3": ("x86-64-v3", "VecAVX2"),
    "x86-64-v4": ("x86-64-v4", "VecAVX512"),
    "aarch64": ("armv8-a", "VecNEON"),
}


def build_package(program: Any, path: Path, options: Mapping[str, Any], isa: str) -> None:
    """Compile an exported program into a `.pt2` package (`torch._inductor.aoti_compile_and_package`).

    Args:
        program: A `torch.export.ExportedProgram`.
        path: Where the package goes; its folder must exist.
        options: Inductor options by dotted name.
        isa: The instruction set that the C++ code may use: an x86-64 level, or a machine's name for its baseline.

    Raises:
        IncompatibleError: Nothing is known about the instruction set.
    """
    import torch._inductor

    if isa not in _ISAS:
        raise IncompatibleError(f"no code can be made for {isa}", f"known: {', '.join(_ISAS)}", "build elsewhere")
    march, vectors = _ISAS[isa]
    hidden = (path.parent, Path(torch.__file__).parent)
    with _steady_arrays(), _pinned_isa(vectors), _compiler_flags(march, hidden), torch.no_grad():
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(options))


def load_package(
    path: Path, device_index: int = -1, *, scratch: Path | None = None
) -> Callable[[list[Any]], Sequence[Any]]:
    """Load a package; the callable takes a list of tensors, empties it, and returns a list of tensors.

    The C++ loader is used directly: `torch._inductor.aoti_load_package` imports Inductor and Dynamo. It runs
    single-threaded, because the other way records events that a CUDA graph capture does not allow (aoti-cuda.md).

    Args:
        path: The package.
        device_index: Which device of its type, or -1 for the current one.
        scratch: The folder to unpack into, which the caller may remove as soon as this returns; None where the code
            still reads unpacked files when it runs, and torch's own temporary folder must live as long as the loader.
    """
    with _LOADING, _unpacking_into(scratch):
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, device_index)
    run: Callable[[list[Any]], Sequence[Any]] = loader.boxed_run
    return run


@contextmanager
def _unpacking_into(scratch: Path | None) -> Iterator[None]:
    """Let torch's loader unpack into a folder: it reads TMPDIR anew at each load (`c10::make_tempdir`).

    torch 2.11 reads nothing and takes `/tmp/XXXXXX`; there the folder is found by the library that is mapped from it.
    """
    if scratch is None:
        yield
        return
    before = _unpacked_in_tmp()
    with mock.patch.dict(os.environ, {"TMPDIR": str(scratch)}):
        yield
    for folder in _unpacked_in_tmp() - before:
        shutil.rmtree(folder, ignore_errors=True)


def _unpacked_in_tmp() -> set[str]:
    """Return the folders `/tmp/XXXXXX` from which this process maps a package's library that still exists."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        return {found[1] for line in maps if (found := _UNPACKED.search(line))}


@contextmanager
def _steady_arrays() -> Iterator[None]:
    """Number the C++ wrapper's arrays the same in every build (`CppWrapperCpu.codegen_int_array_var`).

    Up to torch 2.12 it remembers arrays by the `id` of a bound method that dies at once, so that chance decides which
    are shared. Here each bound method of an object is one object, which is what torch 2.13 made of it.
    """
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    real = CppWrapperCpu.codegen_int_array_var
    kept: dict[tuple[int, str], Any] = {}

    def steady(self: Any, int_array: str, writeline: Any, *args: Any, **kwargs: Any) -> str:
        owner = getattr(writeline, "__self__", None)
        if owner is not None:
            writeline = kept.setdefault((id(owner), writeline.__name__), writeline)
        name: str = real(self, int_array, writeline, *args, **kwargs)
        return name

    with mock.patch.object(CppWrapperCpu, "codegen_int_array_var", steady):
        yield


@contextmanager
def _pinned_isa(vectors: str) -> Iterator[None]:
    """Let Inductor see the vector extensions of the target and no others (`cpu_vec_isa.valid_vec_isa_list`).

    Left alone it takes all that this processor has, AMX and VNNI included, and code for one machine of a level then
    dies on another. It would also compile and load a probe for each; here the compile itself is the probe.
    """
    from torch._inductor import cpu_vec_isa

    pinned = [getattr(cpu_vec_isa, vectors)()]
    with mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=pinned):
        yield


@contextmanager
def _compiler_flags(march: str, hidden: tuple[Path, ...]) -> Iterator[None]:
    """Fix the instruction set, and keep this machine's folders out of the library
    (`cpp_builder._get_optimization_cflags`).

    torch 2.13 has `config.cpp.march`, 2.11 has not; the function behind it is the same in both.
    """
    from torch._inductor import cpp_builder

    real = cpp_builder._get_optimization_cflags
    if list(inspect.signature(real).parameters)[:2] != ["cpp_compiler", "min_optimize"]:
        raise NotImplementedError(f"torch {torch.__version__} has another cpp_builder._get_optimization_cflags")
    maps = [f"ffile-prefix-map={folder}=." for folder in hidden]

    def flags(*args: Any, **kwargs: Any) -> tuple[list[str], list[str]]:
        cflags, ldflags = real(*args, **kwargs)
        kept = [f for f in cflags if not f.startswith(_OWN_MACHINE)]
        return [*kept, f"march={march}", *maps], ldflags

    with mock.patch.object(cpp_builder, "_get_optimization_cflags", flags):
        yield
