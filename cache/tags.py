"""Tags: names that people give to entries, which `prune` then leaves alone."""

import re
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import read_whole
from precast.cache.fields import HEX64
from precast.cache.quarantine import write_over
from precast.cache.store import MIN_PREFIX, Store
from precast.errors import NoEntryError, UsageError

__all__ = ["all_tags", "check_tag", "is_tag", "resolve_entry", "set_tag"]

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
        write_over(store.layout, store.layout.tags / name, f"{key}\n".encode())


def check_tag(name: str) -> None:
    """Refuse a name that is no tag.

    Raises:
        UsageError: It is none.
    """
    if not is_tag(name):
        raise UsageError(f"`{name}` is no tag", hint="Write a tag with letters, digits, dots, dashes and underscores")


def is_tag(name: str) -> bool:
    """Tell whether a name can be that of a tag."""
    return _NAME.fullmatch(name) is not None


def resolve_entry(store: Store, text: str) -> str:
    """Return the key of the entry that a person names by key, prefix of a key, or tag; a key goes before a tag.

    Raises:
        NoEntryError: There is no such entry or tag.
        AmbiguousKeyError: The prefix fits several entries; the error lists them.
        UsageError: It is a prefix that is too short, and no tag.
    """
    is_hex = set(text.lower()) <= set("0123456789abcdef")
    if is_hex and MIN_PREFIX <= len(text) <= 64:
        with suppress(NoEntryError):
            return store.resolve_key(text)
    tags = all_tags(store)
    if text in tags:
        return tags[text]
    if is_hex:
        return store.resolve_key(text)  # says what is wrong with it
    known = f"the tags are {', '.join(tags)}" if tags else f"{store.root} holds no tags"
    raise NoEntryError(f"There is no entry or tag `{text}`", known, "Run `precast inspect ls` to see the keys")


def all_tags(store: Store) -> dict[str, str]:
    """Return the key that each tag names, sorted by tag; damaged tags are left out."""
    try:
        files = sorted(store.layout.tags.iterdir())
    except OSError:
        return {}
    keys = {path.name: _key(path) for path in files if is_tag(path.name) and path.is_file()}
    return {name: key for name, key in keys.items() if HEX64.fullmatch(key)}


def _key(path: Path) -> str:
    try:
        return read_whole(path).decode("utf-8", errors="replace").strip()
    except FileNotFoundError:
        # Removed since the folder was looked at.
        return ""
