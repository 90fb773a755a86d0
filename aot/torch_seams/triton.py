"""Seams to Triton: load a bundled artifact on CUDA without starting a compiler.

Triton's driver compiles a C helper when it is first asked for anything, and its backend asks `ptxas --version` for a
cache key. A load needs neither: device properties come from torch, and the key is not used.

Tried on Triton 3.6.0 with torch 2.11.0, and `assembler_version` on 3.9.0 too; a name that has moved raises
AttributeError, and nothing is guessed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

__all__ = ["assembler_version", "no_compiler_started"]

_UNASKED = "not asked"


def assembler_version(arch: str) -> str | None:
    """Return the version of the CUDA toolkit that Triton's assembler for an architecture is from, such as `13.4`.

    Args:
        arch: Such as `sm_90`.

    Returns:
        None where Triton is not installed.
    """
    try:
        from triton.backends.nvidia import compiler
    except ImportError:
        return None
    found: str = compiler.get_ptxas(int(arch.removeprefix("sm_"))).version
    return found


@contextmanager
def no_compiler_started() -> Iterator[None]:
    """Let Inductor load Triton kernels with no compiler process, and change nothing else in the process.

    What Triton memoised about the answers given here is dropped on the way out; its driver keeps a helper that builds
    the real one as soon as somebody uses another function of it, such as a kernel that Triton itself compiles.
    """
    from torch.utils import _triton as torch_triton
    from triton.backends.nvidia import compiler, driver

    real = driver.CudaUtils
    lazy = _lazy_utils(real)
    with (
        mock.patch.object(driver, "CudaUtils", lazy),
        mock.patch.object(compiler, "get_ptxas_version", return_value=_UNASKED),
    ):
        try:
            yield
        finally:
            torch_triton.triton_hash_with_backend.cache_clear()


def _lazy_utils(real: Callable[[], Any]) -> Callable[[], Any]:
    """Return a stand-in for `triton.backends.nvidia.driver.CudaUtils` that compiles only when it has to."""

    class LazyCudaUtils:
        def get_device_properties(self, device: int) -> dict[str, int]:
            import torch

            found = torch.cuda.get_device_properties(device)
            return {
                "max_shared_mem": found.shared_memory_per_block_optin,
                "max_num_regs": found.regs_per_multiprocessor,
                "multiprocessor_count": found.multi_processor_count,
                "warpSize": found.warp_size,
                "sm_clock_rate": found.clock_rate,
                "mem_clock_rate": found.memory_clock_rate,
                "mem_bus_width": found.memory_bus_width,
            }

        def __getattr__(self, name: str) -> Any:
            from triton.backends.nvidia import driver

            # the class looks itself up by this global, so it must be the real one while it is made
            with mock.patch.object(driver, "CudaUtils", real):
                return getattr(real(), name)

    return LazyCudaUtils
