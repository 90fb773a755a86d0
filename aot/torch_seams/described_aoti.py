"""Seams that let AOTInductor make a package for a described GPU; they stand on those of `described`.

AOTInductor picks configs by running every kernel on random tensors, links against the driver, and includes CUDA's
headers. Here the first config of each kernel is compiled and nothing runs, a stub of the driver satisfies the linker,
and the headers come from NVIDIA's wheels beside torch.

Tried on torch 2.11.0 with Triton 3.6.0.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from precast.aot.torch_seams.described import seam
from precast.errors import CompileError, IncompatibleError

__all__ = ["aoti_for_described_device", "cuda_headers"]

# What the C++ wrapper of torch 2.11 and 2.13 calls of the driver; the real one is found by its soname on the node.
_DRIVER = (
    "cuInit", "cuModuleLoad", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel",
    "cuLaunchKernelEx", "cuGetErrorString", "cuTensorMapEncodeTiled",
)  # fmt: skip
_NEEDED_HEADERS = ("cuda_runtime.h", "crt/host_config.h", "nv/target")


@contextmanager
def aoti_for_described_device(folder: Path) -> Iterator[None]:
    """Let AOTInductor build for the described GPU while the block runs.

    Args:
        folder: A private folder for the driver's stub.

    Raises:
        IncompatibleError: torch lacks one of the private names, or CUDA's headers are not there.
        CompileError: The C compiler is not there.
    """
    with ExitStack() as stack:
        _compile_kernels_without_running(stack)
        _embed_by_name(stack)
        _find_cuda(stack, folder)
        yield


def _compile_kernels_without_running(stack: ExitStack) -> None:
    """Replace the block that runs every kernel to choose its config: keep the first config's cubin of each."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    owner, name, _ = seam("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.generate_and_run_autotune_block")
    seam("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.save_gpu_kernel")

    def keep_first_configs(wrapper: Any) -> None:
        wrapper.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile\n")
        scope: dict[str, Any] = {}
        exec(wrapper.kernel_autotune_defs.getvalue(), scope)  # noqa: S102 - Inductor's own text, made a moment ago
        for kernel in scope.values():
            if isinstance(kernel, CachingAutotuner):
                if not kernel.launchers:
                    kernel.precompile()
                kernel.save_gpu_kernel(0, kernel.launchers[0])

    stack.enter_context(mock.patch.object(owner, name, keep_first_configs))


def _embed_by_name(stack: ExitStack) -> None:
    """Embed machine code under the kernel's name alone.

    Torch's own function names it by its whole path, by which the linker sorts symbols: two folders gave two libraries.
    """
    owner, name, _ = seam("torch._inductor.codecache", "convert_cubin_to_obj")

    def embed(cubin_file: str, kernel_name: str, ld: str, objcopy: str) -> str:
        folder = Path(cubin_file).parent
        shutil.copyfile(cubin_file, folder / kernel_name)
        made = f"{kernel_name}.o"
        link = [*ld.split(), "-r", "-b", "binary", "-z", "noexecstack", "-o", made, kernel_name]
        symbol = f"_binary_{re.sub(r'[^0-9A-Za-z]', '_', kernel_name)}"
        names = [f"--redefine-sym={symbol}_{end}=__{kernel_name}_{end}" for end in ("start", "size", "end")]
        section = "--rename-section=.data=.rodata,alloc,load,readonly,data,contents"
        for command in (link, [*objcopy.split(), section, *names, made]):
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return str(folder / made)

    stack.enter_context(mock.patch.object(owner, name, embed))


def _find_cuda(stack: ExitStack, folder: Path) -> None:
    """Point torch's C++ builder to CUDA's headers and to the stub of the driver."""
    home = cuda_headers()
    owner, name, _ = seam("torch.utils.cpp_extension", "CUDA_HOME")
    stack.enter_context(mock.patch.object(owner, name, str(home)))
    stub = _driver_stub(folder)
    owner, name, real = seam("torch.utils.cpp_extension", "library_paths")

    def with_stub(*args: Any, **kwargs: Any) -> list[str]:
        return [*real(*args, **kwargs), str(stub)]

    stack.enter_context(mock.patch.object(owner, name, with_stub))


def cuda_headers() -> Path:
    """Return a folder whose `include` holds CUDA's headers: NVIDIA's wheels beside torch, else torch's own guess.

    Raises:
        IncompatibleError: Headers are missing; the error says what to install.
    """
    import torch

    _, _, guessed = seam("torch.utils.cpp_extension", "CUDA_HOME")
    major = (torch.version.cuda or "").partition(".")[0]
    wheel = find_spec(f"nvidia.cu{major}") if find_spec("nvidia") else None
    homes = [Path(p) for p in (wheel.submodule_search_locations if wheel else None) or ()]
    if guessed:
        homes.append(Path(guessed))
    for home in homes:
        if all((home / "include" / header).is_file() for header in _NEEDED_HEADERS):
            return home
    version = torch.version.cuda
    raise IncompatibleError(
        "CUDA's headers were not found",
        f"an aoti payload is built with g++ and the headers of CUDA {version}: {', '.join(_NEEDED_HEADERS)}",
        f"pip install 'nvidia-cuda-crt=={version}.*' 'nvidia-cuda-cccl=={version}.*', or use --payload inductor",
    )


def _driver_stub(folder: Path) -> Path:
    """Make a library that the linker takes for the driver; what it links records the driver's soname alone."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CompileError("no C compiler was found", "an aoti payload is linked with it", "install gcc and g++")
    place = folder / "driver"
    place.mkdir()
    source = place / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in _DRIVER), encoding="utf-8")
    library = place / "libcuda.so"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return place
