"""Pruning: choose what goes, least recently used first, as a plan that is shown or executed unchanged.

What a process uses never goes, tagged entries go by key only. A limit speaks about the whole root as `du` sees it, so
that it can be checked from outside; foreign files count towards it and are never touched.
"""

import re
from collections import Counter
from collections.abc import Iterator

from precast.cache.disk import Extent, extent_of, joined
from precast.cache.entries import DAMAGED, UNREADABLE
from precast.cache.index import SummaryRow
from precast.cache.inventory import SHORT, Inventory, take_inventory
from precast.cache.limits import Limits
from precast.cache.locks import is_held
from precast.cache.manifest import TOO_OLD
from precast.cache.plans import (
    ForeignItem,
    KeptEntry,
    PruneItem,
    PrunePlan,
    PruneRules,
    PruneSummary,
    Selection,
    SkippedItem,
    UnmetLimit,
)
from precast.cache.removal import execute
from precast.cache.sizes import format_age
from precast.cache.store import Store

__all__ = [
    "ForeignItem",
    "KeptEntry",
    "PruneItem",
    "PrunePlan",
    "PruneRules",
    "PruneSummary",
    "Selection",
    "SkippedItem",
    "UnmetLimit",
    "execute",
    "plan_prune",
]

_NS = 10**9
_LAYOUT = re.compile(r"v\d+")


def plan_prune(store: Store, rules: PruneRules, now_ns: int) -> PrunePlan:
    """Choose what goes. Nothing is changed but the index, where writing it spares reading many manifests again.

    Args:
        store: The store. Of a read-only one not even the index is written.
        rules: What may go.
        now_ns: Nanoseconds since the epoch, against which ages are counted.

    Raises:
        UsageError: The root or one of the store's own folders is a link.
        StoreAccessError: One of the store's own folders cannot be read.
    """
    planner = _Planner(store, rules, take_inventory(store), now_ns)
    planner.drop_tags()
    if rules.takes_broken:
        planner.drop_broken()
    if rules.takes_orphans:
        planner.drop_orphans()
    planner.drop_asked()
    planner.drop_chosen()
    planner.drop_until_limits_hold()
    return planner.plan()


class _Planner:
    """One planning run: takes things away from a running total and notes them."""

    def __init__(self, store: Store, rules: PruneRules, found: Inventory, now_ns: int) -> None:
        self._store = store
        self._rules = rules
        self._found = found
        self._now_ns = now_ns
        self._disk = found.found
        self._usage = self._disk.usage
        self._before = (self._usage.bytes, self._usage.files)
        self._remove: list[PruneItem] = []
        self._gone: set[str] = set()
        self._used = {entry.key: _last_used(store, entry) for entry in found.entries}
        by_use = sorted(found.entries, key=lambda entry: (self._used[entry.key], entry.key))
        self._alive = {entry.key: entry for entry in by_use}
        chosen = [entry.key for entry in by_use if self._is_selected(entry)]
        self._selected = frozenset(chosen)
        self._lasting = frozenset(chosen[-rules.keep_last :] if rules.keep_last else ())
        self._tags: dict[str, list[str]] = {}
        for tag, key in found.tags.items():
            self._tags.setdefault(key, []).append(tag)
        self._references = Counter(name for entry in by_use for name in entry.objects)
        # While one entry cannot be read, any object may be one of its own.
        self._unknown = sum(entry.state == UNREADABLE for entry in by_use)
        self._named: dict[str, list[str]] = {}
        for name in self._disk.objects:
            self._named.setdefault(name[:SHORT], []).append(name)
        self._pointing: dict[str, list[str]] = {}
        self._pointed: dict[str, int] = {}
        for path, pointer in found.pointers.items():
            self._pointed[path] = len(pointer.keys & self._alive.keys())
            for key in pointer.keys:
                self._pointing.setdefault(key, []).append(path)
        self._limits = Limits(rules, store.layout, self._disk)

    def drop_tags(self) -> None:
        """Drop the tags that were named."""
        for tag in self._rules.drop_tags:
            if tag in self._found.tags:
                self._drop_tag(tag, "named by tag")

    def drop_broken(self) -> None:
        """Drop damaged entries, what was put aside, and what dead processes left."""
        for entry in list(self._alive.values()):
            narrowed = self._rules.broken and entry.key not in self._selected
            if entry.state == DAMAGED and not narrowed and not self._tagged(entry.key):
                self._drop_entry(entry, f"damaged: {entry.reason}")
        for name, cost in self._disk.quarantine.items():
            self._drop("quarantine", name, cost, "put aside as damaged")
        left = "left by a process that ended early"
        if self._found.writing_since_ns is None:
            for path, cost in self._disk.staging.items():
                self._drop("staging", path, cost, left)
        oldest = self._now_ns - self._rules.stale_s * _NS
        for path, cost in self._disk.temporaries.items():
            if cost.modified_ns < oldest:
                self._drop("staging", path, cost, left)
        for path, cost in self._found.dead.items():
            self._drop("leftover", path, cost, "left by a process that ended")

    def drop_orphans(self) -> None:
        """Drop objects that no entry refers to, and pointers to entries that are gone."""
        self._drop_orphan_objects()
        for path, keys in self._pointed.items():
            if not keys:
                self._drop_pointer(path)

    def drop_asked(self) -> None:
        """Drop the entries that were named."""
        for key in self._rules.keys:
            if key in self._alive:
                self._drop_entry(self._alive[key], "named by key")

    def drop_chosen(self) -> None:
        """Drop the entries that are too old, of another version, or chosen by the selection alone."""
        for key, entry in list(self._alive.items()):
            reason = self._reason_to_go(entry)
            if reason and not self._kept_by(key):
                self._drop_entry(entry, reason)

    def drop_until_limits_hold(self) -> None:
        """Drop the least recently used entries while a limit is broken."""
        for key, entry in list(self._alive.items()):
            if not self._limits.call_for(self._usage, acting=bool(self._remove)):
                return
            if key in self._selected and not self._kept_by(key):
                self._drop_entry(entry, "least recently used")

    def plan(self) -> PrunePlan:
        """Return the finished plan."""
        keep = [
            KeptEntry(entry.key, entry.folder_bytes, self._kept_by(entry.key))
            for entry in reversed(self._alive.values())
        ]
        return PrunePlan(
            root=self._store.root,
            rules=self._rules,
            made_ns=self._now_ns,
            remove=tuple(self._remove),
            keep=tuple(keep),
            bytes_before=self._before[0],
            files_before=self._before[1],
            unmet=self._limits.unmet(self._usage, keep, acting=bool(self._remove)),
            foreign=tuple(self._foreign_items()),
            loose_tags=tuple(tag for tag, key in self._found.tags.items() if self._is_loose(tag, key)),
        )

    def _reason_to_go(self, entry: SummaryRow) -> str:
        rules = self._rules
        if entry.key not in self._selected:
            return ""
        age_s = (self._now_ns - self._used[entry.key]) / _NS
        if rules.max_age_s is not None and age_s > rules.max_age_s:
            return f"not used for {format_age(age_s)}"
        if rules.only_version is not None and entry.precast not in (None, rules.only_version):
            return f"built by precast {entry.precast}"
        if rules.only_version is not None and entry.reason.startswith(TOO_OLD):
            return "built by an older precast"
        if rules.only_torch is not None and entry.torch and _release(entry.torch) != _release(rules.only_torch):
            return f"needs torch {entry.torch}"
        return "chosen by filter" if rules.selection is not None and not rules.takes_entries else ""

    def _kept_by(self, key: str) -> str:
        entry = self._alive[key]
        if kept := self._always_kept_by(key):
            return kept
        if tags := self._tagged(key):
            return f"tagged {', '.join(tags)}"
        if entry.state == UNREADABLE and not entry.reason.startswith(TOO_OLD):
            return f"unreadable: {entry.reason}"
        return "among the last used" if key in self._lasting else ""

    def _always_kept_by(self, key: str) -> str:
        """Say what keeps an entry even when it is named."""
        if key in self._found.held:
            return "in use"
        return f"holds a folder that is not ours: {folder}" if (folder := self._disk.crowded.get(key)) else ""

    def _tagged(self, key: str) -> list[str]:
        return [tag for tag in self._tags.get(key, ()) if self._rules.protects(tag)]

    def _is_selected(self, entry: SummaryRow) -> bool:
        selection = self._rules.selection
        return selection is None or selection.matches(entry, self._now_ns)

    def _is_loose(self, tag: str, key: str) -> bool:
        return key not in self._used and tag not in self._rules.drop_tags

    def _foreign_items(self) -> Iterator[ForeignItem]:
        for path, cost in sorted(self._disk.foreign.items()):
            yield ForeignItem(path, cost.bytes, cost.files, layout=_LAYOUT.fullmatch(path) is not None)

    def _drop_entry(self, entry: SummaryRow, reason: str) -> None:
        key = entry.key
        if self._always_kept_by(key):
            return
        for tag in self._tags.get(key, ()):
            if tag not in self._rules.drop_tags:
                self._drop_tag(tag, "its entry goes")
        del self._alive[key]
        self._drop("entry", key, self._disk.entries[key], reason, entry)
        for short in entry.objects:
            self._references[short] -= 1
            if not self._references[short]:
                for name in self._named.get(short, ()):
                    self._drop_object(name)
        for path in self._pointing.get(key, ()):
            self._pointed[path] -= 1
            if not self._pointed[path]:
                self._drop_pointer(path)
        if entry.state == UNREADABLE:
            self._unknown -= 1
            if not self._unknown and self._rules.takes_orphans:
                self._drop_orphan_objects()

    def _drop_tag(self, tag: str, reason: str) -> None:
        cost = self._disk.tags.get(tag)
        if cost is not None:
            self._drop("tag", tag, cost, reason)

    def _drop_orphan_objects(self) -> None:
        for name in sorted(self._disk.objects):
            if not self._references[name[:SHORT]]:
                self._drop_object(name)

    def _drop_object(self, name: str) -> None:
        if self._unknown or name in self._gone or self._found.spared(name):
            return
        self._gone.add(name)
        self._drop("object", name, self._with_shard(self._disk.objects[name], name[:2]), "no entry refers to it")

    def _drop_pointer(self, path: str) -> None:
        if path in self._gone or (path.startswith("locks/") and is_held(self._store.layout.base / path)):
            return
        self._gone.add(path)
        self._drop("leftover", path, self._found.pointers[path].cost, "its entry is gone")

    def _drop(self, kind: str, name: str, cost: Extent, reason: str, entry: SummaryRow | None = None) -> None:
        freed, files = self._usage.remove(cost)
        self._remove.append(PruneItem(kind, name, freed, files, reason, entry))

    def _with_shard(self, cost: Extent, name: str) -> Extent:
        """Add the folder of an object that goes, if it falls empty; it goes too."""
        shard = self._disk.shards[name]
        shard.names -= 1
        return cost if shard.names else joined(cost, (shard.own,))


def _release(version: str) -> str:
    """Return a version without its build: who prunes on a machine without a GPU has another build of the same."""
    return version.partition("+")[0]


def _last_used(store: Store, entry: SummaryRow) -> int:
    """Return the last use by our own stamp; without one, when the manifest was written."""
    if entry.last_used_ns is not None:
        return entry.last_used_ns
    manifest = extent_of(str(store.layout.manifest(entry.key)))
    return 0 if manifest is None else manifest.modified_ns
