"""The entries of the store: reading, listing, checking, publishing and putting aside.

An entry is a folder that appears by one rename and holds its manifest from then on, so a reader without a lock sees
it whole or not at all.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import refused, sync_folder, unique, write_atomic
from precast.cache.canonical import canonical_json, sha256
from precast.cache.fields import HEX64
from precast.cache.manifest import Manifest
from precast.cache.objects import ObjectStore
from precast.cache.root import CacheRoot
from precast.errors import CorruptError, FormatError, NoEntryError, PrecastError, StoreAccessError

__all__ = ["Damage", "EntryStore", "EntrySummary"]

OK, DAMAGED, UNREADABLE = "ok", "damaged", "unreadable"


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
class Damage:
    """One member of an entry that is not what it must be.

    Attributes:
        member: `manifest.json`, `model.mega` or `object <sha256>`.
        path: The file.
        reason: What is wrong with it.
    """

    member: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class EntryStore:
    """The entries below one root.

    Attributes:
        root: The layout.
    """

    root: CacheRoot

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
        folder = _inode(path.parent)
        try:
            if HEX64.fullmatch(key):
                return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            # An entry may come or go between two looks; only a folder that stayed lacks its manifest.
            if folder is not None and folder == _inode(path.parent):
                raise _corrupt(key, path, "its manifest is missing") from None
        except OSError as error:
            raise _unreadable(path, error) from error
        raise NoEntryError(
            f"There is no entry {key[:12]}",
            f"{self.root.path} holds none with this key",
            "Run `precast inspect ls` to see what is stored",
        )

    def summaries(self) -> Iterator[EntrySummary]:
        """List all entries, sorted by key; one bad entry never stops the listing."""
        for key in self.names():
            yield self._summary(key)

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
        absent = [f"object {name} is missing" for name in manifest.objects if not self.root.object(name).is_file()]
        if manifest.mega is not None:
            size = _file_bytes(self.root.mega(manifest.key))
            if size is None:
                absent.append("model.mega is missing")
            elif size != manifest.mega.bytes:
                absent.append(f"model.mega has {size} bytes instead of {manifest.mega.bytes}")
        return tuple(absent)

    def check(self, key: str) -> tuple[Damage, ...]:
        """Read every member of an entry and compare it with its digest.

        Raises:
            NoEntryError: There is no such entry.
            FormatError: It has a format that this version does not read.
            StoreAccessError: The manifest cannot be read.
        """
        try:
            manifest = self.manifest(key)
        except FormatError:
            raise
        except CorruptError as error:
            return (Damage("manifest.json", str(self.root.manifest(key)), error.why),)
        return (*self._damaged_mega(manifest), *self._damaged_objects(manifest))

    def _damaged_objects(self, manifest: Manifest) -> Iterator[Damage]:
        for name, size in manifest.objects.items():
            try:
                self.objects.read(name, size)
            except PrecastError as error:
                yield Damage(f"object {name}", str(self.root.object(name)), error.why)

    def _damaged_mega(self, manifest: Manifest) -> Iterator[Damage]:
        if manifest.mega is None:
            return
        path = self.root.mega(manifest.key)
        try:
            data = path.read_bytes()
        except OSError as error:
            yield Damage("model.mega", str(path), error.strerror or str(error))
            return
        if len(data) != manifest.mega.bytes or sha256(data) != manifest.mega.sha256:
            yield Damage("model.mega", str(path), "its bytes have another digest")

    def publish(self, manifest: Manifest, mega: bytes | None) -> Path:
        """Write a sealed entry. The caller holds its lock and has made sure that no entry is in the way.

        Raises:
            StoreAccessError: The entry cannot be written; nothing of it is left.
        """
        final = self.root.entry(manifest.key)
        staged = self.root.staging / unique(manifest.key)
        try:
            staged.mkdir()
            if mega is not None:
                write_atomic(staged / "model.mega", mega)
            write_atomic(staged / "manifest.json", manifest.to_json())
            staged.rename(final)
            sync_folder(final.parent)
        except OSError as error:
            raise refused(error, final, len(mega or b"")) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return final

    def sweep_staging(self, key: str) -> None:
        """Remove what dead publishers of a key left; the caller holds its lock, so none is alive."""
        for leftover in self.root.staging.glob(f"{key}-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def quarantine(self, key: str, reason: str) -> Path | None:
        """Move an entry to where no reader looks, with a note that says why.

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
        write_atomic(aside / "reason.json", canonical_json({"entry": key, "reason": reason}))
        return aside


def _folder_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as found:
        for item in found:
            total += item.stat(follow_symlinks=False).st_size
    return total


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _file_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


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
