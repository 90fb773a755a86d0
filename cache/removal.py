"""Removal: execute a plan of pruning, sparing what came into use after the plan was made."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import refused, unique
from precast.cache.inventory import Inventory, take_inventory
from precast.cache.plans import PruneItem, PrunePlan, PruneSummary, SkippedItem
from precast.cache.store import STORE_LOCK, Store

__all__ = ["execute"]


def execute(plan: PrunePlan, *, lock_timeout_s: float = 300.0) -> PruneSummary:
    """Remove what a plan names, under the store's lock. An empty plan touches nothing.

    Args:
        plan: The plan, as `plan_prune` made it.
        lock_timeout_s: Seconds to wait for another process.

    Raises:
        StoreAccessError: Something cannot be removed.
        LockedError: Another process held the store's lock all the time.
    """
    if not plan.remove:
        return PruneSummary((), ())
    store = Store(plan.root, lock_timeout_s=lock_timeout_s)
    removed, skipped = [], []
    with store.lock(STORE_LOCK):
        guard = _Guard(store, plan)
        for item in plan.remove:
            reason = guard.objection(item)
            if reason:
                skipped.append(SkippedItem(item, reason))
            else:
                _remove(store, item)
                removed.append(item)
    return PruneSummary(tuple(removed), tuple(skipped))


class _Guard:
    """What speaks against an item now, under the store's lock."""

    def __init__(self, store: Store, plan: PrunePlan) -> None:
        self._store = store
        self._plan = plan
        self._now: Inventory = take_inventory(store)
        going = {item.id for item in plan.remove if item.kind == "entry" and not self._entry_objection(item.id)}
        self._staying = {entry.key for entry in self._now.entries} - going
        self._needed = {
            name
            for entry in self._now.entries
            if entry.key in self._staying and entry.manifest is not None
            for name in entry.manifest.objects
        }

    @property
    def nobody_writes(self) -> bool:
        """Whether no living process is writing; a new one waits for the store's lock."""
        return self._now.writing_since_ns is None

    def objection(self, item: PruneItem) -> str:
        """Return why an item must stay, or empty."""
        checks: dict[str, Callable[[str], str]] = {
            "entry": self._entry_objection,
            "object": self._object_objection,
            "staging": self._staging_objection,
            "leftover": self._leftover_objection,
        }
        check = checks.get(item.kind)
        return "" if check is None else check(item.id)

    def _entry_objection(self, key: str) -> str:
        if key in self._now.held:
            return "in use now"
        used = self._store.last_used(key)
        return "used since" if used is not None and used > self._plan.made_ns else ""

    def _object_objection(self, name: str) -> str:
        if name in self._needed or not self._now.objects_are_known:
            return "an entry refers to it now"
        return "a writer uses it now" if name in self._now.objects and self._now.spared(name) else ""

    def _staging_objection(self, name: str) -> str:
        in_writing = name.startswith(("staging/", "objects/"))
        return "somebody writes now" if in_writing and not self.nobody_writes else ""

    def _leftover_objection(self, name: str) -> str:
        keys = self._now.pointers.get(self._store.layout.base / name, frozenset())
        return "" if keys.isdisjoint(self._staying) else "its entry is here now"


def _remove(store: Store, item: PruneItem) -> None:
    path = _place(store, item)
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            if path.parent.parent == store.layout.objects:
                # Refused where anything else is in the folder, as it should be.
                with suppress(OSError):
                    path.parent.rmdir()
            return
        # Renamed first, so that a reader sees the folder whole or not at all.
        aside = path
        if item.kind == "entry":
            aside = store.layout.staging / unique(item.id)
            path.rename(aside)
        shutil.rmtree(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(error, path) from error


def _place(store: Store, item: PruneItem) -> Path:
    layout = store.layout
    if item.kind == "entry":
        return layout.entry(item.id)
    if item.kind == "object":
        return layout.object(item.id)
    if item.kind == "quarantine":
        return layout.quarantine / item.id
    return layout.base / item.id
