"""Seams that let torch compile for a described GPU: every question that the driver would answer, the description does.

Dynamo, AOTAutograd, Inductor and Triton ask torch.cuda, the device interface and Triton's driver about a device. In
`described_device` all of these answer from a `TargetDescription`, whether this machine has a GPU or not, so a CI
runner and a node make the same code. Nothing in it can launch a kernel or make a context: those are errors by name.

Tried on torch 2.11.0 with Triton 3.6.0; the names were looked up in torch 2.13.0. A name that is gone is an error.
"""

import inspect
import subprocess
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from precast.aot.target import cpu_build_of_torch
from precast.aot.torch_seams.described_facts import fact
from precast.errors import IncompatibleError, NoGpuError

if TYPE_CHECKING:
    from precast.aot.description import TargetDescription

__all__ = ["described_device", "seam"]

_INDEX = 0

# Functions whose memoised answers speak of a device: dropped on the way in and on the way out.
_MEMOISED = (
    ("torch._inductor.runtime.hints", "DeviceProperties.create"),
    ("torch._inductor.codecache", "CacheBase.get_system"),
    ("torch._inductor.codecache", "CacheBase.get_local_cache_path"),
    ("torch._inductor.utils", "get_gpu_type"),
    ("torch._inductor.utils", "get_max_num_sms"),
    ("torch._inductor.utils", "is_big_gpu"),
    ("torch._inductor.utils", "using_b200"),
    ("torch.utils._triton", "has_triton"),
    ("torch.utils._triton", "triton_backend"),
    ("torch.utils._triton", "triton_hash_with_backend"),
    ("torch.utils._triton", "_device_supports_tma"),
    ("torch.utils._triton", "has_triton_experimental_host_tma"),
    ("torch.utils._triton", "has_triton_tensor_descriptor_host_tma"),
    ("torch.utils._triton", "has_triton_tma_device"),
    ("torch.utils._triton", "has_triton_stable_tma_api"),
    ("torch.utils._triton", "has_datacenter_blackwell_tma_device"),
)


def seam(module: str, name: str) -> tuple[Any, str, Any]:
    """Find a private name of torch or Triton.

    Args:
        module: Its module.
        name: The name in it, with dots for what is in a class.

    Returns:
        Its owner, its last name, and what it is.

    Raises:
        IncompatibleError: This torch or Triton does not have it.
    """
    import torch

    owner: Any = import_module(module)
    *path, last = name.split(".")
    try:
        for part in path:
            owner = getattr(owner, part)
        return owner, last, inspect.getattr_static(owner, last)
    except AttributeError as error:
        raise IncompatibleError(
            f"torch {torch.__version__} cannot compile for a described GPU",
            f"it has no `{module}.{name}`, which this version of precast answers for the driver",
            "use a version of torch that precast was tried on",
        ) from error


@contextmanager
def described_device(target: "TargetDescription") -> Iterator[None]:
    """Let torch compile for a described GPU while the block runs, and leave nothing of it behind.

    Args:
        target: What the code is for.

    Raises:
        IncompatibleError: torch is a build without CUDA, or lacks one of the private names.
    """
    _require_cuda_build(target)
    _forget()
    with ExitStack() as stack:
        stack.callback(_forget)
        _answer_device_interface(stack, target)
        _answer_triton(stack, target)
        _answer_static_launcher(stack)
        _answer_torch_cuda(stack, target)
        _keep_fake_tensors_from_the_driver(stack)
        _take_fake_sizes_for_real(stack)
        _fold_constants_on_the_cpu(stack)
        _leave_out_line_numbers(stack)
        yield


def _require_cuda_build(target: "TargetDescription") -> None:
    import torch

    if torch.version.cuda is None or not hasattr(torch._C, "_StaticCudaLauncher"):
        raise cpu_build_of_torch(target.name)


def _forget() -> None:
    for module, name in _MEMOISED:
        found = seam(module, name)[2]
        found = getattr(found, "__func__", found)
        if hasattr(found, "cache_clear"):
            found.cache_clear()


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NoGpuError(f"{what} was asked of a described GPU", "code is made for it here, and nothing runs on it")

    return refuse


def _answer(value: Any) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _properties(target: "TargetDescription") -> types.SimpleNamespace:
    """Return what `torch.cuda.get_device_properties` returns."""
    major, minor = target.capability
    return types.SimpleNamespace(
        name=target.name,
        major=major,
        minor=minor,
        is_integrated=0,
        total_memory=target.total_memory_bytes,
        multi_processor_count=target.multi_processor_count,
        regs_per_multiprocessor=target.regs_per_multiprocessor,
        max_threads_per_multi_processor=target.max_threads_per_multi_processor,
        max_threads_per_block=target.max_threads_per_block,
        warp_size=target.warp_size,
        shared_memory_per_block=target.shared_memory_per_block,
        shared_memory_per_block_optin=target.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=target.shared_memory_per_multiprocessor,
        L2_cache_size=target.l2_cache_bytes,
        clock_rate=target.clock_rate_khz,
        memory_clock_rate=target.memory_clock_rate_khz,
        memory_bus_width=target.memory_bus_width_bits,
    )


def _answer_device_interface(stack: ExitStack, target: "TargetDescription") -> None:
    """Register a device interface (`torch._dynamo.device_interface`), which Dynamo and Inductor ask."""
    from torch._dynamo import device_interface as di

    _, _, registered = seam("torch._dynamo.device_interface", "device_interfaces")
    real = di.get_interface_for_device("cuda")  # its own registration first, else it would replace ours
    properties, (major, minor) = _properties(target), target.capability

    class Worker:
        set_device = staticmethod(_answer(None))
        current_device = staticmethod(_answer(_INDEX))
        get_device_properties = staticmethod(fact("get_device_properties", properties))

    facts = {
        "get_device_properties": properties,
        "get_compute_capability": major * 10 + minor,
        "is_bf16_supported": major >= 8,
    }
    answers = {
        "current_device": _INDEX,
        "device_count": 1,
        "is_available": True,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "set_device": None,
        "exchange_device": _INDEX,
        "maybe_exchange_device": _INDEX,
        "get_raw_stream": 0,
        "memory_allocated": 0,
    }
    members: dict[str, Any] = {name: staticmethod(_answer(value)) for name, value in answers.items()}
    members |= {name: staticmethod(fact(name, value)) for name, value in facts.items()}
    members |= {name: staticmethod(_refusal(f"`{name}`")) for name in ("synchronize", "current_stream")}
    described = type("DescribedCudaInterface", (real,), {**members, "Worker": Worker})
    stack.enter_context(mock.patch.dict(registered, {"cuda": described, f"cuda:{_INDEX}": described}))


def _answer_triton(stack: ExitStack, target: "TargetDescription") -> None:
    """Make a described driver Triton's active one; Inductor insists on a subclass of the CUDA driver."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    _, _, real = seam("triton.backends.nvidia.driver", "CudaDriver")
    capability = target.capability
    facts = {
        "max_shared_mem": target.shared_memory_per_block_optin,
        "max_num_regs": target.regs_per_multiprocessor,
        "multiprocessor_count": target.multi_processor_count,
        "warpSize": target.warp_size,
        "sm_clock_rate": target.clock_rate_khz,
        "mem_clock_rate": target.memory_clock_rate_khz,
        "mem_bus_width": target.memory_bus_width_bits,
    }

    class Utils:
        def get_device_properties(self, _: int) -> dict[str, int]:
            return facts

        def load_binary(self, *_: Any) -> tuple[int, int, int, int, int]:
            """Pretend to load a kernel: module, function, registers, spills, most threads of a block."""
            return 1, 1, 32, 0, target.max_threads_per_block

    class Launcher:
        def __init__(self, *_: Any) -> None:
            pass

        __call__ = _refusal("a kernel launch")

    class DescribedDriver(real):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:  # the real one builds and loads a helper that wants the driver
            self.utils = Utils()
            self.launcher_cls = Launcher

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability[0] * 10 + capability[1], target.warp_size)

        def get_current_device(self) -> int:
            return _INDEX

        def set_current_device(self, _: int) -> None:
            pass

        def get_device_capability(self, _: int | None = None) -> tuple[int, int]:
            return capability

        def get_current_stream(self, _: int | None = None) -> int:
            return 0

    _, _, before = seam("triton.runtime.driver", "driver._active")
    driver.set_active(DescribedDriver())
    stack.callback(setattr, driver, "_active", before)


def _answer_static_launcher(stack: ExitStack) -> None:
    """Answer for the native half of Inductor's static launcher; registers and spills decide between configs."""
    owner, name, _ = seam("torch._inductor.runtime.static_triton_launcher", "StaticallyLaunchedCudaKernel.C_impl")

    class Native:
        @staticmethod
        def _load_kernel(cubin: str, kernel: str, _shared: int, _device: int) -> tuple[int, ...]:
            registers, spilled = _resources(cubin, kernel)
            return (1, registers, spilled) if _loads_to_three() else (1, 1, registers, spilled)

        _launch_kernel = staticmethod(_refusal("a kernel launch"))

    stack.enter_context(mock.patch.object(owner, name, Native))


def _loads_to_three() -> bool:
    """Tell whether `_load_kernel` returns (function, registers, spills); from torch 2.13 on a module leads them."""
    import torch

    return tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2]) < (2, 13)


def _resources(cubin: str, kernel: str) -> tuple[int, int]:
    """Return the registers and spilled words of a kernel, as Triton's own `cuobjdump` reads them.

    CUDA 13 no longer keeps the register count in the section header, so the file is not parsed here.
    """
    import re

    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"Function {re.escape(kernel)}:\s*\n\s*REG:(\d+) STACK:\d+ SHARED:\d+ LOCAL:(\d+)", shown)
    if found is None:
        raise IncompatibleError(
            f"the registers of kernel `{kernel}` cannot be read", "cuobjdump printed no line for it", ""
        )
    return int(found[1]), int(found[2]) // 4


def _answer_torch_cuda(stack: ExitStack, target: "TargetDescription") -> None:
    """Answer the queries of `torch.cuda`; whatever still wants to start CUDA is refused by name."""
    import torch

    properties, memory = _properties(target), target.total_memory_bytes
    facts = {
        "get_device_properties": properties,
        "get_device_capability": target.capability,
        "get_device_name": target.name,
        "is_bf16_supported": target.capability[0] >= 8,
        "is_tf32_supported": target.capability[0] >= 8,
        "mem_get_info": (memory, memory),
    }
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": _INDEX,
        "_exchange_device": _INDEX,
        "_maybe_exchange_device": _INDEX,
        # Dynamo and AOTAutograd keep the state of the generator around a trace.
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }
    told = {**{n: _answer(v) for n, v in answers.items()}, **{n: fact(n, v) for n, v in facts.items()}}
    for name, answer in told.items():
        owner, last, _ = seam("torch.cuda", name)
        stack.enter_context(mock.patch.object(owner, last, answer))
    # Where there is an accelerator Dynamo asks for its current stream.
    owner, last, _ = seam("torch.accelerator", "is_available")
    stack.enter_context(mock.patch.object(owner, last, _answer(False)))
    owner, last, _ = seam("torch.cuda", "_lazy_init")
    stack.enter_context(mock.patch.object(owner, last, _refusal("a CUDA context")))


def _keep_fake_tensors_from_the_driver(stack: ExitStack) -> None:
    """Fake CUDA tensors must not warm up a context (`torch._subclasses.fake_tensor`)."""
    owner, last, _ = seam("torch._subclasses.fake_tensor", "init_gpu_context")
    stack.enter_context(mock.patch.object(owner, last, _answer(None)))
    owner, last, _ = seam("torch._subclasses.fake_tensor", "FakeTensorMode.avoid_device_init")
    stack.enter_context(mock.patch.object(owner, last, property(lambda _: True)))


def _take_fake_sizes_for_real(stack: ExitStack) -> None:
    """Let marked dims of fake inputs become symbols, as those of real ones do.

    From torch 2.13 on the sizes of another mode's fake tensors are taken over as they are, numbers as numbers, whatever
    is marked (`ShapeEnv.transfer_symbols_from_foreign_shape_env`); before, they were treated as real ones.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, is_symbolic

    real = getattr(ShapeEnv, "transfer_symbols_from_foreign_shape_env", None)
    if real is None:
        return
    seam("torch.fx.experimental.symbolic_shapes", "ShapeEnv._create_symbolic_sizes_strides_storage_offset")

    def as_real(self: Any, size: Any, stride: Any, offset: Any, source: Any, **context: Any) -> Any:
        if any(map(is_symbolic, (*size, *stride, offset))):
            return real(self, size, stride, offset, source, **context)
        known = [False] * len(size)
        return self._create_symbolic_sizes_strides_storage_offset(size, stride, offset, known, source, **context)

    stack.enter_context(mock.patch.object(ShapeEnv, "transfer_symbols_from_foreign_shape_env", as_real))


def _fold_constants_on_the_cpu(stack: ExitStack) -> None:
    """Inductor folds uniform constants by making one-element tensors on the graph's device: make them on the CPU."""
    import torch
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    owner, last, real = seam("torch._inductor.fx_passes.joint_graph", "UniformValueConstantFolder")

    class OnTheCpu(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def moved(device: torch.device) -> torch.device:
                return torch.device("cpu") if device.type == "cuda" else device

            args, kwargs = pytree.tree_map_only(torch.device, moved, (args, kwargs or {}))
            return func(*args, **kwargs)

    class Folder(real):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with OnTheCpu():
                super().__init__(*args, **kwargs)

        def run(self, *args: Any, **kwargs: Any) -> Any:
            with OnTheCpu():
                return super().run(*args, **kwargs)

    stack.enter_context(mock.patch.object(owner, last, Folder))


def _leave_out_line_numbers(stack: ExitStack) -> None:
    """Keep paths and times of generated sources out of machine code, so that two builds make equal bytes."""
    from triton import knobs

    seam("triton.knobs", "compilation.disable_line_info")
    stack.enter_context(knobs.compilation.scope())
    knobs.compilation.disable_line_info = True
