"""Limits of pruning: bytes, files and free space, held against what would be left.

A limit speaks about the whole root as `du` and a file count see it from outside afterwards, so what pruning makes
itself counts as well.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from precast.cache.disk import DiskUsage
from precast.cache.lock_files import lock_path
from precast.cache.plans import KeptEntry, PruneRules, UnmetLimit
from precast.cache.root import CacheRoot
from precast.cache.sizes import format_size
from precast.cache.store import STORE_LOCK
from precast.cache.survey import Survey

__all__ = ["Limits"]

_FOLDER = 4096
# How the reason of a kept entry begins, what such entries are called, and what lets them go.
_WAYS = (
    ("in use", "in use", "they can go when their processes end"),
    ("tagged", "tagged", "--keep-tag says which tags count, --drop-tag and --key take one"),
    ("among", "among the last used", "a smaller --keep-last takes them"),
    ("unreadable", "unreadable", "--key takes them"),
    ("holds", "with a folder that is not ours", "move it away"),
)


class Limits:
    """The limits of some rules.

    Args:
        rules: The rules.
        layout: The root.
        found: What is in it.
    """

    def __init__(self, rules: PruneRules, layout: CacheRoot, found: Survey) -> None:
        self._rules = rules
        self._foreign = DiskUsage()
        for cost in found.foreign.values():
            self._foreign.add(cost)
        self._free = None if rules.min_free is None else _free_bytes(layout)
        # Executing a plan takes locks, which are files, and makes every folder of the layout that is absent.
        locks = (STORE_LOCK, "tags") if found.tags else (STORE_LOCK,)
        self._own_files = sum(not lock_path(layout.locks, name).exists() for name in locks)
        self._own_bytes = _FOLDER * sum(not folder.exists() for folder in layout.folders)
        self._hopeless = self._missed_by_emptying(found.usage)

    def call_for(self, usage: DiskUsage, *, acting: bool) -> bool:
        """Tell whether something should go so that the limits hold.

        Args:
            usage: What would be left.
            acting: Whether anything goes already, so that there will be something to execute.
        """
        return any(missed.limit not in self._hopeless for missed in self._missed(usage, acting=acting))

    def unmet(self, usage: DiskUsage, keep: Sequence[KeptEntry], *, acting: bool) -> tuple[UnmetLimit, ...]:
        """Return the limits that will not hold, and what stands in the way.

        Args:
            usage: What is left.
            keep: The entries that stay.
            acting: Whether anything goes.
        """
        missed = list(self._missed(usage, acting=acting))
        hint = self._in_the_way(keep) if missed else ""
        return tuple(UnmetLimit(each.limit, each.text(), hint) for each in missed)

    def _missed(self, usage: DiskUsage, *, acting: bool) -> "Iterator[_Missed]":
        rules = self._rules
        size, files = usage.bytes + self._own_bytes * acting, usage.files + self._own_files * acting
        if rules.max_size is not None and size > rules.max_size:
            yield _Missed("max_size", size, rules.max_size)
        if rules.max_files is not None and files > rules.max_files:
            yield _Missed("max_files", files, rules.max_files)
        if rules.min_free is not None and self._free is not None:
            free = self._free + usage.regained - self._own_bytes * acting
            if free < rules.min_free:
                yield _Missed("min_free", free, rules.min_free)

    def _in_the_way(self, keep: Sequence[KeptEntry]) -> str:
        ways = []
        for start, noun, way in _WAYS:
            count = sum(entry.reason.startswith(start) for entry in keep)
            ways += [f"{count} {noun}: {way}"] if count else []
        if self._rules.selection is not None and any(not entry.reason for entry in keep):
            ways.append("entries that --filter leaves out")
        if self._foreign.files:
            ways.append(f"{format_size(self._foreign.bytes)} that are not the store's: move them away")
        return "In the way: " + "; ".join(ways) if ways else ""

    def _missed_by_emptying(self, usage: DiskUsage) -> frozenset[str]:
        """Name the limits that not even an empty store would hold; emptying it for them helps nobody."""
        emptied = DiskUsage()
        emptied.bytes, emptied.files = self._foreign.bytes, self._foreign.files
        emptied.regained = usage.allocated - self._foreign.allocated
        return frozenset(missed.limit for missed in self._missed(emptied, acting=True))


@dataclass(frozen=True, slots=True)
class _Missed:
    """A limit that does not hold: what would be, and what was asked for."""

    limit: str
    amount: int
    bound: int

    def text(self) -> str:
        if self.limit == "max_files":
            return f"{self.amount} files stay, more than {self.bound}"
        amount, bound = format_size(self.amount), format_size(self.bound)
        return (
            f"{amount} stay, more than {bound}" if self.limit == "max_size" else f"{amount} are free, less than {bound}"
        )


def _free_bytes(layout: CacheRoot) -> int | None:
    """Return what is free on a root's file system to this user; None where there is no root yet or it does not tell."""
    with suppress(OSError):
        status = os.statvfs(layout.path)
        return status.f_bavail * status.f_frsize
    return None
