"""Withdrawal: an entry that cannot be loaded is taken out of the way at once, so that no later start meets it again.

Otherwise a server that is restarted when it fails meets the same bad artifact for hours.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from precast.cache.damage import MISSING, UNREADABLE, Damage
from precast.cache.store import Store
from precast.cache.tags import resolve_entry
from precast.errors import CorruptError, FormatError, LockedError, StoreAccessError

__all__ = ["load_or_withdraw"]

_T = TypeVar("_T")

# Whoever holds the entry's lock publishes or mends it: then there is nothing left to withdraw.
_PATIENCE_S = 5.0


def load_or_withdraw(store: Store, what: str | os.PathLike[str], attempt: Callable[[], _T]) -> _T:
    """Load an entry of a store; one that proves bad goes to the quarantine, where the store can be written.

    Bytes that were wrong only once, because they were read wrongly or have been mended meanwhile, are read again. An
    entry that lacks a file and holds no wrong byte stays: nobody can load anything bad from it, and it may be mended.

    Args:
        store: The store.
        what: The entry's key, or a prefix of it.
        attempt: Loads it.

    Raises:
        CorruptError: The entry is bad; the error names it, the file, and where the bad copy is now.
        NoEntryError: It is gone, because somebody pruned it or put it aside.
        PrecastError: As `attempt`; whatever else is wrong is not the entry's fault, and it stays.
    """
    try:
        return attempt()
    except FormatError:
        raise
    except CorruptError as error:
        key = error.entry or resolve_entry(store, os.fspath(what))
        damage = _damage(store, key, error)
        first = error
    if not damage:
        try:
            return attempt()
        except FormatError:
            raise
        except CorruptError as error:
            first = error
    raise _withdrawn(store, key, damage, first) from first


def _damage(store: Store, key: str, error: CorruptError) -> tuple[Damage, ...]:
    """Check the entry in full; where it cannot be read, nothing is known to be wrong with it."""
    try:
        damage = store.check(key)
    except (FormatError, StoreAccessError):
        raise error from None
    if any(item.code == UNREADABLE for item in damage):
        raise error
    return damage


def _withdrawn(store: Store, key: str, damage: tuple[Damage, ...], error: CorruptError) -> CorruptError:
    why = "; ".join(dict.fromkeys(filter(None, (error.why, *map(str, damage)))))
    if damage and all(item.code == MISSING for item in damage):
        hint = "Run `precast precompile`: it mends this entry or builds it again"
    else:
        aside = _put_aside(store, key, damage, f"{error.what}: {why}")
        place = f"The bad copy is in {aside} now" if aside else "The bad copy stays where it is: it cannot be moved"
        hint = f"{place}; run `precast precompile`: it builds this entry again"
    return CorruptError(
        error.what,
        why,
        hint,
        entry=key,
        path=damage[0].path if damage else error.path or str(store.layout.entry(key)),
    )


def _put_aside(store: Store, key: str, damage: tuple[Damage, ...], reason: str) -> Path | None:
    """Put an entry into the quarantine; None where the store may not be written, or somebody is at the entry."""
    if store.read_only or store.unwritable():
        return None
    with suppress(StoreAccessError, LockedError), store.lock(f"entry-{key}", _PATIENCE_S):
        if store.check(key) == damage:
            return store.quarantine(key, reason, damage)
    return None
