"""An inventory of the store for `prune`: what is ours, what refers to what, and what is in use.

Only names that the store itself makes are listed. Links and foreign files are in nobody's list, so nothing removes
them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precast.cache.disk import DiskItem, walk
from precast.cache.entries import UNREADABLE, EntrySummary
from precast.cache.fields import HEX64
from precast.cache.leftovers import ASIDE, SHARD, TEMPORARY, matching, unfinished
from precast.cache.locks import LOCK_SUFFIX, dead_claims, is_held, live_claims
from precast.cache.requests import candidates
from precast.cache.store import WRITER, Store
from precast.cache.tags import all_tags

__all__ = ["Inventory", "take_inventory"]

_OBJECT = re.compile(r"([0-9a-f]{64})\.zst")
_KEY_LOCK = re.compile(rf"[a-z]+-([0-9a-f]{{64}}){re.escape(LOCK_SUFFIX)}")

# Clocks of machines that share a file system differ a little, and a file's time is coarser than the clock.
_SLACK_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the store holds at one moment.

    Attributes:
        entries: Every entry, sorted by key.
        objects: Each object's file.
        unfinished: What staging holds, and temporary files beside objects.
        temporaries: Temporary files that a reader or a short write may own.
        quarantine: Entries that were put aside.
        pointers: For each stamp, request and lock file, the keys that it speaks of.
        dead: Claims of dead processes.
        held: Keys that living processes use.
        tags: The tags of each tagged key.
        writing_since_ns: When the oldest living writer began, less some slack; None where nobody writes.
    """

    entries: tuple[EntrySummary, ...]
    objects: dict[str, DiskItem]
    unfinished: tuple[Path, ...]
    temporaries: tuple[DiskItem, ...]
    quarantine: tuple[Path, ...]
    pointers: dict[Path, frozenset[str]]
    dead: tuple[Path, ...]
    held: frozenset[str]
    tags: dict[str, tuple[str, ...]]
    writing_since_ns: int | None

    @property
    def objects_are_known(self) -> bool:
        """Whether every entry says which objects it needs; an unreadable one does not."""
        return all(entry.state != UNREADABLE for entry in self.entries)

    def spared(self, name: str) -> bool:
        """Tell whether a living writer may rely on an object that no entry refers to."""
        since = self.writing_since_ns
        return since is not None and self.objects[name].modified_ns >= since


def take_inventory(store: Store) -> Inventory:
    """Look at everything below the root, without changing it.

    Raises:
        StoreAccessError: The folder of entries cannot be read.
    """
    layout = store.layout
    claims = live_claims(layout.locks)
    writers = [claim.since_ns for claim in claims if claim.subject == WRITER]
    return Inventory(
        entries=tuple(store.entries()),
        objects=dict(_objects(layout.objects)),
        unfinished=tuple(unfinished(layout)),
        temporaries=tuple(
            item
            for folder in (layout.stats, layout.requests, layout.tags)
            for path in matching(folder, TEMPORARY)
            for item in walk(path)
        ),
        quarantine=tuple(matching(layout.quarantine, ASIDE)),
        pointers=dict(_pointers(store)),
        dead=dead_claims(layout.locks),
        held=frozenset(claim.subject for claim in claims),
        tags=_tags_by_key(store),
        writing_since_ns=min(writers) - _SLACK_NS if writers else None,
    )


def _objects(folder: Path) -> Iterator[tuple[str, DiskItem]]:
    for shard in matching(folder, SHARD):
        for path in matching(shard, _OBJECT):
            for item in walk(path):
                if not item.folder:
                    yield path.stem, item


def _pointers(store: Store) -> Iterator[tuple[Path, frozenset[str]]]:
    layout = store.layout
    for path in matching(layout.stats, HEX64):
        yield path, frozenset({path.name})
    for path in matching(layout.requests, re.compile(r"[0-9a-f]{64}\.json")):
        yield path, frozenset(candidates(store, path.stem))
    for path in matching(layout.locks, _KEY_LOCK):
        match = _KEY_LOCK.fullmatch(path.name)
        if match and not is_held(path):
            yield path, frozenset({match[1]})


def _tags_by_key(store: Store) -> dict[str, tuple[str, ...]]:
    tags: dict[str, tuple[str, ...]] = {}
    for name, key in all_tags(store).items():
        tags[key] = (*tags.get(key, ()), name)
    return tags
