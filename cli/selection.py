"""Which entry is meant when the user names none."""

from pathlib import Path

from precast.cache.store import Store
from precast.errors import NoEntryError, UsageError

__all__ = ["only_entry"]


def only_entry(root: Path) -> str:
    """Give the key of the only entry of a store.

    Raises:
        NoEntryError: If the store is empty or absent.
        UsageError: If there are several entries, so that one must be named.
    """
    keys = [entry.key for entry in Store(root, read_only=True).entries()]
    if not keys:
        raise NoEntryError("The store has no entries", f"it is at {root}", "Run `precast precompile MODEL` first")
    if len(keys) > 1:
        raise UsageError(
            f"The store has {len(keys)} entries", "none was named", "Name one that `precast inspect ls` lists"
        )
    return keys[0]
