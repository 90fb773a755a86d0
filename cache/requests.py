"""Requests: which entries answered the same question before on this machine.

A request's digest covers what is known before tracing. What is kept under it are pointers, never part of an entry:
losing or damaging them costs a trace, not a wrong result.
"""

from dataclasses import dataclass

from precast.cache.atomic import write_atomic
from precast.cache.canonical import Json, canonical_json, decode_json
from precast.cache.fields import HEX64, Fields
from precast.cache.store import Store

__all__ = ["Remembered", "candidates", "remember", "remembered", "remembered_hint"]

_SCHEMA = "precast.requests/1"
_LIMIT = 16


@dataclass(frozen=True, slots=True)
class Remembered:
    """An entry that answered a request before.

    Attributes:
        key: The entry's key.
        hint: How the request was made, such as how the model was named; for people only.
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
        document = {"schema": _SCHEMA, "entries": [{"key": item.key, "hint": item.hint} for item in kept]}
        write_atomic(store.layout.requests / f"{request_digest}.json", canonical_json(document))


def remembered(store: Store, request_digest: str) -> tuple[Remembered, ...]:
    """Return what is remembered for a request, the latest first; a damaged file is as good as none."""
    try:
        document = decode_json((store.layout.requests / f"{request_digest}.json").read_bytes())
    except (OSError, ValueError):
        return ()
    problems: list[str] = []
    fields = Fields(document, "", problems)
    items = fields.records("entries", _read)
    return () if problems or fields.text("schema") != _SCHEMA else items


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


def _read(fields: Fields) -> Remembered:
    return Remembered(fields.text("key", HEX64), fields.mapping("hint"))
