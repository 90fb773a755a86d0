"""Load an artifact: check it, load its payloads, bind the module's state, return a callable.

Nothing here compiles, and for `aoti` payloads nothing here imports Dynamo, Inductor, sympy or Triton. Digests and
stamps are checked before a torch loader sees a byte.
"""

import bisect
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.aot.kernels import KIND, offer_kernels, unpack_kernels
from precast.aot.payloads import payload_kind
from precast.aot.progress import Silent
from precast.aot.scratch import scratch_folder
from precast.aot.sources import (
    Degradation,
    EntrySource,
    MegaSource,
    names_file,
    open_source,
    require_own,
    require_signed,
)
from precast.aot.stamps import require_compatible
from precast.aot.withdrawal import load_or_withdraw
from precast.aot.worker import brief
from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.options import StoreOptions, open_store, signed_options
from precast.cache.remotes import open_tier
from precast.cache.signing_keys import load_public_keys
from precast.cache.sizes import format_size
from precast.errors import CorruptError, IncompatibleError, PrecastError, StoreAccessError, WeightError
from precast.splitter.plan import GraphInput, SplitPlan
from precast.splitter.stitch import PieceCallable, Stitched, bind, stitch

if TYPE_CHECKING:
    from torch import nn

    from precast.aot.torch_seams.kernels import CompiledKernel

__all__ = ["CompiledModel", "LoadedPieces", "load", "load_pieces"]

_NO_EXEC = "failed to map segment"  # the dynamic linker's words
_NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc")
# What the dynamic linker and CUDA say, in lower case, where the fault is not the payload's.
_NODE_LACKS = (
    "cannot open shared object file", "version `glibc", "version `cxxabi", "cuda error", "cuda driver", "no cuda",
    "cuda-capable", "no kernel image",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedPieces:
    """The payloads of an entry as callables, not yet bound to a module.

    Attributes:
        manifest: The entry.
        plan: Its split plan.
        callables: By (structural key, compile range).
        kernels: The Triton kernels that splitting ops launch themselves.
    """

    manifest: Manifest
    plan: SplitPlan
    callables: Mapping[tuple[str, tuple[int, int]], PieceCallable]
    kernels: "tuple[CompiledKernel, ...]" = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Compile ranges of the entry, in order; single sizes are ranges of one."""
        return tuple(sorted({r for _, r in self.callables}))


class CompiledModel:
    """A loaded model. Call it as the module's forward.

    Attributes:
        manifest: The entry it came from.
        degraded: Payloads that did not come from their own object.
    """

    __slots__ = ("_dispatch", "degraded", "manifest")

    def __init__(self, manifest: Manifest, dispatch: Callable[..., Any], degraded: Sequence[Degradation] = ()) -> None:
        self.manifest = manifest
        self.degraded = tuple(degraded)
        self._dispatch = dispatch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward, with the module's own signature."""
        return self._dispatch(*args, **kwargs)


def load(
    source: str | os.PathLike[str],
    module: "nn.Module",
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    strict: bool = True,
    options: StoreOptions | None = None,
    require_signature: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
) -> CompiledModel:
    """Load an artifact for a module. A mega file needs no store and no home folder, and writes into none.

    Args:
        source: A key, a key prefix of at least 6 hex digits, a tag, or the path of a mega file.
        module: The module whose parameters and buffers the pieces use; on the entry's device, with its dtypes.
        cache_dir: The cache root; by default `PRECAST_CACHE_DIR`, then the user's cache folder.
        strict: Refuse an entry with a missing or damaged object; else its mega file helps out, and `degraded` says so.
        options: How the store is opened; by default as the environment says.
        require_signature: Files of public keys, one of which must have signed the entry, beside those of `options`.
            That is checked before a payload is read.

    Returns:
        A callable with the signature of the module's forward.

    Raises:
        NoEntryError: There is no such entry, nor in the remote behind the store.
        CorruptError: Stored bytes do not match their digests, or torch refuses them. An entry of a store that can be
            written is in the quarantine then, so that no later start meets it.
        RemoteError: The remote is required, and cannot be reached or refuses.
        IncompatibleError: The entry was made for another stack or device, or needs more memory than there is.
        StoreAccessError: The temporary folder is full or cannot be used.
        WeightError: A parameter or buffer of the plan is missing in the module.
        UntrustedError: Another user could have written the entry, and neither is its store trusted nor a signature
            asked for.
        SignatureError: A signature is asked for, and none of the keys signed what would be loaded.
        UsageError: A file of a public key cannot be used.
    """
    asked = signed_options(options, require_signature)
    keys = load_public_keys(asked.required_signatures)

    def finish(opened: EntrySource, degraded: Sequence[Degradation] = ()) -> CompiledModel:
        require_signed(opened, keys)
        require_own(opened, asked)
        pieces = load_pieces(opened)  # takes no lock: that alone costs more than the load
        opened.touch()
        return CompiledModel(pieces.manifest, bind_module(pieces, module), degraded)

    if names_file(os.fspath(source)):
        return finish(MegaSource.open(Path(source)))
    store, _ = open_store(cache_dir, asked)
    tier = open_tier(store, asked, Silent().warning)

    def attempt() -> CompiledModel:
        degraded: list[Degradation] = []
        opened = open_source(os.fspath(source), store, strict=strict, on_degraded=degraded.append, tier=tier)
        return finish(opened, degraded)

    return load_or_withdraw(store, source, attempt)


def load_pieces(source: EntrySource) -> LoadedPieces:
    """Load every payload of an entry.

    Args:
        source: The opened entry.

    Raises:
        CorruptError: A payload is missing, damaged, or refused by torch's loader.
        IncompatibleError: A stamp does not fit this node, or it has too little memory.
        StoreAccessError: The temporary folder is full or cannot be used.
    """
    manifest = source.manifest
    require_compatible(manifest, os.environ)
    plan = SplitPlan.from_json(manifest.plan)
    callables = {}
    with _scratch() as folder:
        for record in manifest.payloads:
            if record.kind != KIND:
                callables[_piece_of(record), record.range] = _load_one(source, record, folder)
    packed = [source.payload(record) for record in manifest.payloads if record.kind == KIND]
    return LoadedPieces(manifest, plan, callables, tuple(k for data in packed for k in unpack_kernels(data)))


def bind_module(pieces: LoadedPieces, module: "nn.Module") -> Callable[..., Any]:
    """Bind loaded pieces to a module's state.

    Raises:
        WeightError: A tensor of the plan is missing in the module.
        IncompatibleError: A splitting op is not registered.
        CorruptError: A piece of the plan has no payload for a range.
        StoreAccessError: There are kernels of splitting ops, and no temporary folder to load them from.
    """
    stitched = stitch(pieces.plan)
    values = _state(pieces.plan, module, str(pieces.manifest.target.get("device")))
    _offer(pieces, values.values())
    forwards = {span: _forward(pieces, stitched, span, values) for span in pieces.ranges}
    return _dispatcher(pieces.plan, forwards, str(pieces.manifest.target.get("device")))


def _offer(pieces: LoadedPieces, tensors: Iterable[Any]) -> None:
    """Put the kernels of splitting ops where Triton finds them, for the device where the module lies."""
    if not pieces.kernels:
        return
    import torch

    index = next((t.device.index for t in tensors), None)
    with _scratch() as folder:
        if folder is None:
            raise _no_scratch("kernels are loaded from files", os.environ.get("TMPDIR", ""))
        offer_kernels(pieces.kernels, folder, torch.cuda.current_device() if index is None else index)


def _piece_of(record: PayloadRecord) -> str:
    return record.name.partition(":")[0]


def _load_one(source: EntrySource, record: PayloadRecord, folder: Path | None) -> PieceCallable:
    data = source.payload(record)
    try:
        return payload_kind(record.kind).load(data, folder, record.object[:16])
    except PrecastError:
        raise
    except Exception as error:
        raise _load_error(error, source.manifest, record, folder) from error


@contextmanager
def _scratch() -> Iterator[Path | None]:
    """Make a private folder for what a load unpacks; None where none can be made: most payloads need none."""
    with ExitStack() as stack:
        folder = None
        with suppress(OSError):
            folder = stack.enter_context(scratch_folder("load"))
        yield folder


def _load_error(error: Exception, manifest: Manifest, record: PayloadRecord, folder: Path | None) -> PrecastError:
    """Say whose fault it is that a payload whose digest is right does not load."""
    what = f"torch could not load payload {record.name} of entry {manifest.key[:12]}"
    if _out_of_memory(error):
        total = sum(p.bytes for p in manifest.payloads)
        return IncompatibleError(
            f"{what}: memory ran out",
            brief(error),
            f"its code is {format_size(record.bytes)}, the entry's {format_size(total)}: free memory on the device",
            entry=manifest.key,
        )
    if isinstance(error, OSError):
        return _no_scratch(brief(error), str(error.filename or folder or ""))
    if _NO_EXEC in str(error):
        return _no_scratch(f"it is mounted noexec: {brief(error)}", str(folder or ""))
    if any(sign in str(error).lower() for sign in _NODE_LACKS):
        return IncompatibleError(
            f"{what}: this node lacks something",
            brief(error),
            "its digest is right, and other nodes may load it: look at this node's libraries, driver and GPU",
            entry=manifest.key,
        )
    # torch's loader says only that a write failed
    if folder is not None and shutil.disk_usage(folder).free < record.bytes:
        return _no_scratch(f"it is full: {brief(error)}", str(folder))
    hint = "its digest is right, so the build was faulty: run `precast precompile --force`"
    return CorruptError(what, brief(error), hint, entry=manifest.key)


def _no_scratch(why: str, path: str) -> StoreAccessError:
    return StoreAccessError(
        "a payload could not be unpacked into the temporary folder",
        why,
        "free space or give access there, or name another folder in TMPDIR",
        path=path,
    )


def _out_of_memory(error: Exception) -> bool:
    import torch

    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(sign in str(error) for sign in _NO_MEMORY)


def _state(plan: SplitPlan, module: "nn.Module", device: str) -> dict[str, Any]:
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
            problems += _misfits(given, values[given.name], device)
    if problems:
        raise WeightError(
            f"the module does not fit the artifact: {len(problems)} tensors differ",
            "; ".join(problems[:4]) + ("; ..." if len(problems) > 4 else ""),
            "build the module with the artifact's config, dtype and device",
        )
    return values


def _misfits(given: GraphInput, tensor: Any, device: str) -> list[str]:
    if not hasattr(tensor, "dtype"):
        return [f"{given.source} is a {type(tensor).__name__}, not a tensor"]
    here = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.device.type)
    want = (given.dtype, given.shape, device)
    if here != want:
        return [f"{given.source} is {here[0]} {list(here[1])} on {here[2]}, not {want[0]} {list(want[1])} on {want[2]}"]
    if tuple(tensor.stride()) != given.stride and tensor.numel() > 1:
        return [f"{given.source} has strides {list(tensor.stride())}, not {list(given.stride)}"]
    return []


def _forward(
    pieces: LoadedPieces, stitched: Stitched, span: tuple[int, int], values: Mapping[str, Any]
) -> Callable[..., Any]:
    callables = {key: run for (key, r), run in pieces.callables.items() if r == span}
    absent = [k for k in pieces.plan.unique_keys if k not in callables]
    if absent:
        raise CorruptError(
            f"entry {pieces.manifest.key[:12]} has no payload for piece {absent[0][:12]}, range {span[0]}-{span[1]}",
            "the manifest's plan and payloads do not agree",
            "run `precast precompile --force`",
        )
    return bind(stitched, callables, values, _resolve_op)


def _resolve_op(name: str, overload: str) -> Any:
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
    plan: SplitPlan, forwards: Mapping[tuple[int, int], Callable[..., Any]], device: str
) -> Callable[..., Any]:
    """Check the arguments, which compiled code does not, and choose the compile range by the token count."""
    from torch import Tensor

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
            if tensor.device.type != device:
                raise TypeError(f"`{name}` must be on {device}, not on {tensor.device.type}")
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
