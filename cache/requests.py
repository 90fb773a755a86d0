"""Requests: which entries answered the same question before on this machine.

A request's digest covers what is known before tracing. What is kept under it are pointers, never part of an entry:
losing or damaging them costs a trace, not a wrong result. A folder near the root is kept relative to it: a root that
was moved with its models still leads to them, and one that was moved alone never leads back to where it was.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from precast.cache.canonical import Json, canonical_json, decode_json
from precast.cache.fields import HEX64, Fields
from precast.cache.quarantine import write_over
from precast.cache.store import Store

__all__ = ["Remembered", "candidates", "remember", "remembered", "remembered_hint", "remembered_keys"]

_SCHEMA = "precast.requests/1"
_LIMIT = 16
_FOLDER = "folder"
_NEAR = 3  # parts of a common path, of which the first is `/`


@dataclass(frozen=True, slots=True)
class Remembered:
    """An entry that answered a request before.

    Attributes:
        key: The entry's key.
        hint: How the request was made, such as how the model was named, and its `folder`.
    """

    key: str
    hint: dict[str, Json]


def remember(store: Store, request_digest: str, key: str, hint: dict[str, Json]) -> None:
    """Note that an entry answers a request; it becomes the first candidate.

    Args:
        store: The store.
        request_digest: `Request.digest`.
        key: The entry's key.
        hint: How the request was made.

    Raises:
        StoreAccessError: The store cannot be written.
        LockedError: Another process held the lock all the time.
    """
    with store.lock("requests"):
        others = [item for item in remembered(store, request_digest) if item.key != key]
        kept = [Remembered(key, hint), *others][:_LIMIT]
        entries: list[Json] = [{"key": item.key, "hint": _from(store.root, item.hint)} for item in kept]
        document = {"schema": _SCHEMA, "entries": entries}
        write_over(store.layout, store.layout.requests / f"{request_digest}.json", canonical_json(document))


def remembered(store: Store, request_digest: str) -> tuple[Remembered, ...]:
    """Return what is remembered for a request, the latest first; a damaged file is as good as none."""
    try:
        document = decode_json((store.layout.requests / f"{request_digest}.json").read_bytes())
    except (OSError, ValueError):
        return ()
    problems: list[str] = []
    fields = Fields(document, "", problems)
    items = fields.records("entries", _read)
    if problems or fields.text("schema") != _SCHEMA:
        return ()
    return tuple(replace(item, hint=_at(store.root, item.hint)) for item in items)


def remembered_hint(store: Store, key: str) -> dict[str, Json]:
    """Return how the latest request that an entry answered was made; empty where none is remembered."""
    try:
        files = sorted(store.layout.requests.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return {}
    items = (item for path in files for item in remembered(store, path.stem))
    return next((item.hint for item in items if item.key == key), {})


def candidates(store: Store, request_digest: str) -> tuple[str, ...]:
    """Return the keys of the entries that answered a request before, the latest first."""
    return tuple(item.key for item in remembered(store, request_digest))


def remembered_keys(data: bytes) -> frozenset[str]:
    """Return the keys that a file of pointers names; none where it is damaged. For `prune`, which reads them all."""
    try:
        document = json.loads(data)
        return frozenset(str(item["key"]) for item in document["entries"] if document["schema"] == _SCHEMA)
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def _read(fields: Fields) -> Remembered:
    return Remembered(fields.text("key", HEX64), fields.mapping("hint"))


def _from(root: Path, hint: dict[str, Json]) -> dict[str, Json]:
    """Name a hint's folder as seen from the root; its links are followed, because `..` leads out of where they lead.

    What shares no more than a top folder with the root, such as a volume of models, does not move with it and keeps
    its name.
    """
    folder = hint.get(_FOLDER)
    if not isinstance(folder, str) or not folder:
        return hint
    ends = os.path.realpath(root), str(Path(folder).absolute())
    apart = len(Path(os.path.commonpath(ends)).parts) < _NEAR
    return {**hint, _FOLDER: ends[1] if apart else os.path.relpath(ends[1], ends[0])}


def _at(root: Path, hint: dict[str, Json]) -> dict[str, Json]:
    """Name a hint's folder as it is found from the root now; an absolute one stays where it is."""
    folder = hint.get(_FOLDER)
    if not isinstance(folder, str) or not folder:
        return hint
    return {**hint, _FOLDER: os.path.normpath(Path(os.path.realpath(root)) / folder)}
