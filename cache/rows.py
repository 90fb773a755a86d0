"""Rows: what an index keeps of each entry, in one file below the root.

It is never the truth. Each row holds for as long as its manifest's size, time of change and inode stay; anything else
is read anew, and a lost or damaged file costs time only. It is written where the root can be written; elsewhere the
rows live as long as the call.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from precast.cache.atomic import write_atomic
from precast.cache.entries import DAMAGED, UNREADABLE
from precast.cache.fields import HEX64
from precast.cache.glance import glance
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, StoreAccessError

__all__ = ["MALFORMED", "Rows", "Stamps", "signature"]

# What reading a document or a row of another shape raises.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError)

_VERSION = 2
# Stamps change at every use; the file is written anew for them only when reading them costs more than writing it.
_STALE_STAMPS = 256


class Rows:
    """One file of rows below a root, by key, each with the signature of the manifest that it was made of.

    Args:
        store: The store.
        name: The file's name, without its suffix.
        read: Makes a row of a manifest that `glance` decoded.
        fresh: Leave out what the file holds, because it turned out to be of no use.

    Attributes:
        changed: Whether the rows are others than the file holds; known after the last row.
        extra: What else the file holds.
    """

    def __init__(
        self, store: Store, name: str, read: Callable[[dict[str, Any]], list[Any]], *, fresh: bool = False
    ) -> None:
        self._store = store
        self._path = store.layout.stats / f"{name}.json"
        self._schema = f"precast.{name}/{_VERSION}"
        self._read = read
        self.changed = False
        self.extra: dict[str, Any] = {} if fresh else self._load()
        self._known: dict[str, list[Any]] = self.extra.pop("rows", {})

    def rows(self) -> Iterator[tuple[str, int, list[Any]]]:
        """Yield key, manifest size and row of each entry; where an entry is bad, the row is its state and why."""
        kept: dict[str, list[Any]] = {}
        for key in _entry_names(self._store.layout.entries):
            path = f"{self._store.layout.entries}/{key}/manifest.json"
            # Taken before the manifest is read: what is put in its place meanwhile has another signature.
            now = signature(path)
            known = self._known.get(key)
            if now is not None and known is not None and known[0] == now:
                kept[key], row = known, known[1]
            else:
                row, keep = self._fresh(key, path)
                if now is not None and keep:
                    kept[key] = [now, row]
                    self.changed = True
            if row:
                yield key, now[0] if now else 0, row
        self.changed |= len(kept) != len(self._known)
        self._known = kept

    def save(self, extra: Mapping[str, Any], *, force: bool = False) -> None:
        """Write the file where anything changed and the root allows it; call it after the last row.

        Args:
            extra: What else the file keeps.
            force: Write it although no row changed.
        """
        if self._store.read_only or not (self.changed or force):
            return
        document = {"schema": self._schema, "rows": self._known, **extra}
        with suppress(StoreAccessError):
            write_atomic(self._path, json.dumps(document, separators=(",", ":")).encode(), durable=False)

    def _load(self) -> dict[str, Any]:
        try:
            document = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(document, dict) or document.pop("schema", None) != self._schema:
            return {}
        rows = document.get("rows")
        sound = isinstance(rows, dict) and all(isinstance(row, list) and len(row) == 2 for row in rows.values())
        return document if sound else {}

    def _fresh(self, key: str, path: str) -> tuple[list[Any], bool]:
        """Read an entry's manifest; tell also whether the row may be kept."""
        try:
            document = glance(Path(path).read_bytes())
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
    """

    def __init__(self, store: Store, known: Any) -> None:
        self._store = store
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._times = dict(_stamp_times(store.layout.stats))
        self._stale = 0
        self.known: dict[str, list[int | None]] = {}

    @property
    def are_stale(self) -> bool:
        """Whether so many had to be read that keeping them is worth a write."""
        return self._stale > _STALE_STAMPS

    def last_used(self, key: str) -> int | None:
        """Return an entry's last use in nanoseconds since the epoch."""
        written = self._times.get(key)
        if written is None:
            return None
        known = self._known.get(key)
        if not (isinstance(known, list) and len(known) == 2 and known[0] == written):
            known = [written, self._store.last_used(key)]
            self._stale += 1
        self.known[key] = known
        used: int | None = known[1]
        return used


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
