"""The Triton kernels that a model's splitting ops launch themselves: found and compiled ahead of time, offered at load.

A splitting op is opaque to the trace, so its kernels are found by running its own CUDA implementation on fake tensors,
with every launch replaced by a compile. The spec's `state` gives the op what it reads: a KV cache, metadata.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.aot.described import compiling_for
from precast.aot.spec import ModelSpec
from precast.aot.target import Target
from precast.cache.canonical import Json, canonical_json, decode_json
from precast.cache.container import RawTensor, TensorPlace, read_header, serialize_tensors
from precast.errors import CorruptError, UnsupportedOpError

if TYPE_CHECKING:
    from torch import fx

    from precast.aot.torch_seams.kernels import CompiledKernel

__all__ = ["KIND", "OpCall", "op_calls", "offer_kernels", "pack_kernels", "record_kernels", "unpack_kernels"]

KIND = "triton"
_METADATA = "precast.kernels"
# An op may launch other kernels for few rows than for many. Within each, a kernel for one token count is one for all:
# a size that Triton would bake in must not be an argument.
_TOKENS = (7, 4099)


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of a splitting op in a traced graph.

    Attributes:
        op: The op overload.
        args: Its arguments: fake tensors with a symbolic token count, and plain values.
        kwargs: The same by name.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def op_calls(graph: "fx.Graph", ops: Sequence[str]) -> tuple[OpCall, ...]:
    """Return the calls of splitting ops in a traced graph whose nodes carry `example_value`."""
    from torch import fx

    from precast.splitter.nodes import example, op_name, op_overload

    def value(argument: Any) -> Any:
        return example(argument) if isinstance(argument, fx.Node) else argument

    def called(node: fx.Node) -> OpCall:
        target: Any = node.target
        overload = target if hasattr(target, "_schema") else getattr(target, op_overload(node))
        kwargs = {name: fx.node.map_aggregate(v, value) for name, v in node.kwargs.items()}
        return OpCall(overload, tuple(fx.node.map_aggregate(a, value) for a in node.args), kwargs)

    return tuple(called(node) for node in graph.nodes if op_name(node) in ops)


def record_kernels(spec: ModelSpec, calls: Iterable[OpCall], target: Target) -> "tuple[CompiledKernel, ...]":
    """Compile every Triton kernel that the splitting ops launch on a described GPU.

    Args:
        spec: The model; without `state` its ops cannot run, and nothing is recorded.
        calls: The calls of splitting ops.
        target: The GPU.

    Raises:
        UnsupportedOpError: An op's implementation cannot run on fake tensors, or a kernel cannot be stored.
    """
    import torch

    from precast.aot.torch_seams.kernels import has_python_kernel, kernels_recorded
    from precast.aot.torch_seams.parameters import fake_on
    from precast.aot.trace import build_for_tracing

    ours = [call for call in calls if has_python_kernel(call.op)]
    if spec.state is None or not ours:
        return ()
    module = build_for_tracing(spec)
    with ExitStack() as stack:
        stack.enter_context(compiling_for(target))
        stack.enter_context(stack.enter_context(fake_on(module, target.device)))
        stack.enter_context(torch.no_grad())
        kernels = stack.enter_context(kernels_recorded())
        for tokens in _TOKENS:
            with spec.state(module, tokens):
                for call in ours:
                    _run(call, tokens)
    return tuple(kernels)


def _run(call: OpCall, tokens: int) -> None:
    import torch

    from precast.aot.torch_seams.export import concrete

    def made(value: Any) -> Any:
        return concrete(value, tokens) if isinstance(value, torch.Tensor) else value

    try:
        call.op._op_dk(torch._C.DispatchKey.CUDA, *map(made, call.args), **{k: made(v) for k, v in call.kwargs.items()})
    except UnsupportedOpError:
        raise
    except Exception as error:
        raise UnsupportedOpError(
            f"the Triton kernels of `{call.op.name()}` cannot be compiled ahead of time",
            f"its CUDA implementation does not run on fake tensors: {type(error).__name__}: {error}",
            "let it read sizes, strides and dtypes only, or leave `state` out of the spec: the node compiles them then",
        ) from error


def pack_kernels(kernels: "Sequence[CompiledKernel]") -> bytes:
    """Return kernels as one payload: a safetensors container, machine code as tensors, the rest as JSON.

    Equal kernels give equal bytes.
    """
    ordered = sorted(kernels, key=lambda k: (k.label, k.key))
    plain: list[Json] = [{**asdict(k), "cubin": f"{i:04d}", "passed": list(k.passed)} for i, k in enumerate(ordered)]
    tensors: dict[str, RawTensor] = {f"{i:04d}": ("uint8", (len(k.cubin),), k.cubin) for i, k in enumerate(ordered)}
    return serialize_tensors(tensors, {_METADATA: canonical_json(plain).decode()})


def unpack_kernels(data: bytes) -> "tuple[CompiledKernel, ...]":
    """Read what `pack_kernels` made; nothing of it runs.

    Raises:
        CorruptError: The payload is not of that form.
    """
    from precast.aot.torch_seams.kernels import CompiledKernel

    try:
        places, metadata = read_header(io.BytesIO(data))
        found: Any = decode_json(metadata.get(_METADATA, "").encode())
        names = {f.name for f in fields(CompiledKernel)}
        if not isinstance(found, list) or any(not isinstance(k, dict) or k.keys() != names for k in found):
            raise ValueError("it does not describe kernels")
        return tuple(
            CompiledKernel(**{**k, "passed": tuple(k["passed"]), "cubin": _bytes(data, places[k["cubin"]])})
            for k in found
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError("the payload of Triton kernels is damaged", str(error), "precompile again") from error


def _bytes(data: bytes, place: TensorPlace) -> bytes:
    return data[place.begin : place.end]


def offer_kernels(kernels: "Sequence[CompiledKernel]", folder: Path, device: int) -> None:
    """Put kernels where Triton looks before it compiles; see `torch_seams.kernels.offer_kernel`."""
    from precast.aot.torch_seams.kernels import offer_kernel

    for kernel in kernels:
        offer_kernel(kernel, folder, device)
