"""Pruning: choose what goes, least recently used first, as a plan that is shown or executed unchanged.

Held entries never go, tagged ones only by key. A limit speaks about the whole root as `du` sees it, so that it can be
checked from outside; foreign files count towards it and are never touched.
"""

from collections import Counter
from pathlib import Path

from precast.cache.disk import DiskItem, DiskUsage, walk
from precast.cache.entries import DAMAGED, UNREADABLE, EntrySummary
from precast.cache.inventory import Inventory, take_inventory
from precast.cache.plans import KeptEntry, PruneItem, PrunePlan, PruneRules, PruneSummary, SkippedItem
from precast.cache.removal import execute
from precast.cache.sizes import format_age, format_size
from precast.cache.store import STORE_LOCK, Store

__all__ = [
    "KeptEntry",
    "PruneItem",
    "PrunePlan",
    "PruneRules",
    "PruneSummary",
    "SkippedItem",
    "execute",
    "plan_prune",
]

_NS = 10**9


def plan_prune(store: Store, rules: PruneRules, now_ns: int) -> PrunePlan:
    """Choose what goes. Nothing is changed.

    Args:
        store: The store.
        rules: What may go.
        now_ns: Nanoseconds since the epoch, against which ages are counted.

    Raises:
        StoreAccessError: The folder of entries cannot be read.
    """
    planner = _Planner(store, rules, now_ns)
    planner.drop_broken()
    planner.drop_orphans()
    planner.drop_asked()
    planner.drop_old()
    planner.drop_until_limits_hold()
    return planner.plan()


class _Planner:
    """One planning run: takes items away from a running total and notes them."""

    def __init__(self, store: Store, rules: PruneRules, now_ns: int) -> None:
        self._store = store
        self._rules = rules
        self._now_ns = now_ns
        self._found: Inventory = take_inventory(store)
        self._usage = DiskUsage(walk(store.root))
        self._before = (self._usage.bytes, self._usage.files)
        self._remove: list[PruneItem] = []
        self._stamps = {entry.key: self._last_used(entry.key) for entry in self._found.entries}
        by_use = sorted(self._found.entries, key=lambda entry: (self._stamps[entry.key], entry.key))
        self._alive = {entry.key: entry for entry in by_use}
        self._lasting = {entry.key for entry in by_use[len(by_use) - rules.keep_last :]}
        self._references = Counter(name for entry in by_use for name in _object_names(entry))
        self._pointers = dict(self._found.pointers)
        self._crowd = Counter(item.path.parent for item in walk(store.layout.objects))

    def drop_broken(self) -> None:
        """Drop damaged entries, what was put aside, and what dead processes left."""
        for entry in list(self._alive.values()):
            if entry.state == DAMAGED:
                self._drop_entry(entry, f"damaged: {entry.reason}")
        for path in self._found.quarantine:
            self._drop_path("quarantine", path.name, path, "put aside as damaged")
        if self._found.writing_since_ns is None:
            for path in self._found.unfinished:
                self._drop_path("staging", self._below(path), path, "left by a process that ended early")
        oldest = self._now_ns - self._rules.stale_s * _NS
        for item in self._found.temporaries:
            if item.modified_ns < oldest:
                self._drop_path("staging", self._below(item.path), item.path, "left by a process that ended early")
        for path in self._found.dead:
            self._drop_path("leftover", self._below(path), path, "claim of a process that ended")

    def drop_orphans(self) -> None:
        """Drop objects that no entry refers to, and pointers to entries that are gone."""
        for name in sorted(self._found.objects):
            self._drop_object_if_orphan(name)
        self._drop_pointers()

    def drop_asked(self) -> None:
        """Drop the entries that were named."""
        for key in self._rules.keys:
            if key in self._alive and key not in self._found.held:
                self._drop_entry(self._alive[key], "named by key")

    def drop_old(self) -> None:
        """Drop entries that are too old or of another version."""
        for key, entry in list(self._alive.items()):
            age_s = (self._now_ns - self._stamps[key]) / _NS
            if self._kept_by(key):
                continue
            if self._rules.max_age_s is not None and age_s > self._rules.max_age_s:
                self._drop_entry(entry, f"not used for {format_age(age_s)}")
            elif self._is_of_other_version(entry):
                self._drop_entry(entry, f"built by precast {entry.manifest.build.precast if entry.manifest else ''}")

    def drop_until_limits_hold(self) -> None:
        """Drop the least recently used entries while a limit is broken."""
        foreign = DiskUsage(item for path in self._store.layout.foreign() for item in walk(path))
        if self._broken_limits(foreign):
            # Not even an empty store would hold the limit, so emptying it helps nobody.
            return
        for key, entry in list(self._alive.items()):
            if self._broken_limits(self._usage) and not self._kept_by(key):
                self._drop_entry(entry, "least recently used")

    def plan(self) -> PrunePlan:
        """Return the finished plan."""
        keep = [KeptEntry(entry.key, entry.bytes, self._kept_by(entry.key)) for entry in reversed(self._alive.values())]
        return PrunePlan(
            root=self._store.root,
            made_ns=self._now_ns,
            remove=tuple(self._remove),
            keep=tuple(keep),
            bytes_before=self._before[0],
            files_before=self._before[1],
            unmet=tuple(self._broken_limits(self._usage)),
        )

    def _last_used(self, key: str) -> int:
        """Return the last use by our own stamp; without one, when the manifest was written."""
        stamp = self._store.last_used(key)
        if stamp is not None:
            return stamp
        return next((item.modified_ns for item in walk(self._store.layout.manifest(key))), 0)

    def _kept_by(self, key: str) -> str:
        if key in self._found.held:
            return "in use"
        if key in self._found.tags:
            return f"tagged {', '.join(self._found.tags[key])}"
        if self._alive[key].state == UNREADABLE:
            return f"unreadable: {self._alive[key].reason}"
        return "among the last used" if key in self._lasting else ""

    def _is_of_other_version(self, entry: EntrySummary) -> bool:
        wanted = self._rules.only_version
        return wanted is not None and entry.manifest is not None and entry.manifest.build.precast != wanted

    def _broken_limits(self, usage: DiskUsage) -> list[str]:
        rules, broken = self._rules, []
        if rules.max_size is not None and usage.bytes > rules.max_size:
            broken.append(f"{format_size(usage.bytes)} stay, more than {format_size(rules.max_size)}")
        # Executing a plan takes the store's lock, which is a file too.
        files = usage.files + (not self._store.layout.lock(STORE_LOCK).exists())
        if rules.max_files is not None and files > rules.max_files:
            broken.append(f"{files} files stay, more than {rules.max_files}")
        return broken

    def _drop_entry(self, entry: EntrySummary, reason: str) -> None:
        if entry.key in self._found.held:
            return
        del self._alive[entry.key]
        self._drop_path("entry", entry.key, self._store.layout.entry(entry.key), reason)
        for name in _object_names(entry):
            self._references[name] -= 1
            self._drop_object_if_orphan(name)
        self._drop_pointers()

    def _drop_object_if_orphan(self, name: str) -> None:
        found = self._found
        if self._references[name] or name not in found.objects:
            return
        if found.objects_are_known and not found.spared(name):
            self._drop_path("object", name, found.objects[name].path, "no entry refers to it")

    def _drop_pointers(self) -> None:
        for path, keys in list(self._pointers.items()):
            if keys.isdisjoint(self._alive):
                del self._pointers[path]
                self._drop_path("leftover", self._below(path), path, "its entry is gone")

    def _drop_path(self, kind: str, name: str, path: Path, reason: str) -> None:
        freed, files = self._usage.remove((*walk(path), *self._emptied_shard(path)))
        self._remove.append(PruneItem(kind, name, freed, files, reason))

    def _emptied_shard(self, path: Path) -> tuple[DiskItem, ...]:
        """Return the folder of an object that goes, if it falls empty; it goes too."""
        shard = path.parent
        if shard.parent != self._store.layout.objects:
            return ()
        self._crowd[shard] -= 1
        return () if self._crowd[shard] else tuple(walk(shard))[:1]

    def _below(self, path: Path) -> str:
        return path.relative_to(self._store.layout.base).as_posix()


def _object_names(entry: EntrySummary) -> tuple[str, ...]:
    """Return the objects that an entry refers to, each once."""
    return () if entry.manifest is None else tuple(entry.manifest.objects)
