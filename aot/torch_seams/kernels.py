"""Seams to Triton's own kernels, those that a model launches itself: compile them for a described GPU, and put the
compiled ones where Triton finds them, so that it compiles nothing.

Tried on Triton 3.6.0 with torch 2.11.0. `JITFunction.run` looks a kernel up by a text made of the argument types, their
specializations and the options; the same text is made here and there, by Triton itself.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from precast.aot.torch_seams.described import seam
from precast.aot.torch_seams.triton import no_compiler_started
from precast.errors import IncompatibleError, UnsupportedOpError

__all__ = ["CompiledKernel", "has_python_kernel", "kernels_recorded", "offer_kernel"]

_LOADING = threading.Lock()


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A Triton kernel for one set of argument types.

    Attributes:
        module: Module of the function that it was made of.
        function: Its qualified name there.
        source: Triton's digest of the function's source and of what it calls (`JITCallable.cache_key`).
        key: The text under which Triton looks it up.
        symbol: Its name in the cubin.
        warps: Warps of a block.
        shared_bytes: Shared memory of a block.
        arguments: A letter for each argument, as torch's static launcher reads them; those baked in are left out.
        passed: Positions of the arguments that are passed.
        scratch: How many null pointers follow them.
        cubin: The machine code.
    """

    module: str
    function: str
    source: str
    key: str
    symbol: str
    warps: int
    shared_bytes: int
    arguments: str
    passed: tuple[int, ...]
    scratch: int
    cubin: bytes

    @property
    def label(self) -> str:
        """What people see."""
        return f"{self.module}.{self.function}"


def has_python_kernel(op: Any) -> bool:
    """Tell whether an op's CUDA implementation is Python, registered by `torch.library`; C++ must not get fake tensors.

    Args:
        op: An op overload.
    """
    _, _, registered = seam("torch.library", "_impls")
    namespace, _, name = op.name().partition("::")
    return f"{namespace}/{name}/CUDA" in registered


@contextmanager
def kernels_recorded() -> Iterator[list[CompiledKernel]]:
    """Compile each Triton kernel that is launched while the block runs, and launch none.

    Inside `described_device`, with fake tensors. Launches of an autotuned kernel compile every config.

    Yields:
        The kernels, each once, filled as they are launched.
    """
    found: dict[tuple[str, str], CompiledKernel] = {}
    kernels: list[CompiledKernel] = []
    remembered: dict[Any, dict[int, Any]] = {}  # what each function had compiled before, for the devices that are here
    owner, name, run = seam("triton.runtime.jit", "JITFunction.run")

    def record(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # noqa: ARG001
        if function not in remembered:
            remembered[function] = dict(function.device_caches)
            function.device_caches.clear()
        mocks = [_without_data(a) for a in args]
        compiled = run(function, *mocks, grid=grid, warmup=True, **{k: _without_data(v) for k, v in options.items()})
        key = _key_of(function, compiled)
        made = _described(function, key, compiled)
        if (made.label, key) not in found:
            found[made.label, key] = made
            kernels.append(made)
        return compiled

    tuner, tuned, _ = seam("triton.runtime.autotuner", "Autotuner.run")

    def every_config(self: Any, *args: Any, **options: Any) -> Any:
        result = None
        for config in self.configs:
            result = self.fn.run(*args, **{**options, **config.all_kwargs()})
        return result

    with mock.patch.object(owner, name, record), mock.patch.object(tuner, tuned, every_config):
        try:
            yield kernels
        finally:
            for function, caches in remembered.items():
                function.device_caches.clear()
                function.device_caches.update(caches)


def _without_data(value: Any) -> Any:
    """Stand in for a fake tensor, which has no address: Triton reads dtype and alignment of an argument."""
    from torch import Tensor
    from triton.runtime.jit import MockTensor

    return MockTensor(value.dtype, list(value.shape)) if isinstance(value, Tensor) else value


def _key_of(function: Any, compiled: Any) -> str:
    cache = function.device_caches[0][0]
    return next(str(key) for key, kernel in cache.items() if kernel is compiled)


def _described(function: Any, key: str, compiled: Any) -> CompiledKernel:
    """Take down what a launch needs (`StaticallyLaunchedTritonKernel` of torch's Inductor reads the same)."""
    from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel

    metadata = compiled.metadata
    label = f"{function.fn.__module__}.{function.fn.__qualname__}"
    unsupported = [n for n in ("launch_cooperative_grid", "launch_pdl") if getattr(metadata, n, False)]
    if unsupported:
        raise UnsupportedOpError(f"Triton kernel `{label}` cannot be stored", f"it uses {unsupported[0]}", "")
    try:
        compiled._cubin_path = None  # Inductor sets it on its own kernels; only its reader looks at it
        static = StaticallyLaunchedCudaKernel(compiled)
    except (NotImplementedError, KeyError) as error:
        raise UnsupportedOpError(
            f"Triton kernel `{label}` cannot be stored", str(error), "leave it out with --kernels none"
        ) from error
    names = list(compiled.src.signature)
    baked = set(static.full_constexprs)
    passed = tuple(i for i, n in enumerate(names) if compiled.src.signature[n] != "constexpr" and i not in baked)
    return CompiledKernel(
        module=function.fn.__module__,
        function=function.fn.__qualname__,
        source=function.cache_key,
        key=key,
        symbol=metadata.name,
        warps=static.num_warps,
        shared_bytes=static.shared,
        arguments=static.arg_tys,
        passed=passed,
        scratch=int(static.has_global_scratch) + int(static.has_profile_scratch),
        cubin=bytes(compiled.asm["cubin"]),
    )


def offer_kernel(kernel: CompiledKernel, folder: Path, device: int) -> None:
    """Load a kernel and put it where Triton's own launch looks first, for one device of this process.

    Args:
        kernel: The kernel; digest, stamps and trust of its bytes have been checked.
        folder: A private folder for the time of the load.
        device: Index of the device.

    Raises:
        IncompatibleError: The function's source here is not the one that was compiled.
    """
    function = _function(kernel)
    if function.cache_key != kernel.source:
        raise IncompatibleError(
            f"Triton kernel `{kernel.label}` is not the one that was compiled",
            "its source, or what it calls, differs here",
            "run `precast precompile` with this source",
        )
    path = folder / f"{kernel.symbol}-{abs(hash(kernel.key)):x}.cubin"
    path.write_bytes(kernel.cubin)
    with _LOADING, no_compiler_started():
        cache = function.device_caches[device][0]
        cache.setdefault(kernel.key, _Launchable(kernel, path, device))
    path.unlink()


def _function(kernel: CompiledKernel) -> Any:
    """Find the function, inside the autotuner or the heuristics that wrap it."""
    try:
        found: Any = reduce(getattr, kernel.function.split("."), import_module(kernel.module))
    except (ImportError, AttributeError) as error:
        raise IncompatibleError(
            f"Triton kernel `{kernel.label}` is not here", str(error), "install the model's own package"
        ) from error
    while hasattr(found, "fn") and not hasattr(found, "device_caches"):
        found = found.fn
    return found


class _Launchable:
    """What `JITFunction.run` expects of a compiled kernel, launched by torch's static launcher."""

    __slots__ = ("function", "packed_metadata", "run")

    def __init__(self, kernel: CompiledKernel, path: Path, device: int) -> None:
        from torch._C import _StaticCudaLauncher as native

        loaded: tuple[int, ...] = native._load_kernel(str(path), kernel.symbol, kernel.shared_bytes, device)
        self.function = loaded[0] if len(loaded) == 3 else loaded[1]
        self.packed_metadata = None
        self.run = _launcher(kernel, native._launch_kernel)

    def launch_metadata(self, *_: Any) -> None:
        return None


def _launcher(kernel: CompiledKernel, launch: Callable[..., None]) -> Callable[..., None]:
    letters = kernel.arguments + "O" * kernel.scratch
    tail = (None,) * kernel.scratch
    warps, shared, passed = kernel.warps, kernel.shared_bytes, kernel.passed

    def run(
        x: int, y: int, z: int, stream: int, function: int, _packed: Any, _metadata: Any, _enter: Any, _leave: Any,
        *bound: Any,
    ) -> None:  # fmt: skip
        values: Sequence[Any] = (*(bound[i] for i in passed), *tail)
        launch(function, x, y, z, warps, shared, letters, values, stream)

    return run
