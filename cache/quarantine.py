"""The quarantine: where bad copies go, so that no reader meets them again and people can still look at them.

Every bad copy lies in a folder of its own, named by the key or object that it was taken from, beside a `reason.json`.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import refused, sync_folder, unique, write_atomic
from precast.cache.canonical import Json, canonical_json, sha256
from precast.cache.fields import HEX64
from precast.cache.modes import make_folder
from precast.cache.root import CacheRoot
from precast.errors import StoreAccessError

__all__ = ["keep_copy", "move_away", "new_folder", "note_reason", "write_over"]

_REASON = "reason.json"


def new_folder(root: CacheRoot, name: str) -> Path:
    """Make an empty folder in the quarantine.

    Args:
        root: The layout.
        name: The key or the object's name that it is for; anything else is named by its digest.

    Raises:
        StoreAccessError: The quarantine cannot be written.
    """
    folder = root.quarantine / unique(name if HEX64.fullmatch(name) else sha256(name.encode()))
    try:
        make_folder(folder)
    except OSError as error:
        raise refused(error, folder) from error
    return folder


def keep_copy(path: Path, folder: Path) -> Path | None:
    """Keep a bad file in a folder of the quarantine, by a second name where the file system has such; it stays.

    What is no file is moved there.

    Returns:
        The copy; None where there is nothing.

    Raises:
        StoreAccessError: It cannot be kept.
    """
    copy = folder / path.name
    try:
        if path.is_symlink() or not path.is_file():
            path.rename(copy)
            return copy
        try:
            os.link(path, copy)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(path, copy)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refused(error, copy) from error
    return copy


def move_away(root: CacheRoot, name: str, path: Path, reason: str) -> Path | None:
    """Move what lies in the way of the store, or is bad, into the quarantine. A link is moved, never what it names.

    Args:
        root: The layout.
        name: As of `new_folder`.
        path: What is moved.
        reason: Why, for people.

    Returns:
        Its new place; None where there is nothing.

    Raises:
        StoreAccessError: It cannot be moved.
    """
    if not os.path.lexists(path):
        return None
    folder = new_folder(root, name)
    try:
        path.rename(folder / path.name)
        sync_folder(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        with suppress(OSError):
            folder.rmdir()
        return None
    except OSError as error:
        raise refused(error, folder) from error
    note_reason(root, folder, {"path": path.relative_to(root.path).as_posix(), "reason": reason})
    return folder / path.name


def note_reason(root: CacheRoot, folder: Path, document: dict[str, Json]) -> None:
    """Write down why something is in a folder of the quarantine. A full disk must not undo that it is there."""
    with suppress(StoreAccessError):
        write_atomic(folder / _REASON, canonical_json(document), staging=root.staging)


def write_over(root: CacheRoot, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file as `write_atomic` does; a stray folder in its place is moved away first.

    Raises:
        StoreAccessError: The file cannot be written.
    """
    if path.is_dir() and not path.is_symlink():
        move_away(root, path.name, path, "it lay where a file of the store must be")
    write_atomic(path, data, durable=durable)
