"""Opening what stands behind a store; where nothing does, none of its modules is imported."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from precast.cache.lookup import MissReason
from precast.cache.manifest import Manifest
from precast.cache.options import StoreOptions
from precast.cache.store import Store

if TYPE_CHECKING:
    from precast.cache.remote_tier import RemoteTier

__all__ = ["open_tier"]


def open_tier(
    store: Store,
    options: StoreOptions,
    tell: Callable[[str, str, str], None],
    unfit: Callable[[Manifest], Iterable[MissReason]] = lambda _: (),
) -> "RemoteTier | None":
    """Return what stands behind a store; None where nothing does. Nothing is asked yet.

    Args:
        store: The store.
        options: How it was opened.
        tell: Takes the code, the message and the hint of each warning.
        unfit: Says what speaks against an entry on this node, although it is the right one by its key.

    Raises:
        ConfigValueError: The options name no address of a remote, or one with credentials.
        UsageError: A public key that an entry must be signed by cannot be read.
    """
    if options.remote is None:
        return None
    from precast.cache.remote import Remote
    from precast.cache.remote_tier import RemoteTier
    from precast.cache.signing_keys import load_public_keys

    return RemoteTier(
        store,
        Remote(options.remote.url),
        tell,
        writable=not (options.remote.read_only or options.read_only),
        required=options.remote.required,
        trusted=load_public_keys(options.required_signatures),
        unfit=unfit,
    )
