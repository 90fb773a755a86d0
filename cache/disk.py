"""What things cost on disk, as `du` counts: links are not followed, a hard-linked file counts once.

Paths are strings and what belongs together is added up at once: a root of 10,000 entries has ten times as many files.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["NOTHING", "DiskUsage", "Extent", "SharedFile", "extent", "extent_of", "joined", "parts", "read_quickly"]

# The unit of st_blocks, whatever the file system's own block size is (POSIX, <sys/stat.h>).
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One name of a file that has several.

    Attributes:
        inode: Device and inode number.
        bytes: As `Extent.bytes`; only its last name takes them along.
        allocated: As `Extent.allocated`.
        names: How many names it has, anywhere on its file system.
    """

    inode: tuple[int, int]
    bytes: int
    allocated: int
    names: int


@dataclass(frozen=True, slots=True)
class Extent:
    """What some names cost together.

    Attributes:
        bytes: For each file, folder and link that has one name only, the larger of its size and what is allocated
            for it, so that a limit holds in either sense.
        allocated: What the file system gets back for them.
        files: How many names are no folders, those of `shared` included.
        modified_ns: When the topmost of them was last written, in nanoseconds since the epoch.
        shared: Every name of a file that has several.
    """

    bytes: int
    allocated: int
    files: int
    modified_ns: int
    shared: tuple[SharedFile, ...] = ()


NOTHING = Extent(0, 0, 0, 0)


def parts(path: str | os.DirEntry[str]) -> Iterator[Extent]:
    """Measure a path and each name below it; what vanishes meanwhile or cannot be read is left out."""
    top = extent_of(path)
    if top is not None:
        yield top
        folder = path.is_dir(follow_symlinks=False) if isinstance(path, os.DirEntry) else _is_folder(path)
        for child in _children(os.fspath(path)) if folder else ():
            yield from parts(child)


def extent(path: str | os.DirEntry[str]) -> Extent | None:
    """Measure a path with everything below it; None where there is nothing."""
    found = parts(path)
    top = next(found, None)
    return None if top is None else joined(top, found)


def extent_of(path: str | os.DirEntry[str]) -> Extent | None:
    """Measure one name without what is below it; None where there is nothing."""
    try:
        status = path.stat(follow_symlinks=False) if isinstance(path, os.DirEntry) else os.lstat(path)
    except OSError:
        return None
    size, allocated = status.st_size, status.st_blocks * _BLOCK
    if allocated > size:
        size = allocated
    if status.st_nlink > 1:
        if stat.S_ISDIR(status.st_mode):
            return Extent(size, allocated, 0, status.st_mtime_ns)
        shared = SharedFile((status.st_dev, status.st_ino), size, allocated, status.st_nlink)
        return Extent(0, 0, 1, status.st_mtime_ns, (shared,))
    return Extent(size, allocated, 0 if stat.S_ISDIR(status.st_mode) else 1, status.st_mtime_ns)


def read_quickly(path: str) -> bytes:
    """Read a file, one of thousands, for each of which a file object would cost more than the reading.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def joined(top: Extent, others: Iterable[Extent]) -> Extent:
    """Add up what several things cost; the first one's time is kept."""
    size, allocated, files, shared = top.bytes, top.allocated, top.files, top.shared
    for other in others:
        size += other.bytes
        allocated += other.allocated
        files += other.files
        if other.shared:
            shared += other.shared
    return Extent(size, allocated, files, top.modified_ns, shared)


def _children(folder: str) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


class DiskUsage:
    """A running total, from which things can be taken away before they are really removed.

    Attributes:
        bytes: What everything takes, as `du` counts.
        files: How many names are no folders.
        allocated: What the file system has given for it.
        regained: What the file system got back for all that was taken away. A file whose other names lie elsewhere
            gives nothing back.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.allocated = 0
        self.regained = 0
        self._here: dict[tuple[int, int], int] = {}
        self._gone: dict[tuple[int, int], int] = {}

    def add(self, item: Extent) -> None:
        """Count something."""
        self.bytes += item.bytes
        self.files += item.files
        self.allocated += item.allocated
        for shared in item.shared:
            names = self._here.get(shared.inode, 0)
            self._here[shared.inode] = names + 1
            if not names:
                self.bytes += shared.bytes
                self.allocated += shared.allocated

    def remove(self, item: Extent) -> tuple[int, int]:
        """Take something away that was counted.

        Returns:
            Bytes and files that go with it. The last name of a file takes the bytes along.
        """
        freed = item.bytes
        self.regained += item.allocated
        for shared in item.shared:
            self._here[shared.inode] -= 1
            self._gone[shared.inode] = self._gone.get(shared.inode, 0) + 1
            freed += 0 if self._here[shared.inode] else shared.bytes
            if self._gone[shared.inode] == shared.names:
                self.regained += shared.allocated
        self.bytes -= freed
        self.files -= item.files
        return freed, item.files
