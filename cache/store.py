"""The store: objects, entries, last uses and claims below one root.

Readers take no lock and create nothing but the stamp of a last use, and the claim of `hold` where the root can be
written; everything that only reads works on a read-only root. Writers stage, sync and rename; the lock of an entry
only saves them from doing the same work twice.
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from precast.cache.access import UnwritableFolder, unwritable_folders
from precast.cache.canonical import sha256
from precast.cache.entries import Damage, EntryStore, EntrySummary
from precast.cache.fields import HEX64
from precast.cache.leftovers import half_written, remove, remove_unfinished
from precast.cache.locks import Claim, OnWait, dead_claims, discard, hold_lock, live_claims, make_claim
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.objects import ObjectStore, StoredObject
from precast.cache.quarantine import write_over
from precast.cache.removing import is_going
from precast.cache.root import CacheRoot
from precast.errors import (
    AmbiguousKeyError,
    LockedError,
    NoEntryError,
    PartialError,
    PrecastError,
    StoreAccessError,
    UsageError,
)

__all__ = ["STORE_LOCK", "WRITER", "Damage", "EntrySummary", "Store", "StoredObject", "UnwritableFolder"]

MIN_PREFIX = 6
# An entry is in the way now, or another publisher took the staged one for a dead one's.
_ATTEMPTS = 4
_MET_ANOTHER = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)

STORE_LOCK = "store"
WRITER = "writer"


class Store:
    """Everything below one root.

    From its first object to its publication a store claims to be writing; meanwhile `prune` leaves alone the objects
    that no entry refers to yet. `close` ends the claim of a store that did not publish.

    Args:
        root: The root, as `resolve_root` chose it.
        read_only: Refuse to write anything at all.
        clock: Nanoseconds since the epoch, for last uses.
        lock_timeout_s: Seconds to wait for another process.
    """

    def __init__(
        self,
        root: Path,
        *,
        read_only: bool = False,
        clock: Callable[[], int] = time.time_ns,
        lock_timeout_s: float = 300.0,
    ) -> None:
        self.layout = CacheRoot(root)
        self.read_only = read_only
        self._clock = clock
        self._lock_timeout_s = lock_timeout_s
        self._objects = ObjectStore(self.layout)
        self._entries = EntryStore(self.layout)
        self._writing: Claim | None = None

    @property
    def root(self) -> Path:
        """The root."""
        return self.layout.path

    def put_object(self, raw: bytes) -> StoredObject:
        """Store a payload, unless a sound object already holds it.

        Raises:
            StoreAccessError: The store is read-only, or the object cannot be written.
        """
        self._start_writing()
        return self._objects.put(raw)

    def read_object(self, sha256: str, size: int | None = None) -> bytes:
        """Return a payload's raw bytes, after checking their digest.

        Args:
            sha256: The object's name.
            size: Its raw size as the manifest records it, a bound against frames that unpack to more.

        Raises:
            NoEntryError: There is no such object.
            CorruptError: The object is damaged.
            StoreAccessError: The object cannot be read.
        """
        return self._objects.read(sha256, size)

    def publish(self, manifest: Manifest, mega: bytes | None = None) -> Path:
        """Make an entry visible, all at once. A good entry already there wins; a damaged one is put aside.

        Args:
            manifest: The manifest; its `mega` and `digest` are filled in here.
            mega: The mega artifact's bytes, or None for an entry without one.

        Returns:
            The entry's folder.

        Raises:
            PartialError: An object that the manifest names is not in the store.
            StoreAccessError: The entry cannot be written; nothing of it is visible.
            LockedError: Another process held the entry's lock all the time.
        """
        self._start_writing()
        record = None if mega is None else MegaRecord(sha256(mega), len(mega))
        sealed = replace(manifest, mega=record).sealed()
        with self.lock(STORE_LOCK):
            # `prune` holds this lock while it removes, so what is here now stays: this store claims to be writing.
            self._require_objects(sealed)
        with self.reserve(sealed.key):
            with self.lock(f"entry-{sealed.key}"):
                self._place(sealed, mega)
            self.touch(sealed.key)
        self.close()
        self.tidy()
        return self.layout.entry(sealed.key)

    def manifest(self, key: str) -> Manifest:
        """Read an entry's manifest and check its digest.

        Raises:
            NoEntryError: There is no such entry.
            CorruptError: The manifest is damaged.
            FormatError: It has a format that this version does not read.
            StoreAccessError: It cannot be read.
        """
        return self._entries.manifest(key)

    def entries(self) -> Iterator[EntrySummary]:
        """List all entries, sorted by key; one bad entry never stops the listing."""
        return self._entries.summaries()

    def glance(self, manifest: Manifest) -> tuple[Damage, ...]:
        """Find the files of an entry that are missing, empty or of another size, without reading them."""
        return self._entries.checks.glance(manifest)

    def absent(self, manifest: Manifest) -> tuple[str, ...]:
        """Say which files of an entry are missing or have another size, without reading them."""
        return self._entries.absent(manifest)

    def resolve_key(self, prefix: str) -> str:
        """Return the one key that starts with `prefix`.

        Raises:
            UsageError: It is no prefix of a key, or too short to be one.
            NoEntryError: No entry has such a key.
            AmbiguousKeyError: Several have; the error lists them.
        """
        wanted = prefix.lower()
        if not MIN_PREFIX <= len(wanted) <= 64 or not set(wanted) <= set("0123456789abcdef"):
            raise UsageError(
                f"`{prefix}` is no key",
                f"a key is written with {MIN_PREFIX} to 64 hex digits",
                "Run `precast inspect ls` to see the keys",
            )
        found = [key for key in self._entries.names() if key.startswith(wanted)]
        if not found:
            raise NoEntryError(
                f"There is no entry {prefix}",
                f"no key in {self.root} starts so",
                "Run `precast inspect ls` to see the keys",
            )
        if len(found) > 1:
            raise AmbiguousKeyError(f"`{prefix}` fits several entries", ", ".join(found), "Give more digits of the key")
        return found[0]

    def check(self, key: str) -> tuple[Damage, ...]:
        """Read every member of an entry and compare it with its digest.

        Raises:
            NoEntryError: There is no such entry.
            FormatError: It has a format that this version does not read.
            StoreAccessError: The manifest cannot be read.
        """
        return self._entries.check(key)

    def quarantine(self, key: str, reason: str, damage: tuple[Damage, ...] = ()) -> Path | None:
        """Put a damaged entry where no reader looks, and its damaged objects too.

        Args:
            key: The entry's key.
            reason: Why, for people.
            damage: What is known to be wrong with its members.

        Returns:
            Its new place; None where it was gone already or the store is read-only.

        Raises:
            StoreAccessError: The entry cannot be moved.
        """
        if self.read_only:
            return None
        self.layout.prepare()
        return self._entries.quarantine(key, reason, damage)

    def touch(self, key: str) -> None:
        """Stamp an entry's last use. Where the stamp cannot be written, nothing happens."""
        if not self.read_only and HEX64.fullmatch(key):
            with suppress(StoreAccessError):
                write_over(self.layout, self.layout.stats / key, b"%d\n" % self._clock(), durable=False)

    def last_used(self, key: str) -> int | None:
        """Return the nanoseconds since the epoch of an entry's last use, or None where no stamp tells."""
        try:
            return int((self.layout.stats / key).read_bytes())
        except (OSError, ValueError):
            return None

    def unwritable(self) -> tuple[UnwritableFolder, ...]:
        """Return every folder that a writer needs and this process may not write."""
        return unwritable_folders(self.layout)

    def lock(
        self, name: str, timeout_s: float | None = None, on_wait: OnWait | None = None
    ) -> AbstractContextManager[bool]:
        """Return a lock between processes, to be held by a `with` block; it tells whether another one had it first.

        Args:
            name: What is locked: letters, digits and dashes.
            timeout_s: Seconds to wait for another process; None for the store's own.
            on_wait: Is told who holds it before it is waited for, and again when another process has got it.

        Raises:
            StoreAccessError: The store cannot be written.
            LockedError: Another process held it all the time; raised on entry.
        """
        self._prepare()
        seconds = self._lock_timeout_s if timeout_s is None else timeout_s
        # What speaks of one key or request would pile up.
        return hold_lock(self.layout.lock(name), seconds, on_wait, keep="-" not in name)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Keep `prune` from removing an entry while the block runs. Waits for nobody; see `precast.cache.removing`.

        On a root that cannot be written nothing is marked: nobody can prune through it either. Nor is an entry marked
        that is not there.

        Raises:
            NoEntryError: A remover is taking the entry away.
        """
        claim = self._mark(key) if self.layout.entry(key).is_dir() else None
        try:
            if claim is not None and is_going(self.layout.locks, key):
                raise NoEntryError(
                    f"Entry {key[:12]} is being removed", "`precast prune` takes it away", "Run `precast precompile`"
                )
            yield
        finally:
            if claim is not None:
                claim.release()

    @contextmanager
    def reserve(self, key: str) -> Iterator[None]:
        """Keep `prune` from removing an entry that is made while the block runs; a removal is waited for first.

        Raises:
            StoreAccessError: The store cannot be written.
            LockedError: Another process held the store's lock all the time.
        """
        with self.lock(STORE_LOCK):
            claim = make_claim(self.layout.locks, key)
        try:
            yield
        finally:
            claim.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Claim to be writing while the block runs, so that nobody tidies away what is half-written.

        Raises:
            StoreAccessError: The store cannot be written.
            LockedError: Another process held the store's lock all the time.
        """
        mine = self._writing is None
        self._start_writing()
        try:
            yield
        finally:
            if mine:
                self.close()

    def tidy(self) -> None:
        """Remove what killed writers left, unless somebody writes. Where that cannot be done, nothing happens."""
        if not self.read_only and self.layout.base.is_dir():
            with suppress(OSError, PrecastError):
                self._tidy()

    def close(self) -> None:
        """End the claim to be writing."""
        if self._writing is not None:
            self._writing.release()
            self._writing = None

    def _prepare(self) -> None:
        if self.read_only:
            raise StoreAccessError(
                f"The cache at {self.root} is not written",
                "it was opened read-only",
                "Leave out --read-only, or pass --cache-dir with another folder",
                path=str(self.root),
            )
        self.layout.prepare()

    def _mark(self, key: str) -> Claim | None:
        """Claim a key to read its entry, where that can be done."""
        if self.read_only or self.unwritable():
            return None
        self._prepare()
        with suppress(StoreAccessError):  # a full disk must not keep anybody from reading
            return make_claim(self.layout.locks, key)
        return None

    def _start_writing(self) -> None:
        if self._writing is None:
            # Under the store's lock, so that `prune` sees the claim before it acts or the writer waits until it has.
            with self.lock(STORE_LOCK):
                self._writing = make_claim(self.layout.locks, WRITER)

    def _tidy(self) -> None:
        """Remove what killed writers left, as soon as nobody writes any more."""
        layout, locks = self.layout, self.layout.locks
        short = [path for place in (layout.requests, layout.tags, layout.stats, locks) for path in half_written(place)]
        if not short and not dead_claims(locks) and not any(layout.staging.iterdir()):
            return
        with self.lock(STORE_LOCK):
            if all(claim.subject != WRITER for claim in live_claims(locks)):
                remove_unfinished(layout)
                for path in dead_claims(locks):
                    discard(path)
            for path in short:
                # Writers of requests and tags hold a lock; who stamps a last use, or writes an index, can do without.
                with suppress(LockedError), self._short_write(path):
                    remove(path)

    def _short_write(self, path: Path) -> AbstractContextManager[object]:
        """Hold what a writer of a temporary file would hold."""
        locked = path.parent in (self.layout.requests, self.layout.tags)
        return self.lock(path.parent.name, 0) if locked else nullcontext()

    def _require_objects(self, manifest: Manifest) -> None:
        missing = [name for name in manifest.objects if not self.layout.object(name).is_file()]
        if missing:
            raise PartialError(
                f"Entry {manifest.key[:12]} is not published",
                f"the store lacks its objects {', '.join(missing)}",
                "Run `precast precompile` again",
                entry=manifest.key,
            )

    def _place(self, sealed: Manifest, mega: bytes | None) -> None:
        """Put an entry in its place, unless a good one is there.

        The lock only saves work: two hosts may both believe to hold it. The rename decides, and who loses looks again.
        """
        for attempt in range(_ATTEMPTS):
            if self._keeps_present(sealed.key):
                return
            try:
                self._entries.publish(sealed, mega)
                return
            except StoreAccessError as error:
                met = isinstance(error.__cause__, OSError) and error.__cause__.errno in _MET_ANOTHER
                if not met or attempt == _ATTEMPTS - 1:
                    raise

    def _keeps_present(self, key: str) -> bool:
        """Tell whether a good entry is present; put a damaged one aside."""
        if not self._entries.clear(key):
            return False
        try:
            damage = self.check(key)
        except NoEntryError:
            return False
        if damage:
            self._entries.quarantine(key, "; ".join(map(str, damage)), damage)
        return not damage
