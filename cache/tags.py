"""Tags: names that people give to entries, which `prune` then leaves alone."""

import re

from precast.cache.atomic import write_atomic
from precast.cache.fields import HEX64
from precast.cache.store import Store
from precast.errors import UsageError

__all__ = ["all_tags", "check_tag", "set_tag"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def set_tag(store: Store, name: str, key: str) -> None:
    """Let a tag name an entry; a tag that exists moves.

    Args:
        store: The store.
        name: Letters, digits, dots, dashes and underscores, the first a letter or digit.
        key: The entry's key.

    Raises:
        UsageError: The name is no tag.
        NoEntryError: There is no such entry.
        StoreAccessError: The store cannot be written.
    """
    check_tag(name)
    store.manifest(key)
    with store.lock("tags"):
        write_atomic(store.layout.tags / name, f"{key}\n".encode())


def check_tag(name: str) -> None:
    """Refuse a name that is no tag.

    Raises:
        UsageError: It is none.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is no tag", hint="Write a tag with letters, digits, dots, dashes and underscores")


def all_tags(store: Store) -> dict[str, str]:
    """Return the key that each tag names, sorted by tag; damaged tags are left out."""
    try:
        files = sorted(store.layout.tags.iterdir())
    except OSError:
        return {}
    keys = {path.name: _key(path.read_bytes()) for path in files if _NAME.fullmatch(path.name) and path.is_file()}
    return {name: key for name, key in keys.items() if HEX64.fullmatch(key)}


def _key(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").strip()
