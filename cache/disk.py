"""What a folder costs on disk, as `du` counts: links are not followed, a hard-linked file counts once."""

import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskItem", "DiskUsage", "walk"]

# The unit of st_blocks, whatever the file system's own block size is (POSIX, <sys/stat.h>).
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class DiskItem:
    """One name on disk: a file, a folder or a link.

    Attributes:
        path: The name.
        inode: Device and inode number; two names of one file share it.
        bytes: The larger of its size and what is allocated for it, so that a limit holds in either sense.
        folder: Whether it is a folder.
        modified_ns: When it was last written, in nanoseconds since the epoch.
    """

    path: Path
    inode: tuple[int, int]
    bytes: int
    folder: bool
    modified_ns: int


def walk(path: Path) -> Iterator[DiskItem]:
    """Yield a path and everything below it. What vanishes meanwhile or cannot be read is left out."""
    try:
        status = path.lstat()
    except OSError:
        return
    folder = stat.S_ISDIR(status.st_mode)
    size = max(status.st_size, status.st_blocks * _BLOCK)
    yield DiskItem(path, (status.st_dev, status.st_ino), size, folder, status.st_mtime_ns)
    if folder:
        with suppress(OSError):
            for below in sorted(path.iterdir()):
                yield from walk(below)


class DiskUsage:
    """A running total, from which items can be taken away before they are really removed.

    Args:
        items: Everything that counts.
    """

    def __init__(self, items: Iterable[DiskItem]) -> None:
        self.bytes = 0
        self.files = 0
        self._names: Counter[tuple[int, int]] = Counter()
        for item in items:
            self._names[item.inode] += 1
            self.files += not item.folder
            if self._names[item.inode] == 1:
                self.bytes += item.bytes

    def remove(self, items: Iterable[DiskItem]) -> tuple[int, int]:
        """Take items away.

        Returns:
            Bytes and files that go with them. The last name of a file takes the bytes along.
        """
        freed, files = 0, 0
        for item in items:
            self._names[item.inode] -= 1
            files += not item.folder
            if self._names[item.inode] == 0:
                freed += item.bytes
        self.bytes -= freed
        self.files -= files
        return freed, files
