"""An inventory of the store for `prune`: what is there, what refers to what, and what is in use.

The order of the looks matters beside writers: first the objects, then the claims, then the entries. What a writer put
before the first look is named by an entry at the last one, or its writer claims to be writing in between.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from precast.cache.disk import NOTHING, Extent, extent_of, read_quickly
from precast.cache.index import Look, SummaryRow, summaries
from precast.cache.locks import LEASE_SUFFIX, LOCK_SUFFIX, LiveClaim, dead_claims, live_claims
from precast.cache.removing import ANNOUNCEMENT, REMOVER
from precast.cache.requests import remembered_keys
from precast.cache.rows import STALE, SUMMARY_FILE
from precast.cache.store import WRITER, Store
from precast.cache.survey import Survey, survey
from precast.cache.tags import all_tags

__all__ = ["SHORT", "Inventory", "Pointer", "take_inventory"]

SHORT = 16
"""How many digits of an object's name the index keeps. Two that share them count as one, so neither goes too early."""

_KEY_LOCK = re.compile(rf"[a-z]+-([0-9a-f]{{64}})(?:{re.escape(LOCK_SUFFIX)}|{re.escape(LEASE_SUFFIX)})")

# Clocks of machines that share a file system differ a little, and a file's time is coarser than the clock.
_SLACK_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Pointer:
    """A stamp, request or lock file.

    Attributes:
        cost: What it takes.
        keys: The keys that it speaks of.
    """

    cost: Extent
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the store holds at one moment.

    Attributes:
        found: Every name below the root.
        entries: Every entry, sorted by key.
        pointers: Stamps, requests and lock files, by path below the layout's folder.
        dead: Claims and the announcement of dead processes, by path below the layout's folder.
        held: Keys that living processes use.
        tags: The key that each tag names.
        writing_since_ns: When the oldest living writer began, less some slack; None where nobody writes.
    """

    found: Survey
    entries: tuple[SummaryRow, ...]
    pointers: dict[str, Pointer]
    dead: dict[str, Extent]
    held: frozenset[str]
    tags: dict[str, str]
    writing_since_ns: int | None

    def spared(self, name: str) -> bool:
        """Tell whether a living writer may rely on an object that no entry refers to."""
        since = self.writing_since_ns
        return since is not None and self.found.objects[name].modified_ns >= since


def take_inventory(store: Store) -> Inventory:
    """Look at everything below the root. Only the index is written, and only where that spares much reading.

    Raises:
        UsageError: The root or one of the store's own folders is a link.
        StoreAccessError: One of the store's own folders cannot be read.
    """
    layout = store.layout
    claims: list[LiveClaim] = []
    found = survey(layout, lambda: claims.extend(live_claims(layout.locks)))
    held = frozenset(claim.subject for claim in claims)
    dead = {f"locks/{path.name}": extent_of(str(path)) or NOTHING for path in dead_claims(layout.locks)}
    if ANNOUNCEMENT in found.locks and REMOVER not in held:
        dead[f"locks/{ANNOUNCEMENT}"] = found.locks[ANNOUNCEMENT]
    stamps = {key: cost.modified_ns for key, cost in found.stamps.items()}
    entries = summaries(store, worth=STALE, look=Look(found.seen, stamps))
    _count_index(store, found)
    writers = [claim.since_ns for claim in claims if claim.subject == WRITER]
    return Inventory(
        found=found,
        entries=entries,
        pointers=dict(_pointers(store, found)),
        dead=dead,
        held=held,
        tags=all_tags(store),
        writing_since_ns=min(writers) - _SLACK_NS if writers else None,
    )


def _count_index(store: Store, found: Survey) -> None:
    """Count the index as it is after the entries were listed."""
    found.usage.remove(found.index)
    found.usage.regained = 0
    found.index = extent_of(str(store.layout.stats / SUMMARY_FILE)) or NOTHING
    found.usage.add(found.index)


def _pointers(store: Store, found: Survey) -> Iterator[tuple[str, Pointer]]:
    for key, cost in found.stamps.items():
        yield f"stats/{key}", Pointer(cost, frozenset({key}))
    requests = str(store.layout.requests)
    for digest, cost in found.requests.items():
        yield f"requests/{digest}.json", Pointer(cost, remembered_keys(_data(f"{requests}/{digest}.json")))
    for name, cost in found.locks.items():
        match = _KEY_LOCK.fullmatch(name)
        if match:
            yield f"locks/{name}", Pointer(cost, frozenset({match[1]}))


def _data(path: str) -> bytes:
    with suppress(OSError):
        return read_quickly(path)
    return b""
