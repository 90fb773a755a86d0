"""Load an artifact: check it, load its payloads, bind the module's state, return a callable.

Nothing here compiles, and for `aoti` payloads nothing here imports Dynamo, Inductor, sympy or Triton. Digests and
stamps are checked before a torch loader sees a byte.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.aot.binding import BoundState, LoadedPieces, bind_forward, bind_module, bind_state
from precast.aot.collector import collector_held_off
from precast.aot.device_index import loading_on, module_index
from precast.aot.kernels import KIND, unpack_kernels
from precast.aot.payloads import payload_kind
from precast.aot.progress import Silent
from precast.aot.scratch import no_scratch, optional_scratch
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
from precast.aot.tuning import earlier_choices
from precast.aot.withdrawal import load_or_withdraw
from precast.aot.worker import brief
from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.options import StoreOptions, open_store, signed_options
from precast.cache.remotes import open_tier
from precast.cache.signing_keys import load_public_keys
from precast.cache.sizes import format_size
from precast.errors import CorruptError, IncompatibleError, PrecastError
from precast.splitter.plan import SplitPlan
from precast.splitter.stitch import PieceCallable

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CompiledModel", "LoadedPieces", "bind_module", "load", "load_pieces"]

_NO_EXEC = "failed to map segment"  # the dynamic linker's words
_NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc")
# What the dynamic linker and CUDA say, in lower case, where the fault is not the payload's.
_NODE_LACKS = (
    "cannot open shared object file", "version `glibc", "version `cxxabi", "cuda error", "cuda driver", "no cuda",
    "cuda-capable", "no kernel image",
)  # fmt: skip


class CompiledModel:
    """A loaded model. Call it as the module's forward.

    Attributes:
        manifest: The entry it came from.
        degraded: Payloads that did not come from their own object.
        bound: Its pieces and the module's state, for other ways to run it; None where there is only the forward.
    """

    __slots__ = ("_dispatch", "bound", "degraded", "manifest")

    def __init__(
        self,
        manifest: Manifest,
        dispatch: Callable[..., Any],
        degraded: Sequence[Degradation] = (),
        bound: BoundState | None = None,
    ) -> None:
        self.manifest = manifest
        self.bound = bound
        self.degraded = tuple(degraded)
        self._dispatch = dispatch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward, with the module's own signature."""
        return self._dispatch(*args, **kwargs)


@collector_held_off()
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
        pieces = load_pieces(opened, module_index(module))  # takes no lock: that alone costs more than the load
        opened.touch()
        bound = bind_state(pieces, module)
        return CompiledModel(pieces.manifest, bind_forward(bound), degraded, bound)

    if names_file(os.fspath(source)):
        return finish(MegaSource.open(Path(source)))
    store, _ = open_store(cache_dir, asked)
    tier = open_tier(store, asked, Silent().warning)

    def attempt() -> CompiledModel:
        degraded: list[Degradation] = []
        opened = open_source(os.fspath(source), store, strict=strict, on_degraded=degraded.append, tier=tier)
        return finish(opened, degraded)

    return load_or_withdraw(store, source, attempt)


def load_pieces(source: EntrySource, index: int | None = None) -> LoadedPieces:
    """Load every payload of an entry.

    Args:
        source: The opened entry.
        index: Index of the device to run on; None for the current one.

    Raises:
        CorruptError: A payload is missing, damaged, or refused by torch's loader.
        IncompatibleError: A stamp does not fit this node, or it has too little memory, or it runs on index 0 alone.
        StoreAccessError: The temporary folder is full or cannot be used.
    """
    manifest = source.manifest
    require_compatible(manifest, os.environ)
    plan = SplitPlan.from_json(manifest.plan)
    callables = {}
    with loading_on(manifest, index) as place, optional_scratch("load") as folder, earlier_choices(source):
        for record in manifest.payloads:
            if record.kind != KIND:
                callables[_piece_of(record), record.range] = _load_one(source, record, folder)
    packed = [source.payload(record) for record in manifest.payloads if record.kind == KIND]
    kernels = tuple(k for data in packed for k in unpack_kernels(data))
    return LoadedPieces(manifest, plan, callables, kernels, place)


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
        return no_scratch(brief(error), str(error.filename or folder or ""))
    if _NO_EXEC in str(error):
        return no_scratch(f"it is mounted noexec: {brief(error)}", str(folder or ""))
    if any(sign in str(error).lower() for sign in _NODE_LACKS):
        return IncompatibleError(
            f"{what}: this node lacks something",
            brief(error),
            "its digest is right, and other nodes may load it: look at this node's libraries, driver and GPU",
            entry=manifest.key,
        )
    # torch's loader says only that a write failed
    if folder is not None and shutil.disk_usage(folder).free < record.bytes:
        return no_scratch(f"it is full: {brief(error)}", str(folder))
    hint = "its digest is right, so the build was faulty: run `precast precompile --force`"
    return CorruptError(what, brief(error), hint, entry=manifest.key)


def _out_of_memory(error: Exception) -> bool:
    import torch

    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(sign in str(error) for sign in _NO_MEMORY)
