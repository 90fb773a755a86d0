"""Writes that happen completely or not at all, also when the machine stops in the middle."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from precast.cache.sizes import format_size
from precast.errors import StoreAccessError

__all__ = ["TEMPORARY_SUFFIX", "refused", "sync_folder", "unique", "write_atomic"]

TEMPORARY_SUFFIX = ".tmp"

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file beside its final place, then move it there.

    Args:
        path: The final place; its folder must exist.
        data: The whole content.
        durable: Whether to wait until the disk has it. False is for files whose loss costs nothing.

    Raises:
        StoreAccessError: The file cannot be written; where no space is left, it names the file system and the bytes.
    """
    temporary = path.with_name(f".{unique(path.name)}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        raise refused(error, path, len(data)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unique(name: str) -> str:
    """Return a name that no other process makes, without host, process or time in it."""
    return f"{name}-{os.urandom(8).hex()}"


def refused(error: OSError, path: Path, size: int = 0) -> StoreAccessError:
    """Say for people why the file system refused a write.

    Args:
        error: What the operating system said.
        path: The file or folder that was to be written.
        size: Bytes that were to be written, where that matters.
    """
    if error.errno not in _NO_ROOM or not size:
        return StoreAccessError(
            f"{path} cannot be written",
            error.strerror or str(error),
            "Pass --cache-dir or set PRECAST_CACHE_DIR to a writable folder",
            path=str(path),
        )
    mount = _mount_point(path.parent)
    usage = os.statvfs(mount)
    return StoreAccessError(
        f"There is no space for {size} bytes ({format_size(size)}) in {path.parent}",
        f"{error.strerror}: the file system at {mount} has {usage.f_bavail * usage.f_frsize} bytes free",
        "Run `precast prune --max-size SIZE`, or pass --cache-dir with a folder on another file system",
        path=str(path),
    )


def _mount_point(folder: Path) -> Path:
    place = folder.absolute()
    while not os.path.ismount(place):
        place = place.parent
    return place
