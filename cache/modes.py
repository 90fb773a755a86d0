"""Modes of what precast creates: open to nobody by accident, and to a group where the folder around it is.

A group shares a store by making its root writable for the group, with the setgid bit so that everything below gets the
same group. What is created there gets the same rights, whatever the umask, as with git's `core.sharedRepository=group`.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["make_folder", "open_new"]

_PLAIN_FOLDER = 0o755
_PLAIN_FILE = 0o644
_SHARED_FOLDER = stat.S_IRWXG | stat.S_ISGID
_SHARED_FILE = stat.S_IRGRP | stat.S_IWGRP


def make_folder(folder: Path) -> None:
    """Create a folder and those around it, if they are not there.

    Nobody but the owner may write to it, and the umask may take more away; in a folder that is shared with its group
    the group gets the same rights again. Rights of others are never handed down.

    Raises:
        OSError: It cannot be created, or something else has its name.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    around = folder.parent.stat()
    with suppress(FileExistsError):
        folder.mkdir(mode=_PLAIN_FOLDER)
        if _is_shared(around):
            _share_folder(folder, around)
    if not folder.is_dir() and os.path.lexists(folder):  # an empty one may be gone again
        raise NotADirectoryError(20, os.strerror(20), str(folder))


def open_new(path: Path, flags: int) -> int:
    """Create a file and open it, with the rights that `make_folder` gives to folders.

    Args:
        path: The file.
        flags: More flags of `os.open`, such as `os.O_WRONLY | os.O_EXCL`; without `O_EXCL` it may be there already.

    Returns:
        The open file's descriptor.

    Raises:
        OSError: It cannot be created or opened.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, _PLAIN_FILE)
    with suppress(OSError):  # somebody else's file stays as it is
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & _SHARED_FILE != _SHARED_FILE and _is_shared(path.parent.stat()):
            os.fchmod(descriptor, mode | _SHARED_FILE)
    return descriptor


def _is_shared(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWGRP)


def _share_folder(folder: Path, around: os.stat_result) -> None:
    """Give a new folder the group's rights of the folder around it."""
    with suppress(OSError):
        if folder.stat().st_gid != around.st_gid:  # no setgid bit: the group is that of this process
            os.chown(folder, -1, around.st_gid)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | (around.st_mode & _SHARED_FOLDER))
