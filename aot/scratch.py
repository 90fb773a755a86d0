"""Temporary folders that do not outlive their process for long.

Whoever makes one holds a lock on a file in it. A process that is killed cannot tidy up, but its lock falls free, and
the next one that makes such a folder removes what nobody holds. Age decides nothing: a compile may take hours.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from precast.errors import StoreAccessError

__all__ = ["no_scratch", "optional_scratch", "scratch_folder", "sweep_scratch"]

_PREFIXES = ("precast-compile-", "precast-load-")
_LOCK = "owner.lock"


@contextmanager
def scratch_folder(use: str) -> Iterator[Path]:
    """Make a private folder below the temporary folder, and remove it afterwards; also remove what dead processes left.

    Args:
        use: `compile` or `load`.

    Raises:
        OSError: The folder cannot be made.
    """
    sweep_scratch()
    folder, lock = _make(f"precast-{use}-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def optional_scratch(use: str) -> Iterator[Path | None]:
    """Make a folder as `scratch_folder` does, or give None where none can be made: most loads need none."""
    with ExitStack() as stack:
        folder = None
        with suppress(OSError):
            folder = stack.enter_context(scratch_folder(use))
        yield folder


def no_scratch(why: str, path: str) -> StoreAccessError:
    """Return the error for a temporary folder that a load needs and cannot use.

    Args:
        why: What is wrong with it.
        path: The file or folder concerned.
    """
    return StoreAccessError(
        "a payload could not be unpacked into the temporary folder",
        why,
        "free space or give access there, or name another folder in TMPDIR",
        path=path,
    )


def sweep_scratch() -> None:
    """Remove the folders of processes of this user that ended without doing so."""
    with os.scandir(tempfile.gettempdir()) as found:
        names = [item.path for item in found if item.name.startswith(_PREFIXES)]
    for name in names:
        with suppress(OSError):
            _remove_if_dead(Path(name))


def _make(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        # Somebody may take the folder for a dead one's before its lock is held: then it is gone, and the next is made.
        with suppress(FileNotFoundError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            if _holds(lock, folder / _LOCK, otherwise=True):
                return folder, lock
            os.close(lock)


def _holds(lock: int, path: Path, *, otherwise: bool) -> bool:
    """Try to lock an open file, and tell whether it is held now and still has its name.

    Args:
        lock: Descriptor of the file.
        path: Its name.
        otherwise: What to tell where the file system has no locks: a maker goes on, and nobody may remove anything.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return otherwise
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _remove_if_dead(folder: Path) -> None:
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # refused where it holds anything: then it is none of ours
        return
    try:
        if _holds(lock, folder / _LOCK, otherwise=False):
            for item in folder.iterdir():
                if item.name != _LOCK:
                    _remove(item)
            # Last, so that a sweep that is killed or refused can be done again.
            (folder / _LOCK).unlink()
            folder.rmdir()
    finally:
        os.close(lock)


def _remove(item: Path) -> None:
    if item.is_dir() and not item.is_symlink():
        shutil.rmtree(item)
    else:
        item.unlink()
