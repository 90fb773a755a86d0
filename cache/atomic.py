"""Writes that happen completely or not at all, also when the machine stops in the middle."""

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path

from precast.cache.filesystem import filesystem_type
from precast.cache.modes import open_new
from precast.cache.sizes import format_size
from precast.errors import StoreAccessError

__all__ = ["TEMPORARY_SUFFIX", "free_space", "read_whole", "refused", "sync_folder", "unique", "write_atomic"]

TEMPORARY_SUFFIX = ".tmp"

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What file systems answer that cannot sync a folder: there, names are as durable as they get.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
_LOOKS = 4


def write_atomic(path: Path, data: bytes, *, durable: bool = True, staging: Path | None = None) -> None:
    """Write a file beside its final place, then move it there.

    Args:
        path: The final place; its folder must exist.
        data: The whole content.
        durable: Whether to wait until the disk has it. False is for files whose loss costs nothing.
        staging: Write the file here first, on the same file system, where beside its final place it could stay.

    Raises:
        StoreAccessError: The file cannot be written; where no space is left, it names the file system and the bytes.
    """
    temporary = (staging or path.parent) / f".{unique(path.name)}{TEMPORARY_SUFFIX}"
    try:
        _write_new(temporary, data, durable=durable)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refused(error, path, len(data)) from error
        raise
    if durable:
        try:
            sync_folder(path.parent)
        except OSError as error:
            raise refused(error, path, len(data)) from error


def _write_new(path: Path, data: bytes, *, durable: bool) -> None:
    descriptor = open_new(path, os.O_WRONLY | os.O_EXCL)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(path: Path) -> bytes:
    """Read a file; where its handle goes stale, because another host replaced it meanwhile, look again.

    Raises:
        FileNotFoundError: There is none, or it is replaced or removed time and again.
        OSError: It cannot be read.
    """
    for _ in range(_LOOKS):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    raise FileNotFoundError(errno.ENOENT, "It was removed while it was read", str(path))


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder, where the file system can do that.

    Raises:
        OSError: The disk refused.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
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
    if error.errno not in _NO_ROOM:
        return StoreAccessError(
            f"{path} cannot be written",
            error.strerror or str(error),
            "Pass --cache-dir or set PRECAST_CACHE_DIR to a writable folder",
            path=str(path),
        )
    needed = f"{size} bytes ({format_size(size)})" if size else "another name"
    limit = _size_limit() if error.errno == errno.EFBIG else ""
    return StoreAccessError(
        f"There is no space for {needed} in {path.parent}",
        f"{error.strerror}: {limit}{free_space(path.parent)}",
        "Run `precast prune --max-size SIZE`, or pass --cache-dir with a folder on another file system",
        path=str(path),
    )


def free_space(folder: Path) -> str:
    """Say which file system holds a folder, and how much of it is free."""
    mount = _mount_point(folder)
    told = f"the file system at {mount} ({filesystem_type(mount)})"
    try:
        usage = os.statvfs(mount)
    except OSError:
        return f"{told} does not say how much is free"
    inodes = " and no free inodes" if usage.f_files and not usage.f_favail else ""
    return f"{told} has {usage.f_bavail * usage.f_frsize} bytes free{inodes}"


def _size_limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return "" if soft == resource.RLIM_INFINITY else f"this process may write files of {soft} bytes at most; "


def _mount_point(folder: Path) -> Path:
    place = folder.absolute()
    while not os.path.ismount(place):
        place = place.parent
    return place
