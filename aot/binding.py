"""Bind loaded pieces to a module's state: checked arguments, one stitched forward a compile range, the range by tokens.

Compiled code checks nothing of what it is given, so all of it is checked here: the module's tensors once, a call's
arguments each time.
"""

import bisect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from precast.aot.kernels import offer_kernels
from precast.aot.scratch import no_scratch, optional_scratch
from precast.cache.manifest import Manifest
from precast.errors import CorruptError, IncompatibleError, WeightError
from precast.splitter.plan import GraphInput, SplitPlan
from precast.splitter.stitch import PieceCallable, Stitched, bind, stitch

if TYPE_CHECKING:
    from torch import nn

    from precast.aot.torch_seams.kernels import CompiledKernel

__all__ = ["BoundState", "LoadedPieces", "Wrap", "bind_forward", "bind_module", "bind_state", "resolve_op"]

Span = tuple[int, int]
Wrap = Callable[[Span, int, PieceCallable], PieceCallable]


@dataclass(frozen=True, slots=True)
class LoadedPieces:
    """The payloads of an entry as callables, not yet bound to a module.

    Attributes:
        manifest: The entry.
        plan: Its split plan.
        callables: By (structural key, compile range).
        kernels: The Triton kernels that splitting ops launch themselves.
        index: Index of the device that they were loaded for; None for the CPU.
    """

    manifest: Manifest
    plan: SplitPlan
    callables: Mapping[tuple[str, tuple[int, int]], PieceCallable]
    kernels: "tuple[CompiledKernel, ...]" = ()
    index: int | None = None

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Compile ranges of the entry, in order; single sizes are ranges of one."""
        return tuple(sorted({r for _, r in self.callables}))


@dataclass(frozen=True, slots=True)
class BoundState:
    """Loaded pieces and the tensors of the module that they run on.

    Attributes:
        pieces: The pieces.
        values: The module's parameters, buffers and attributes by the plan's names; checked, and never copied.
        device: The device's type.
    """

    pieces: LoadedPieces
    values: Mapping[str, Any]
    device: str


def bind_module(pieces: LoadedPieces, module: "nn.Module") -> Callable[..., Any]:
    """Bind loaded pieces to a module's state, and return the forward; see `bind_state` for what it refuses."""
    return bind_forward(bind_state(pieces, module))


def bind_state(pieces: LoadedPieces, module: "nn.Module") -> BoundState:
    """Find the module's tensors that the pieces use, and offer the kernels of splitting ops to Triton.

    Raises:
        WeightError: A tensor of the plan is missing in the module.
        StoreAccessError: There are kernels of splitting ops, and no temporary folder to load them from.
    """
    device = str(pieces.manifest.target.get("device"))
    values = _state(pieces.plan, module, device, pieces.index)
    _offer(pieces)
    return BoundState(pieces, values, device)


def bind_forward(bound: BoundState, wrap: Wrap | None = None, omitted: Collection[int] = ()) -> Callable[..., Any]:
    """Bind one forward: it checks its arguments and chooses the compile range by the token count.

    Args:
        bound: Pieces and state.
        wrap: Called once for every compile range and position of a piece, with the range, the position and the piece;
            what it returns is called in the piece's place. None for the pieces as they are.
        omitted: Steps of the plan, by index, that are left out.

    Raises:
        IncompatibleError: A splitting op is not registered.
        CorruptError: A piece of the plan has no payload for a range.
    """
    stitched = stitch(bound.pieces.plan, omitted)
    forwards = {span: _forward(bound, stitched, span, wrap) for span in bound.pieces.ranges}
    return _dispatcher(bound.pieces.plan, forwards, bound.device, bound.pieces.index)


def _offer(pieces: LoadedPieces) -> None:
    """Put the kernels of splitting ops where Triton finds them, for the device where the module lies."""
    if not pieces.kernels:
        return
    with optional_scratch("load") as folder:
        if folder is None:
            raise no_scratch("kernels are loaded from files", os.environ.get("TMPDIR", ""))
        offer_kernels(pieces.kernels, folder, pieces.index or 0)


def _state(plan: SplitPlan, module: "nn.Module", device: str, index: int | None) -> dict[str, Any]:
    """Find every tensor of the plan in the module, and refuse any that compiled code would misread."""
    values = {}
    problems = []
    for given in plan.inputs:
        if given.kind != "state":
            continue
        try:
            values[given.name] = reduce(getattr, given.source.split("."), module)
        except AttributeError:
            problems.append(f"{given.source} is missing")
        else:
            problems += _misfits(given, values[given.name], device, index)
    if problems:
        raise WeightError(
            f"the module does not fit the artifact: {len(problems)} tensors differ",
            "; ".join(problems[:4]) + ("; ..." if len(problems) > 4 else ""),
            "build the module with the artifact's config, dtype and device",
        )
    return values


def _misfits(given: GraphInput, tensor: Any, device: str, index: int | None) -> list[str]:
    if not hasattr(tensor, "dtype"):
        return [f"{given.source} is a {type(tensor).__name__}, not a tensor"]
    place = _place(tensor.device.type, None if index is None else tensor.device.index)
    here = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), place)
    want = (given.dtype, given.shape, _place(device, index))
    if here != want:
        return [f"{given.source} is {here[0]} {list(here[1])} on {here[2]}, not {want[0]} {list(want[1])} on {want[2]}"]
    if tuple(tensor.stride()) != given.stride and tensor.numel() > 1:
        return [f"{given.source} has strides {list(tensor.stride())}, not {list(given.stride)}"]
    return []


def _place(device: str, index: int | None) -> str:
    """Name a device, with its index where it has one: code that was loaded for one GPU runs on no other."""
    return device if index is None else f"{device}:{index}"


def _forward(bound: BoundState, stitched: Stitched, span: Span, wrap: Wrap | None) -> Callable[..., Any]:
    pieces = bound.pieces
    callables = {key: run for (key, r), run in pieces.callables.items() if r == span}
    absent = [k for k in pieces.plan.unique_keys if k not in callables]
    if absent:
        raise CorruptError(
            f"entry {pieces.manifest.key[:12]} has no payload for piece {absent[0][:12]}, range {span[0]}-{span[1]}",
            "the manifest's plan and payloads do not agree",
            "run `precast precompile --force`",
        )
    return bind(stitched, callables, bound.values, resolve_op, None if wrap is None else partial(wrap, span))


def resolve_op(name: str, overload: str) -> Any:
    """Return the overload of a registered op.

    Raises:
        IncompatibleError: It is not registered.
    """
    import torch

    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    found = getattr(packet, overload, None)
    if found is None:
        raise IncompatibleError(
            f"the splitting op `{name}.{overload}` is not registered",
            "the artifact calls it between its pieces",
            "import the module that registers it before loading",
        )
    return found


def _dispatcher(
    plan: SplitPlan, forwards: Mapping[tuple[int, int], Callable[..., Any]], device: str, index: int | None
) -> Callable[..., Any]:
    """Check the arguments, which compiled code does not, and choose the compile range by the token count."""
    from torch import Tensor
    from torch import device as torch_device

    place = None if index is None else torch_device(device, index)

    wanted = [next(i for i in plan.inputs if i.kind == "argument" and i.source == a) for a in plan.arguments]
    names = [i.source for i in wanted]
    dtypes = [_dtype(i.dtype) for i in wanted]
    ranks = [len(i.shape) for i in wanted]
    choose = _chooser(forwards)
    position, dim = (names.index(plan.token_input[0]), plan.token_input[1]) if plan.token_input else (0, None)

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        given = args if len(args) == len(names) and not kwargs else _in_order(names, args, kwargs)
        for name, tensor, dtype, rank in zip(names, given, dtypes, ranks, strict=True):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"`{name}` must be a tensor, not a {type(tensor).__name__}")
            if tensor.dtype is not dtype or tensor.dim() != rank:
                raise TypeError(
                    f"`{name}` must be a {dtype} tensor of {rank} dims, not {tensor.dtype} of {tensor.dim()}"
                )
            if tensor.device != place if place is not None else tensor.device.type != device:
                raise TypeError(f"`{name}` must be on {_place(device, index)}, not on {tensor.device}")
        tokens = given[position].shape[dim] if dim is not None else 1
        for want, tensor in zip(wanted, given, strict=True):
            if not tensor.is_contiguous() or tensor.shape != tuple(tokens if s is None else s for s in want.shape):
                raise ValueError(_misshapen(want, tensor, tokens))
        return choose(tokens)(*given)

    return dispatch


def _misshapen(want: GraphInput, tensor: Any, tokens: int) -> str:
    shape = [tokens if s is None else s for s in want.shape]
    found = f"{list(tensor.shape)} with strides {list(tensor.stride())}"
    return f"`{want.source}` must be a contiguous tensor of shape {shape}, not {found}"


def _chooser(forwards: Mapping[tuple[int, int], Callable[..., Any]]) -> Callable[[int], Callable[..., Any]]:
    """Return the choice by token count: a single size wins over a range (vllm-behaviour.md step 5)."""
    singles = {low: f for (low, high), f in forwards.items() if low == high}
    spans = sorted(span for span in forwards if span[0] != span[1])
    ends = [high for _, high in spans]
    by_span = [forwards[span] for span in spans]

    def choose(tokens: int) -> Callable[..., Any]:
        found = singles.get(tokens)
        if found is not None:
            return found
        at = bisect.bisect_left(ends, tokens)
        if at == len(ends) or tokens < spans[at][0]:
            raise ValueError(f"{tokens} tokens are outside the compile ranges {sorted(forwards)}")
        return by_span[at]

    return choose


def _in_order(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    rest = names[len(args) :]
    if len(args) > len(names) or set(kwargs) != set(rest):
        raise TypeError(
            f"the compiled forward takes {', '.join(names)}; got {len(args)} positional and {sorted(kwargs)}"
        )
    return [*args, *(kwargs[n] for n in rest)]


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
