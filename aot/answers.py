"""Answers to requests: which entry answers one, and where the sources are that decide whether it still does."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.spec import Json
from precast.cache.lookup import Request
from precast.cache.masking import sealed_value
from precast.cache.requests import remember
from precast.cache.store import Store

if TYPE_CHECKING:
    from precast.aot.planning import Reference

__all__ = ["remember_answer", "search_path"]


def search_path(reference: "Reference") -> tuple[str, ...]:
    """Return where the modules and data files of a model are looked for when they are hashed again."""
    import precast

    return (*reference.data_path, *sys.path, str(Path(precast.__file__).parent.parent))


def remember_answer(
    store: Store,
    reference: "Reference",
    overrides: Mapping[str, Json],
    request: Request,
    key: str,
) -> None:
    """Note which entry answers a request and how its model was named, for `verify KEY`.

    Args:
        store: The store.
        reference: The model as it was named.
        overrides: Values for its config; secrets among them are noted by digest only.
        request: The request.
        key: The entry's key.

    Raises:
        StoreAccessError: The store cannot be written.
        LockedError: Another process held the lock all the time.
    """
    sealed = {k: sealed_value(k, v) for k, v in overrides.items()}
    remember(store, request.digest, key, {**reference.hint, "overrides": sealed})
