"""The first call of a live module: find the artifact of its key, or compile and publish it, and load it.

The look-up and the compile are `precompile`'s and the load is `load`'s; here is only what to do when they do not agree.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.load import CompiledModel, load
from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.progress import Progress, Silent
from precast.aot.scratch import scratch_folder
from precast.aot.settings import Settings
from precast.cache.options import StoreOptions, is_on
from precast.errors import CorruptError, NoEntryError

if TYPE_CHECKING:
    from precast.aot.instance import InstanceReference

__all__ = ["ONE_AT_A_TIME", "Place", "obtain"]

# A compile changes what is one a process: the environment, Dynamo's config. Held by every first call of a module.
ONE_AT_A_TIME = threading.RLock()

_DISABLED = "PRECAST_DISABLE_CACHE"
_FOUND = ("up_to_date",)
_BUILT_HERE = ("compiled",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where artifacts are kept.

    Attributes:
        cache_dir: The cache root; None takes the environment's.
        options: How the store is opened; None takes what the environment says.
    """

    cache_dir: str | os.PathLike[str] | None = None
    options: StoreOptions | None = None


def obtain(
    reference: "InstanceReference", settings: Settings, place: Place, progress: Progress | None = None
) -> CompiledModel:
    """Return the compiled model of an instance, bound to it.

    With `PRECAST_DISABLE_CACHE=1` it is compiled anew, in a store that does not outlive the call, and no remote is
    asked. Where the store is read-only, nothing is compiled: there is an entry, or an error.

    Args:
        reference: The instance and its call.
        settings: Settings in force.
        place: Where artifacts are kept.
        progress: Is told what goes on.

    Raises:
        NoEntryError: The store is read-only and has no entry for the instance.
        PrecastError: As `precompile` and `load`.
    """
    progress = progress or Silent()
    with _opened(place) as (root, options):
        try:
            return _once(reference, settings, root, options, progress)
        except (CorruptError, NoEntryError) as error:
            if options.read_only:
                raise
            # A bad entry is in the quarantine now, or somebody pruned it: it is built again, once.
            progress.warning(error.code, f"{error.what}: {error.why}" if error.why else error.what, "it is built again")
            return _once(reference, settings, root, options, progress)


@contextmanager
def _opened(place: Place) -> "Iterator[tuple[str | os.PathLike[str] | None, StoreOptions]]":
    options = StoreOptions.from_environ(os.environ) if place.options is None else place.options
    if not is_on(os.environ.get(_DISABLED, ""), _DISABLED):
        yield place.cache_dir, options
        return
    with scratch_folder("compile") as folder:
        yield Path(folder) / "store", replace(options, read_only=False, remote=None, required_signatures=())


def _once(
    reference: "InstanceReference",
    settings: Settings,
    root: str | os.PathLike[str] | None,
    options: StoreOptions,
    progress: Progress,
) -> CompiledModel:
    made = precompile(
        reference, settings, cache_dir=root, options=options, progress=progress, dry_run=options.read_only
    )
    if options.read_only and made.status not in _FOUND:
        raise _absent(made)
    if made.status in _BUILT_HERE:  # nobody else can have signed it yet; its place must be this user's own
        options = replace(options, required_signatures=())
    return load(made.key, reference.instance, cache_dir=root, options=options)


def _absent(made: PrecompileResult) -> NoEntryError:
    return NoEntryError(
        f"there is no artifact for this `{made.model}`",
        f"its key is {made.key[:12]}, and the store at {made.root} is read-only",
        f"let a process that may write there make the first call, or set {_DISABLED}=1 to compile without it",
        entry=made.key,
    )
