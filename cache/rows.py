"""Rows: what an index keeps of each entry, in one file below the root.

It is never the truth. Each row was made of a manifest whose digest was checked, and holds for as long as that file's
size, time of change and inode stay; anything else is read anew. The file has a digest of its own, so a lost or damaged
one costs time only. It is written where the root can be written; elsewhere the rows live as long as the call.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.cache.atomic import write_atomic
from precast.cache.canonical import sha256
from precast.cache.disk import read_quickly
from precast.cache.entries import DAMAGED, UNREADABLE
from precast.cache.fields import HEX64
from precast.cache.glance import glance, skim
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, StoreAccessError

__all__ = ["MALFORMED", "STALE", "SUMMARY_FILE", "Rows", "Seen", "Stamps", "signature"]

SUMMARY_FILE = "index-summary.json"

# What reading a document or a row of another shape raises.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)

_VERSION = 3
_DIGEST = b'{"digest":"'
_DIGEST_END = len(_DIGEST) + 64
# A file system's clock ticks every few milliseconds: of a younger manifest a second version may have the same time.
_YOUNG_NS = 100 * 10**6
STALE = 256
"""So many changes make it worth to write the file anew where a change alone does not: stamps change at every use."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at an entry's folder told.

    Attributes:
        manifest: The signature of its manifest, or None where there is none.
        mega_bytes: The size of its mega artifact, or None where there is none.
    """

    manifest: list[int] | None
    mega_bytes: int | None


class Rows:
    """One file of rows below a root, by key, each with the signature of the manifest that it was made of.

    Args:
        store: The store.
        name: The file's name, without its suffix.
        read: Makes a row of a manifest that `glance` decoded.
        skims: Whether what `skim` decodes is enough for that.
        fresh: Leave out what the file holds, because it turned out to be of no use.

    Attributes:
        changed: How many rows are others than the file holds; known after the last row.
        extra: What else the file holds.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        read: Callable[[dict[str, Any]], list[Any]],
        *,
        skims: bool = False,
        fresh: bool = False,
    ) -> None:
        self._store = store
        self._skims = skims
        self._path = store.layout.stats / f"{name}.json"
        self._schema = f"precast.{name}/{_VERSION}"
        self._read = read
        self.changed = 0
        self.extra: dict[str, Any] = {} if fresh else self._load()
        self._known: dict[str, list[Any]] = self.extra.pop("rows", {})

    def rows(self, seen: Mapping[str, Seen] | None = None) -> Iterator[tuple[str, int, list[Any]]]:
        """Yield key, manifest size and row of each entry; where an entry is bad, the row is its state and why.

        Args:
            seen: The entries, where somebody has just looked at their folders.
        """
        kept: dict[str, list[Any]] = {}
        settled_ns = time.time_ns() - _YOUNG_NS
        folder = self._store.layout.entries
        for key in _entry_names(folder) if seen is None else sorted(seen):
            path = f"{folder}/{key}/manifest.json"
            # Taken before the manifest is read: what is put in its place meanwhile has another signature.
            now = signature(path) if seen is None else seen[key].manifest
            known = self._known.get(key)
            if now is not None and known is not None and known[0] == now:
                kept[key], row = known, known[1]
            else:
                row, keep = self._fresh(key, path)
                if now is not None and keep and now[1] < settled_ns:
                    kept[key] = [now, row]
                    self.changed += 1
            if row:
                yield key, now[0] if now else 0, row
        self.changed += len(self._known.keys() - kept.keys())
        self._known = kept

    def save(self, extra: Mapping[str, Any], *, force: bool = False, worth: int = 1) -> None:
        """Write the file where enough changed and the root allows it; call it after the last row.

        Args:
            extra: What else the file keeps.
            force: Write it although no row changed.
            worth: How many rows must have changed.
        """
        if self._store.read_only or not (self.changed >= worth or force):
            return
        document = {"schema": self._schema, "rows": self._known, **extra}
        data = json.dumps(document, separators=(",", ":")).encode()
        with suppress(StoreAccessError):
            write_atomic(self._path, b'%s%s",%s' % (_DIGEST, sha256(data).encode(), data[1:]), durable=False)

    def _load(self) -> dict[str, Any]:
        try:
            data = self._path.read_bytes()
            if sha256(b"{" + data[_DIGEST_END + 2 :]) != data[len(_DIGEST) : _DIGEST_END].decode():
                return {}
            document = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(document, dict) or document.pop("schema", None) != self._schema:
            return {}
        del document["digest"]
        rows = document.get("rows")
        sound = isinstance(rows, dict) and all(isinstance(row, list) and len(row) == 2 for row in rows.values())
        return document if sound else {}

    def _fresh(self, key: str, path: str) -> tuple[list[Any], bool]:
        """Read an entry's manifest; tell also whether the row may be kept."""
        try:
            data = read_quickly(path)
            if self._skims and (skimmed := skim(data, key)) is not None:
                with suppress(*MALFORMED):
                    return self._read(skimmed), True
            document = glance(data)
            if document["key"] != key:
                return [DAMAGED, f"its manifest belongs to entry {str(document['key'])[:12]}"], True
            return self._read(document), True
        except FormatError as error:
            return [UNREADABLE, str(error)], True
        except CorruptError as error:
            return [DAMAGED, error.why or error.what], True
        except MALFORMED:
            return [DAMAGED, "its fields are not those of a manifest"], True
        except (FileNotFoundError, NotADirectoryError):
            # An entry that went meanwhile lacks nothing.
            return ([DAMAGED, "its manifest is missing"] if Path(path).parent.is_dir() else []), False
        except OSError as error:
            return [UNREADABLE, f"{path} cannot be read: {error.strerror or error}"], False


class Stamps:
    """Last uses, each read again only when its stamp was written again.

    Args:
        store: The store.
        known: What is known of earlier times, by key.
        times: When each stamp was written, in nanoseconds since the epoch, where somebody has just looked.
    """

    def __init__(self, store: Store, known: Any, times: Mapping[str, int] | None = None) -> None:
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._times = dict(_stamp_times(store.layout.stats)) if times is None else times
        self._stale = 0
        self._folder = str(store.layout.stats)
        self.known: dict[str, list[int | None]] = {}

    @property
    def are_stale(self) -> bool:
        """Whether so many had to be read that keeping them is worth a write."""
        return self._stale > STALE

    def last_used(self, key: str) -> int | None:
        """Return an entry's last use in nanoseconds since the epoch."""
        written = self._times.get(key)
        if written is None:
            return None
        known = self._known.get(key)
        if not (isinstance(known, list) and len(known) == 2 and known[0] == written):
            known = [written, self._read(key)]
            self._stale += 1
        self.known[key] = known
        used: int | None = known[1]
        return used

    def _read(self, key: str) -> int | None:
        try:
            return int(read_quickly(f"{self._folder}/{key}"))
        except (OSError, ValueError):
            return None


def _entry_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted(
                item.name for item in found if HEX64.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreAccessError(
            f"{folder} cannot be read",
            error.strerror or str(error),
            "Let this user read the cache folder, or pass --cache-dir",
            path=str(folder),
        ) from error


def signature(path: str) -> list[int] | None:
    """Return size, time of change in nanoseconds and inode of a file, or None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of 10,000 entries costs more than the call
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _stamp_times(folder: Path) -> Iterator[tuple[str, int]]:
    with suppress(OSError), os.scandir(folder) as found:
        for item in found:
            if len(item.name) == 64:
                yield item.name, item.stat(follow_symlinks=False).st_mtime_ns
