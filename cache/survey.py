"""A survey of a root for `prune`: every name below it, by what it is to the store, measured in one pass.

Only names that the store itself makes are listed as its own. Everything else is foreign: it counts, and nothing
removes it. Links are foreign or part of what they lie in, and are never followed; where the store's own folders are
links, there is no survey, because what is behind them would look as if it were missing.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from precast.cache.disk import NOTHING, DiskUsage, Extent, extent, extent_of, joined
from precast.cache.fields import HEX64
from precast.cache.leftovers import ASIDE, SHARD, TEMPORARY
from precast.cache.locks import LEASE_SUFFIX, LOCK_SUFFIX
from precast.cache.removing import ANNOUNCEMENT
from precast.cache.root import MARKERS, CacheRoot
from precast.cache.rows import SUMMARY_FILE, Seen, signature
from precast.cache.tags import is_tag
from precast.errors import StoreAccessError, UsageError

__all__ = ["Shard", "Survey", "survey"]

_OBJECT = re.compile(r"[0-9a-f]{64}\.zst")
_MANIFEST, _MEGA = _MEMBERS = ("manifest.json", "model.mega")
_REQUEST = re.compile(r"[0-9a-f]{64}\.json")


@dataclass(slots=True)
class Shard:
    """A folder of objects.

    Attributes:
        own: What the folder itself costs.
        names: How many things lie in it.
    """

    own: Extent
    names: int = 0


@dataclass(slots=True)
class Survey:
    """What lies below a root. Paths are below the layout's folder, where not said otherwise.

    Attributes:
        usage: Everything, foreign things included.
        foreign: What is not ours, by its path below the root.
        entries: Folders of entries, by key.
        seen: What of an entry the index wants to know, by key.
        crowded: Entries that hold a folder, which no entry of ours does, with that folder's name.
        objects: Objects, by SHA-256.
        shards: Their folders, by name.
        staging: What staging holds and temporary files beside objects, by path.
        temporaries: Temporary files of short writes, by path.
        quarantine: Entries that were put aside, by name.
        stamps: Last uses, by key.
        requests: Files that say which entries answered a request, by the request's digest.
        tags: Files of tags, by name.
        locks: Lock files, claims and the announcement of a removal, by name.
        index: The index of the entries, which taking an inventory may write anew.
    """

    usage: DiskUsage = field(default_factory=DiskUsage)
    foreign: dict[str, Extent] = field(default_factory=dict)
    entries: dict[str, Extent] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    crowded: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Extent] = field(default_factory=dict)
    shards: dict[str, Shard] = field(default_factory=dict)
    staging: dict[str, Extent] = field(default_factory=dict)
    temporaries: dict[str, Extent] = field(default_factory=dict)
    quarantine: dict[str, Extent] = field(default_factory=dict)
    stamps: dict[str, Extent] = field(default_factory=dict)
    requests: dict[str, Extent] = field(default_factory=dict)
    tags: dict[str, Extent] = field(default_factory=dict)
    locks: dict[str, Extent] = field(default_factory=dict)
    index: Extent = NOTHING


def survey(layout: CacheRoot, after_objects: Callable[[], None] = lambda: None) -> Survey:
    """Look at every name below a root; no file is opened.

    Args:
        layout: The root.
        after_objects: Is called once all objects are seen and no entry is.

    Raises:
        UsageError: The root or one of the store's own folders is a link.
        StoreAccessError: One of the store's own folders cannot be read.
    """
    _require_folders(layout)
    surveyor = _Surveyor(layout)
    surveyor.homes()
    surveyor.read(layout.objects)
    after_objects()
    for folder in layout.folders:
        if folder != layout.objects:
            surveyor.read(folder)
    return surveyor.found


def _require_folders(layout: CacheRoot) -> None:
    for folder in (layout.path, layout.base, *layout.folders):
        if folder.is_symlink():
            target = folder.resolve()
            hint = f"Pass --cache-dir {target}" if folder == layout.path else "Make it a folder, or prune by hand"
            raise UsageError(
                f"Nothing below {folder} is pruned", f"it is a link to {target}, and prune follows no links", hint,
                path=str(folder),
            )  # fmt: skip


class _Surveyor:
    """One pass below a root."""

    def __init__(self, layout: CacheRoot) -> None:
        self.found = Survey()
        self._layout = layout
        self._root = f"{layout.path}{os.sep}"
        self._readers = {
            layout.entries: self._entry,
            layout.objects: self._shard,
            layout.staging: self._staged,
            layout.quarantine: self._aside,
            layout.stats: self._stat,
            layout.requests: self._request,
            layout.tags: self._tag,
            layout.locks: self._lock,
        }

    def homes(self) -> None:
        """Look at what lies in the root and in the layout's folder, but not into the store's own folders."""
        own = {folder.name for folder in self._layout.folders}
        for home, ours in ((self._layout.path, {self._layout.base.name}), (self._layout.base, own)):
            self._count(extent_of(str(home)))
            for child in _sorted(str(home)):
                if child.name in MARKERS and child.is_file(follow_symlinks=False):
                    self._count(extent_of(child))
                elif child.name not in ours:
                    self._foreign(child)

    def read(self, folder: Path) -> None:
        """Look into one of the store's own folders."""
        self._count(extent_of(str(folder)))
        look = self._readers[folder]
        for child in _sorted(str(folder)):
            look(child)

    def _count(self, item: Extent | None) -> Extent:
        """Add to the total what was measured; what vanished meanwhile is nothing."""
        if item is None:
            return NOTHING
        self.found.usage.add(item)
        return item

    def _foreign(self, child: os.DirEntry[str]) -> None:
        self.found.foreign[child.path.removeprefix(self._root)] = self._count(extent(child))

    def _entry(self, child: os.DirEntry[str]) -> None:
        if not (HEX64.fullmatch(child.name) and child.is_dir(follow_symlinks=False)):
            return self._foreign(child)
        parts, seen = [], dict[str, list[int] | None]()
        for member in _scan(child.path):
            if member.name in _MEMBERS:
                seen[member.name] = _signature(member)
            if member.is_dir(follow_symlinks=False):
                self.found.crowded[child.name] = member.name
                parts.append(extent(member) or NOTHING)
            else:
                parts.append(extent_of(member) or NOTHING)
        mega = seen.get(_MEGA)
        self.found.seen[child.name] = Seen(seen.get(_MANIFEST), mega[0] if mega else None)
        self.found.entries[child.name] = self._count(joined(extent_of(child) or NOTHING, parts))
        return None

    def _shard(self, child: os.DirEntry[str]) -> None:
        if not (SHARD.fullmatch(child.name) and child.is_dir(follow_symlinks=False)):
            return self._foreign(child)
        shard = self.found.shards[child.name] = Shard(self._count(extent_of(child)))
        for item in _scan(child.path):
            shard.names += 1
            if _OBJECT.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                self.found.objects[item.name[:64]] = self._count(extent_of(item))
            elif TEMPORARY.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                self.found.staging[f"objects/{child.name}/{item.name}"] = self._count(extent_of(item))
            else:
                self._foreign(item)
        return None

    def _staged(self, child: os.DirEntry[str]) -> None:
        ours = ASIDE.fullmatch(child.name) or TEMPORARY.fullmatch(child.name)
        self._own(child, self.found.staging, f"staging/{child.name}", ours=bool(ours))

    def _aside(self, child: os.DirEntry[str]) -> None:
        self._own(child, self.found.quarantine, child.name, ours=bool(ASIDE.fullmatch(child.name)))

    def _stat(self, child: os.DirEntry[str]) -> None:
        if child.name.startswith(("index-", "lookups.")) and child.is_file(follow_symlinks=False):
            item = self._count(extent_of(child))
            if child.name == SUMMARY_FILE:
                self.found.index = item
        else:
            self._small(child, "stats", self.found.stamps, child.name, ours=bool(HEX64.fullmatch(child.name)))

    def _request(self, child: os.DirEntry[str]) -> None:
        ours = bool(_REQUEST.fullmatch(child.name))
        self._small(child, "requests", self.found.requests, child.name[:64], ours=ours)

    def _tag(self, child: os.DirEntry[str]) -> None:
        self._small(child, "tags", self.found.tags, child.name, ours=is_tag(child.name))

    def _lock(self, child: os.DirEntry[str]) -> None:
        ours = child.name.endswith((LOCK_SUFFIX, LEASE_SUFFIX)) or child.name == ANNOUNCEMENT
        self._small(child, "locks", self.found.locks, child.name, ours=ours)

    def _small(self, child: os.DirEntry[str], home: str, place: dict[str, Extent], name: str, *, ours: bool) -> None:
        """Note one of many small files, or the temporary file of its writer."""
        if TEMPORARY.fullmatch(child.name):
            place, name, ours = self.found.temporaries, f"{home}/{child.name}", True
        self._own(child, place, name, ours=ours and child.is_file(follow_symlinks=False))

    def _own(self, child: os.DirEntry[str], place: dict[str, Extent], name: str, *, ours: bool) -> None:
        if ours and not child.is_symlink():
            measure = extent if child.is_dir(follow_symlinks=False) else extent_of
            place[name] = self._count(measure(child))
        else:
            self._foreign(child)


def _signature(member: os.DirEntry[str]) -> list[int] | None:
    """Return what `signature` does, where it can without another look."""
    if member.is_symlink():
        return signature(member.path)
    try:
        status = member.stat(follow_symlinks=False)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _sorted(folder: str) -> list[os.DirEntry[str]]:
    return sorted(_scan(folder), key=lambda child: child.name)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    """Return what lies in one of our own folders; one that is not there holds nothing.

    Raises:
        StoreAccessError: It cannot be read. What it holds would look as if it were missing.
    """
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreAccessError(
            f"{folder} cannot be read",
            error.strerror or str(error),
            "Let this user read the cache folder, or pass --cache-dir",
            path=folder,
        ) from error
