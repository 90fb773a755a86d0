"""Removal: execute a plan of pruning, sparing what came into use after the plan was made.

Entries go first, as `precast.cache.removing` says, so that nobody who reads one waits or sees a part of it. What else
goes is decided after that, from the entries that are left. Nothing is removed through a link, also not through one
that was put in place of a folder since the plan was made.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import TEMPORARY_SUFFIX, refused, unique
from precast.cache.entries import OK, UNREADABLE
from precast.cache.inventory import SHORT, Inventory, take_inventory
from precast.cache.locks import OnWait, discard
from precast.cache.plans import PruneItem, PrunePlan, PruneSummary, SkippedItem
from precast.cache.removing import ANNOUNCEMENT, announced
from precast.cache.requests import remembered_keys
from precast.cache.store import STORE_LOCK, Store
from precast.errors import StoreAccessError

__all__ = ["execute"]

_GONE = "gone already"


def execute(plan: PrunePlan, *, lock_timeout_s: float = 300.0, on_wait: OnWait | None = None) -> PruneSummary:
    """Remove what a plan names, under the store's lock. An empty plan touches nothing.

    What cannot be removed keeps nothing else from going; the error comes at the end.

    Args:
        plan: The plan, as `plan_prune` made it.
        lock_timeout_s: Seconds to wait for another process, such as one that prunes.
        on_wait: Is told who holds the store's lock before it is waited for.

    Raises:
        StoreAccessError: Something could not be removed.
        LockedError: Another process held the store's lock all the time.
    """
    if not plan.remove:
        return PruneSummary((), ())
    store = Store(plan.root, lock_timeout_s=lock_timeout_s)
    with store.lock(STORE_LOCK, on_wait=on_wait):
        removal = _Removal(store, plan)
        removal.take_entries()
        removal.take_others()
    removal.complain()
    return PruneSummary(
        removed=tuple(item for item in plan.remove if item not in removal.kept),
        skipped=tuple(SkippedItem(item, removal.kept[item]) for item in plan.remove if item in removal.kept),
    )


class _Removal:
    """One execution, under the store's lock: what is in the way now, what stays, and what was refused."""

    def __init__(self, store: Store, plan: PrunePlan) -> None:
        self._store = store
        self._layout = store.layout
        self._plan = plan
        self._now: Inventory = take_inventory(store)
        self._entries = {entry.key: entry for entry in self._now.entries}
        self.kept: dict[PruneItem, str] = {}
        self._errors: list[tuple[Path, OSError]] = []

    def take_entries(self) -> None:
        """Remove entries, each in one step before anything of it is deleted."""
        entries = [item for item in self._plan.remove if item.kind == "entry"]
        going = [item for item in entries if not self._spare(item, self._entry_objection(item))]
        if not going:
            return
        with announced(self._layout.locks, (item.id for item in going)) as used:
            for item in going:
                self._take(item, lambda key: "in use now" if key in used else self._take_entry(key))

    def take_others(self) -> None:
        """Remove everything else, once it is clear which entries stay."""
        gone = {item.id for item in self._plan.remove if item.kind == "entry" and item not in self.kept}
        staying = [entry for key, entry in self._entries.items() if key not in gone]
        needed = {short for entry in staying for short in entry.objects}
        known = all(entry.state != UNREADABLE for entry in staying)
        takers: Mapping[str, Callable[[str], str]] = {
            "object": lambda name: self._take_object(name, needed=name[:SHORT] in needed or not known),
            "tag": self._take_tag,
            "staging": self._take_staging,
            "quarantine": lambda name: self._take_tree(self._layout.quarantine / name),
            "leftover": self._take_leftover,
        }
        for item in self._plan.remove:
            if item.kind != "entry":
                self._take(item, takers[item.kind])

    def complain(self) -> None:
        """Say what was refused, if anything was.

        Raises:
            StoreAccessError: Something was.
        """
        if not self._errors:
            return
        path, error = self._errors[0]
        told = refused(error, path)
        if len(self._errors) > 1:
            raise StoreAccessError(
                f"{len(self._errors)} things cannot be removed, the first is {path}",
                told.why,
                told.hint,
                path=told.path,
            ) from error
        raise told from error

    def _take(self, item: PruneItem, take: Callable[[str], str]) -> None:
        """Remove one thing; note why it stays where it does."""
        try:
            reason = take(item.id)
        except FileNotFoundError:
            reason = _GONE
        except OSError as error:
            reason = error.strerror or str(error)
            self._errors.append((Path(error.filename or self._layout.base / item.id), error))
        self._spare(item, reason)

    def _spare(self, item: PruneItem, reason: str) -> bool:
        if reason:
            self.kept[item] = reason
        return bool(reason)

    def _entry_objection(self, item: PruneItem) -> str:
        key, then, now = item.id, item.entry, self._entries.get(item.id)
        if now is None:
            return _GONE
        if key in self._now.held:
            return "in use now"
        if key in self._now.found.crowded:
            return "holds a folder that is not ours"
        if then is None:
            return ""
        if now.last_used_ns not in (None, then.last_used_ns):
            return "used since"
        if now.state == OK != then.state:
            return "whole again"
        rules = self._plan.rules
        new = [tag for tag in now.tags if tag not in then.tags and rules.protects(tag)]
        return f"tagged {', '.join(new)} since" if new and key not in rules.keys else ""

    def _take_entry(self, key: str) -> str:
        folder = self._layout.entry(key)
        if not os.access(folder, os.W_OK | os.X_OK) and folder.exists():
            # Found out before the entry is renamed away, so that it stays whole.
            raise PermissionError(1, f"uid {os.geteuid()} may not write it", str(folder))
        aside = self._layout.staging / unique(key)
        folder.rename(aside)
        with suppress(FileNotFoundError):
            _remove_flat(aside)
        return ""

    def _take_object(self, name: str, *, needed: bool) -> str:
        if needed:
            return "an entry refers to it now"
        if name not in self._now.found.objects:
            return _GONE
        if self._now.spared(name):
            return "a writer uses it now"
        path, since_ns = self._layout.object(name), self._now.writing_since_ns
        if since_ns is None:
            _unlink(path)
        elif not _unlink_unless_touched(path, since_ns):
            return "a writer uses it now"
        # Refused where anything else is in the folder, as it should be.
        with suppress(OSError):
            path.parent.rmdir()
        return ""

    def _take_tag(self, tag: str) -> str:
        with self._store.lock("tags"):
            path = self._layout.tags / tag
            key = path.read_bytes().decode("utf-8", errors="replace").strip()
            if tag not in self._plan.rules.drop_tags and os.path.lexists(self._layout.entries / key):
                return "its entry is here now"
            _unlink(path)
        return ""

    def _take_staging(self, name: str) -> str:
        path = self._layout.base / name
        if not name.startswith(("staging/", "objects/")):
            _unlink(path)
            return ""
        if self._now.writing_since_ns is not None:
            return "somebody writes now"
        return self._take_tree(path)

    def _take_leftover(self, name: str) -> str:
        path = self._layout.base / name
        if path == self._layout.locks / ANNOUNCEMENT:
            path.unlink(missing_ok=True)  # the entries' removal has withdrawn it already
            return ""
        if path.parent == self._layout.locks:
            return "" if discard(path) else "a process holds it now"
        keys = remembered_keys(path.read_bytes()) if path.parent == self._layout.requests else {path.name}
        if any(self._layout.entry(key).is_dir() for key in keys):
            return "its entry is here now"
        _unlink(path)
        return ""

    def _take_tree(self, path: Path) -> str:
        if path.is_dir() and not path.is_symlink():
            # It never goes through links.
            shutil.rmtree(path)
        else:
            _unlink(path)
        return ""


def _unlink(path: Path) -> None:
    """Remove a name, but not through a link that is in the place of its folder."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.unlink(path.name, dir_fd=folder)
    finally:
        os.close(folder)


def _unlink_unless_touched(path: Path, since_ns: int) -> bool:
    """Take an object out of a writer's reach in one step, then see whether the writer was quicker and put it back.

    A writer touches an object before it reads it, and writes it anew where it finds none.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    aside = f".{unique(path.name)}{TEMPORARY_SUFFIX}"
    try:
        os.rename(path.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        if os.stat(aside, dir_fd=folder, follow_symlinks=False).st_mtime_ns >= since_ns:
            os.rename(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            return False
        os.unlink(aside, dir_fd=folder)
    finally:
        os.close(folder)
    return True


def _remove_flat(path: Path) -> None:
    """Remove a folder of files and links; one that holds a folder stays, with that folder."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - by descriptor, so that nothing can be put in its place
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)
    path.rmdir()
