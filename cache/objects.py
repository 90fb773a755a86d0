"""The objects of the store: compressed payloads, each named by the SHA-256 of its raw bytes.

Content decides the name, so an object is shared by all entries that need it, is never changed, and proves itself when
it is read.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import read_whole, refused, sync_folder, write_atomic
from precast.cache.canonical import sha256
from precast.cache.damage import EMPTY, Content, Damage, diagnose, unreadable
from precast.cache.frames import CutFrameError, compress, decompress, frame_digest
from precast.cache.modes import make_folder
from precast.cache.quarantine import keep_copy, move_away, new_folder, note_reason
from precast.cache.root import CacheRoot
from precast.errors import CorruptError, NoEntryError, StoreAccessError

__all__ = ["ObjectStore", "StoredObject"]

_ATTEMPTS = 3
_REBUILD = "Run `precast precompile` again: it writes the object anew"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that is in the store.

    Attributes:
        sha256: Digest of the raw bytes, and the object's name.
        bytes: Size of the raw bytes.
        stored_bytes: Size of the file.
    """

    sha256: str
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The objects below one root.

    Attributes:
        root: The layout.
    """

    root: CacheRoot

    def put(self, raw: bytes) -> StoredObject:
        """Store some bytes, unless a sound object already holds them.

        Raises:
            StoreAccessError: The object cannot be written.
        """
        name = sha256(raw)
        path = self.root.object(name)
        # Marks an object that is there as in use, before it is read: `prune` spares what a living writer touched.
        with suppress(OSError):
            os.utime(path)
        frame = self._sound_frame(name, len(raw))
        if frame is None:
            frame = compress(raw)
            self.replace(name, frame, "its bytes did not fit its name when it was written anew")
        return StoredObject(name, len(raw), len(frame))

    def replace(self, name: str, frame: bytes, reason: str) -> Path | None:
        """Write an object; what lies in its place is kept in the quarantine.

        Args:
            name: The object's SHA-256.
            frame: What its file must hold; the caller has checked it.
            reason: What was wrong with the file that is replaced.

        Returns:
            The kept copy, or None where nothing was in its place.

        Raises:
            StoreAccessError: The object cannot be written.
        """
        path = self.root.object(name)
        aside = self._keep(name, path, reason)
        self._write(path, frame)
        return aside

    def put_aside(self, name: str, reason: str) -> Path | None:
        """Move an object that is damaged into the quarantine; a sound one stays, whoever wrote it meanwhile.

        Returns:
            Its new place, or None where there is no damaged one.

        Raises:
            StoreAccessError: It cannot be moved.
        """
        if self.check(name) is None:
            return None
        moved = move_away(self.root, name, self.root.object(name), reason)
        if moved is not None and self._is_sound(name, moved):
            # A writer was quicker than this move.
            with suppress(OSError):
                os.link(moved, self.root.object(name))
        return moved

    def _keep(self, name: str, path: Path, reason: str) -> Path | None:
        if not os.path.lexists(path):
            return None
        folder = new_folder(self.root, name)
        kept = keep_copy(path, folder)
        if kept is None:
            with suppress(OSError):
                folder.rmdir()
            return None
        note_reason(self.root, folder, {"path": path.relative_to(self.root.path).as_posix(), "reason": reason})
        return kept

    def _write(self, path: Path, frame: bytes) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._make_shard(path, len(frame))
                return write_atomic(path, frame)
            except StoreAccessError as error:
                # `prune` may have taken the folder away, because it was empty, and another writer made it again.
                if not isinstance(error.__cause__, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                    raise
        return None

    def _make_shard(self, path: Path, size: int) -> None:
        shard = path.parent
        try:
            if not shard.is_dir():
                move_away(self.root, path.stem, shard, "it lay where a folder of objects must be")
                make_folder(shard)
                sync_folder(shard.parent)
        except OSError as error:
            raise refused(error, path, size) from error

    def glance(self, name: str) -> Damage | None:
        """Find out whether an object is missing or empty, without reading it."""
        path, member = self.root.object(name), f"object {name}"
        try:
            status = path.stat()
        except OSError as error:
            return unreadable(member, path, error)
        if not stat.S_ISREG(status.st_mode):
            return unreadable(member, path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        return None if status.st_size else Damage(member, str(path), "it is empty: 0 bytes", EMPTY)

    def check(self, name: str, size: int | None = None, stored: int | None = None) -> Damage | None:
        """Read an object, compare it with its name, and say what is wrong with it.

        Args:
            name: The object's SHA-256.
            size: Its raw size as the manifest records it; the object is never unpacked to more.
            stored: Size of its file as the manifest records it. Versions of zstd differ in it, so alone it proves
                nothing.
        """
        path, member, cut = self.root.object(name), f"object {name}", False
        try:
            with path.open("rb") as stream:
                found = frame_digest(stream, size)
            if found == name:
                return None
            why = "its bytes have another digest"
        except OSError as error:
            return unreadable(member, path, error)
        except CutFrameError as error:
            why, cut = str(error), True
        except ValueError as error:
            why = str(error)
        return diagnose(member, path, Content("object", name), why, size=stored, cut=cut)

    def _is_sound(self, name: str, path: Path) -> bool:
        try:
            with path.open("rb") as stream:
                return frame_digest(stream) == name
        except (OSError, ValueError):
            return False

    def read(self, name: str, size: int | None = None) -> bytes:
        """Return the raw bytes of an object, after checking them.

        Args:
            name: The object's SHA-256.
            size: Its raw size as the manifest records it; the object is never unpacked to more.

        Raises:
            NoEntryError: There is no such object.
            CorruptError: The file is damaged.
            StoreAccessError: The file cannot be read.
        """
        return self._unpacked(name, self._frame(name), size)

    def _unpacked(self, name: str, frame: bytes, size: int | None) -> bytes:
        try:
            raw = decompress(frame, size)
            if sha256(raw) != name:
                raise ValueError("its bytes have another digest")
        except ValueError as error:
            path = str(self.root.object(name))
            raise CorruptError(f"Object {name} is damaged", str(error), _REBUILD, path=path) from error
        return raw

    def _frame(self, name: str) -> bytes:
        path = self.root.object(name)
        try:
            return read_whole(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoEntryError(
                f"Object {name} is not in the store",
                f"{path} does not exist",
                _REBUILD,
                path=str(path),
            ) from error
        except IsADirectoryError as error:
            raise CorruptError(
                f"Object {name} is damaged", "a folder lies in its place", _REBUILD, path=str(path)
            ) from error
        except OSError as error:
            raise StoreAccessError(
                f"Object {name} cannot be read",
                error.strerror or str(error),
                "Let this user read the cache folder",
                path=str(path),
            ) from error

    def _sound_frame(self, name: str, size: int) -> bytes | None:
        try:
            frame = self._frame(name)
            self._unpacked(name, frame, size)
            return frame
        except (NoEntryError, CorruptError, StoreAccessError):
            return None
