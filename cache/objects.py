"""The objects of the store: compressed payloads, each named by the SHA-256 of its raw bytes.

Content decides the name, so an object is shared by all entries that need it, is never changed, and proves itself when
it is read.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import refused, write_atomic
from precast.cache.canonical import sha256
from precast.cache.frames import compress, decompress
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
            self._write(path, frame)
        return StoredObject(name, len(raw), len(frame))

    def _write(self, path: Path, frame: bytes) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as error:
                raise refused(error, path, len(frame)) from error
            try:
                return write_atomic(path, frame)
            except StoreAccessError:
                # `prune` may have taken the folder away, because it was empty.
                if path.parent.is_dir() or attempt == _ATTEMPTS - 1:
                    raise
        return None

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
            return path.read_bytes()
        except FileNotFoundError as error:
            raise NoEntryError(
                f"Object {name} is not in the store",
                f"{path} does not exist",
                _REBUILD,
                path=str(path),
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
