"""The entries of the store: reading, listing, checking, publishing and putting aside.

An entry is a folder that appears by one rename and holds its manifest from then on, so a reader without a lock sees
it whole or not at all.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import read_whole, refused, sync_folder, unique, write_atomic
from precast.cache.checks import Checks
from precast.cache.damage import Damage
from precast.cache.fields import HEX64
from precast.cache.leftovers import remove
from precast.cache.manifest import Manifest
from precast.cache.modes import make_folder
from precast.cache.objects import ObjectStore
from precast.cache.quarantine import move_away, note_reason
from precast.cache.root import CacheRoot
from precast.errors import CorruptError, FormatError, NoEntryError, PrecastError, StoreAccessError

__all__ = ["Damage", "EntryStore", "EntrySummary"]

OK, DAMAGED, UNREADABLE = "ok", "damaged", "unreadable"

_LOOKS = 4


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One line of a listing.

    Attributes:
        key: The entry's key.
        state: `ok`, `damaged` (a member is missing or the manifest is broken) or `unreadable` (another format, or no
            permission; nothing is known to be wrong with it).
        reason: Why it is not `ok`, or empty.
        bytes: Size of the files in its folder; its objects are not counted.
        manifest: The manifest, where it could be read.
    """

    key: str
    state: str
    reason: str
    bytes: int
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class EntryStore:
    """The entries below one root.

    Attributes:
        root: The layout.
    """

    root: CacheRoot

    @property
    def checks(self) -> Checks:
        """The checks of their files."""
        return Checks(self.root)

    @property
    def objects(self) -> ObjectStore:
        """The objects that the entries refer to."""
        return ObjectStore(self.root)

    def names(self) -> tuple[str, ...]:
        """Return the keys of all entries, sorted. Links and foreign folders are no entries."""
        try:
            with os.scandir(self.root.entries) as found:
                return tuple(
                    sorted(
                        item.name for item in found if HEX64.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
                    )
                )
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _unreadable(self.root.entries, error) from error

    def manifest(self, key: str) -> Manifest:
        """Read and check an entry's manifest.

        Raises:
            NoEntryError: There is no such entry.
            CorruptError: The manifest is missing, damaged or another entry's.
            FormatError: It has a format that this version does not read.
            StoreAccessError: It cannot be read.
        """
        path = self.root.manifest(key)
        data = self._manifest_bytes(key)
        try:
            manifest = Manifest.from_json(data)
        except CorruptError as error:
            error.entry, error.path = key, str(path)
            raise
        if manifest.key != key:
            raise _corrupt(key, path, f"its manifest belongs to entry {manifest.key[:12]}")
        return manifest

    def _manifest_bytes(self, key: str) -> bytes:
        path = self.root.manifest(key)
        folder = _identity(path.parent)
        try:
            if HEX64.fullmatch(key):
                return read_whole(path)
        except (FileNotFoundError, NotADirectoryError):
            # An entry may come or go between two looks; only a folder that stayed lacks its manifest.
            if folder is not None and folder == _identity(path.parent):
                raise _corrupt(key, path, "its manifest is missing") from None
        except OSError as error:
            raise _unreadable(path, error) from error
        raise self._no_entry(key)

    def _no_entry(self, key: str) -> NoEntryError:
        return NoEntryError(
            f"There is no entry {key[:12]}",
            f"{self.root.path} holds none with this key",
            "Run `precast inspect ls` to see what is stored",
        )

    def summaries(self) -> Iterator[EntrySummary]:
        """List all entries, sorted by key; one bad entry never stops the listing."""
        for key in self.names():
            found = self._steady_summary(key)
            if found is not None:
                yield found

    def _steady_summary(self, key: str) -> EntrySummary | None:
        """Look at an entry; None for one that went meanwhile. What was moved away or replaced is not damaged."""
        for _ in range(_LOOKS):
            folder = _identity(self.root.entry(key))
            if folder is None:
                break
            found = self._summary(key)
            if found.state != DAMAGED or folder == _identity(self.root.entry(key)):
                return found
        return None

    def _summary(self, key: str) -> EntrySummary:
        size = _folder_bytes(self.root.entry(key))
        try:
            manifest = self.manifest(key)
        except (FormatError, StoreAccessError) as error:
            return EntrySummary(key, UNREADABLE, str(error), size, None)
        except PrecastError as error:
            return EntrySummary(key, DAMAGED, error.why or error.what, size, None)
        absent = self.absent(manifest)
        state = DAMAGED if absent else OK
        return EntrySummary(key, state, "; ".join(absent), size, manifest)

    def absent(self, manifest: Manifest) -> tuple[str, ...]:
        """Name the members that are missing or have another size, without reading them."""
        return tuple(item.sentence for item in self.checks.glance(manifest))

    def check(self, key: str) -> tuple[Damage, ...]:
        """Read every member of an entry and compare it with its digest.

        Where the manifest is damaged, the one in the mega artifact says what the other members must be.

        Raises:
            NoEntryError: There is no such entry; it may have gone while it was checked.
            FormatError: It has a format that this version does not read.
            StoreAccessError: The manifest cannot be read.
        """
        for _ in range(_LOOKS):
            folder = _identity(self.root.entry(key))
            found = self._check(key)
            # What came, was moved away or was replaced meanwhile is not damaged.
            if not found or (folder is not None and folder == _identity(self.root.entry(key))):
                return found
        raise self._no_entry(key)

    def _check(self, key: str) -> tuple[Damage, ...]:
        try:
            manifest = self.manifest(key)
        except FormatError:
            raise
        except CorruptError as error:
            return self.checks.without_manifest(key, error.why)
        return self.checks.members(manifest)

    def publish(self, manifest: Manifest, mega: bytes | None) -> Path:
        """Write a sealed entry. The caller holds its lock and has made sure that no entry is in the way.

        Raises:
            StoreAccessError: The entry cannot be written; nothing of it is left.
        """
        final = self.root.entry(manifest.key)
        staged = self.root.staging / unique(manifest.key)
        document = manifest.to_json()
        try:
            make_folder(staged)
            if mega is not None:
                write_atomic(staged / "model.mega", mega)
            write_atomic(staged / "manifest.json", document)
            staged.rename(final)
            _sync_or_take_back(final, staged)
        except OSError as error:
            raise refused(error, final, len(mega or b"") + len(document)) from error
        finally:
            remove(staged)
        return final

    def clear(self, key: str) -> bool:
        """Tell whether a folder lies in an entry's place; anything else there is moved into the quarantine.

        Raises:
            StoreAccessError: It cannot be moved.
        """
        place = self.root.entry(key)
        if place.is_dir() and not place.is_symlink():
            return True
        move_away(self.root, key, place, "it lay where an entry must be")
        return False

    def sweep_staging(self, key: str) -> None:
        """Remove what dead publishers of a key left; the caller holds its lock, so none is alive."""
        for leftover in self.root.staging.glob(f"{key}-*"):
            remove(leftover)

    def quarantine(self, key: str, reason: str, damage: tuple[Damage, ...] = ()) -> Path | None:
        """Move an entry to where no reader looks, with a note that says why, and its bad objects with it.

        Args:
            key: The entry's key.
            reason: Why, for people.
            damage: What is known to be wrong with its members.

        Returns:
            Its new place, or None where it was gone already.

        Raises:
            StoreAccessError: The entry cannot be moved.
        """
        aside = self.root.quarantine / unique(key)
        try:
            self.root.entry(key).rename(aside)
            sync_folder(self.root.entries)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(error, aside) from error
        note_reason(self.root, aside, {"entry": key, "reason": reason, "damage": [item.json() for item in damage]})
        for item in damage:
            kind, _, name = item.member.partition(" ")
            if kind == "object":
                self.objects.put_aside(name, reason)
        return aside


def _sync_or_take_back(final: Path, staged: Path) -> None:
    """Wait until the disk knows an entry; where it refuses, take the entry back, so that an error means no entry."""
    try:
        sync_folder(final.parent)
    except OSError:
        with suppress(OSError):
            final.rename(staged)
        raise


def _folder_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as found:
        for item in found:
            total += item.stat(follow_symlinks=False).st_size
    return total


def _identity(path: Path) -> tuple[int, int] | None:
    """Tell one folder from the next in its place: file systems give the number of a removed one to the next at once."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _corrupt(key: str, path: Path, why: str) -> CorruptError:
    return CorruptError(
        f"Entry {key[:12]} is damaged", why, "Run `precast precompile` again", entry=key, path=str(path)
    )


def _unreadable(path: Path, error: OSError) -> StoreAccessError:
    return StoreAccessError(
        f"{path} cannot be read",
        error.strerror or str(error),
        "Let this user read the cache folder, or pass --cache-dir",
        path=str(path),
    )
