"""Preflight: what a root must be able to do, and the room that must be there, found out before any work is done.

A compile takes minutes. Where its result could not be stored, it is refused at once, with numbers and the kind of file
system.
"""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import free_space, refused, sync_folder, unique
from precast.cache.canonical import sha256
from precast.cache.filesystem import filesystem_type
from precast.cache.leftovers import remove
from precast.cache.root import CacheRoot
from precast.cache.sizes import format_size
from precast.errors import StoreAccessError

__all__ = ["ROOT_BYTES", "SCRATCH_BYTES", "require_room", "require_working_root"]

ROOT_BYTES = 4 * 2**20
"""Free bytes that a root must have: the smallest real entry, four layers of a toy model, takes 0.8 MB; five times that
is still less than any model that is worth the compile."""

SCRATCH_BYTES = 32 * 2**20
"""Free bytes that the temporary folder must have: compiling that toy model two pieces at a time takes 15 MB there."""

# Named by no key or object: the digest of a word.
_NAME = sha256(b"precast probe")
_CONTENT = b"precast\n"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def require_room(root: CacheRoot, scratch: Path) -> None:
    """Refuse to begin where the root's file system or that of the temporary folder is as good as full.

    Args:
        root: The layout; where it does not exist yet, its nearest parent stands for it.
        scratch: The folder for temporary files.

    Raises:
        StoreAccessError: There is too little room; it names the file system, what is needed and what is free.
    """
    _require_free(root.path, ROOT_BYTES, "the cache", "Run `precast prune --max-size SIZE`, or pass --cache-dir")
    _require_free(scratch, SCRATCH_BYTES, "the compile's temporary files", "Free space there, or set TMPDIR")
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < ROOT_BYTES:
        raise StoreAccessError(
            f"This process may write files of {limit} bytes at most, and {ROOT_BYTES} bytes are needed",
            f"that is its file-size limit; {free_space(_existing(root.path))}",
            "Raise the limit: `ulimit -f unlimited`",
            path=str(root.path),
        )


def require_working_root(root: CacheRoot) -> None:
    """Refuse a root on which all or nothing does not hold, as on most mounts of object stores. Leaves nothing behind.

    Tried in one folder of `staging`, because what a process that is killed here leaves is removed from there.

    Raises:
        StoreAccessError: The root cannot be written, or its file system lacks something that the store needs; the
            error names it, and the type of the file system.
    """
    folder = root.staging / unique(_NAME)
    tried = ["making a folder"]
    try:
        folder.mkdir()
        for what, step in _steps(folder):
            tried.append(what)
            step()
    except OSError as error:
        if error.errno in (*_FULL, *_CLOSED):
            raise refused(error, folder, len(_CONTENT)) from error
        raise _unfit(root, tried[-1], error.strerror or str(error)) from error
    finally:
        remove(folder)


def _steps(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    first, second = folder / "first", folder / "second"
    below, moved = folder / "below", folder / "moved"
    yield "making a new file", lambda: _make(first, b"")
    yield "refusing to make a file that is there", lambda: _must_refuse(first)
    yield "writing a file", lambda: _make(second, _CONTENT)
    yield "renaming a file over another", lambda: os.replace(second, first)  # noqa: PTH105 - one kind of call here
    yield "reading what was renamed", lambda: _must_hold(first, _CONTENT)
    yield "syncing a folder", lambda: sync_folder(folder)
    yield "making a folder in a folder", below.mkdir
    yield "writing into it", lambda: _make(below / "file", _CONTENT)
    yield "renaming a folder that is not empty", lambda: os.rename(below, moved)  # noqa: PTH104
    yield "reading what was renamed with its folder", lambda: _must_hold(moved / "file", _CONTENT)


def _make(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _must_refuse(path: Path) -> None:
    with suppress(FileExistsError):
        _make(path, b"")
        raise OSError(errno.EIO, "it made a second one")


def _must_hold(path: Path, data: bytes) -> None:
    if path.read_bytes() != data:
        raise OSError(errno.EIO, "it holds something else")


def _unfit(root: CacheRoot, what: str, why: str) -> StoreAccessError:
    return StoreAccessError(
        f"The cache at {root.path} is on a file system that cannot hold one",
        f"{what} does not work there: {why}; its type is {filesystem_type(root.staging)}",
        "Pass --cache-dir with a folder on a local disk or a network file system, and share it with --remote",
        path=str(root.path),
    )


def _require_free(folder: Path, needed: int, what: str, hint: str) -> None:
    place = _existing(folder)
    try:
        usage = os.statvfs(place)
    except OSError:
        return
    free = usage.f_bavail * usage.f_frsize
    # Some file systems tell no sizes at all; then only the write itself can find out.
    full = usage.f_blocks and free < needed
    if full or (usage.f_files and not usage.f_favail):
        raise StoreAccessError(
            f"There is too little space for {what}: {needed} bytes ({format_size(needed)}) are needed in {folder}",
            f"{free_space(place)} ({format_size(free)})",
            hint,
            path=str(folder),
        )


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place
