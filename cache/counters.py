"""Counters of lookups: what was found, what was not and why. They never influence behaviour.

One JSON line a lookup is appended to `stats/lookups.jsonl` by one write, so that processes need no lock; a damaged
line is skipped when the counts are made.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import refused
from precast.cache.modes import open_new
from precast.cache.store import Store
from precast.errors import StoreAccessError

__all__ = ["HIT", "LookupStats", "lookup_stats", "record_lookup", "zero_stats"]

HIT = "hit"

_FILE = "lookups.jsonl"
# A counter must not fill a disk: beyond this size the lines become the older half, and the older half before goes.
_LIMIT = 4 * 2**20


@dataclass(frozen=True, slots=True)
class LookupStats:
    """What the lookups came to.

    Attributes:
        hits: How many found an entry.
        misses: How many did not, by reason code.
        seconds_saved: Recorded compile time of the hits together, in seconds.
    """

    hits: int
    misses: Mapping[str, int]
    seconds_saved: float


def record_lookup(store: Store, outcome: str, key: str, seconds_saved: float, now_ns: int) -> None:
    """Count a lookup. Where the count cannot be written, nothing happens.

    Args:
        store: The store.
        outcome: `hit`, or the reason code of the miss.
        key: The entry's key, or empty.
        seconds_saved: Recorded compile time of the hit, in seconds; 0 for a miss.
        now_ns: Nanoseconds since the epoch.
    """
    if store.read_only:
        return
    record = {"key": key, "ms": round(seconds_saved * 1000), "ns": now_ns, "outcome": outcome}
    with suppress(OSError):
        _append(store.layout.stats / _FILE, json.dumps(record, separators=(",", ":")).encode() + b"\n")


def lookup_stats(store: Store, since_ns: int = 0) -> LookupStats:
    """Add up the lookups since a moment.

    Args:
        store: The store; nothing in it is written.
        since_ns: Nanoseconds since the epoch; earlier lookups are left out.
    """
    hits, saved_ms = 0, 0
    misses: Counter[str] = Counter()
    for outcome, milliseconds in _records(store, since_ns):
        if outcome == HIT:
            hits += 1
            saved_ms += milliseconds
        else:
            misses[outcome] += 1
    return LookupStats(hits, dict(sorted(misses.items())), saved_ms / 1000)


def zero_stats(store: Store) -> None:
    """Forget all lookups.

    Raises:
        StoreAccessError: The store is read-only, or the counts cannot be removed.
    """
    for path in _files(store):
        if store.read_only and path.exists():
            raise StoreAccessError(
                f"The counts in {store.root} stay",
                "the store was opened read-only",
                "Leave out --read-only",
                path=str(path),
            )
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise refused(error, path) from error


def _append(path: Path, line: bytes) -> None:
    descriptor = open_new(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size > _LIMIT:
        path.replace(_older(path))


def _files(store: Store) -> tuple[Path, Path]:
    path = store.layout.stats / _FILE
    return _older(path), path


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _records(store: Store, since_ns: int) -> Iterator[tuple[str, int]]:
    """Yield the outcome and the saved milliseconds of each sound line."""
    for path in _files(store):
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            record = _decoded(line)
            moment, outcome, saved = record.get("ns"), record.get("outcome"), record.get("ms")
            if type(moment) is int and isinstance(outcome, str) and type(saved) is int and moment >= since_ns:
                yield outcome, max(0, saved)


def _decoded(line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
