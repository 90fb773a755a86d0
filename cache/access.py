"""Who may write where: all folders that refuse a write, found before any work is done."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from precast.cache.root import CacheRoot

__all__ = ["UnwritableFolder", "unwritable_folders"]


@dataclass(frozen=True, slots=True)
class UnwritableFolder:
    """A folder that this process may not write.

    Attributes:
        path: The folder.
        owner: Its owner, by name where the name is known, else by number.
        mode: Its mode, such as `drwxr-xr-x`.
        reason: Why a write would fail, with this process's own uid.
    """

    path: Path
    owner: str
    mode: str
    reason: str


def unwritable_folders(root: CacheRoot) -> tuple[UnwritableFolder, ...]:
    """Return every folder that a writer needs and may not write; empty where all is well.

    A folder that does not exist yet stands for its nearest parent, because that is where it would be created.
    """
    needed = dict.fromkeys(_nearest(folder) for folder in (root.path, *root.folders))
    return tuple(refusal for folder in needed if (refusal := _refusal(folder)) is not None)


def _nearest(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _refusal(folder: Path) -> UnwritableFolder | None:
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return None
    status = folder.stat()
    return UnwritableFolder(folder, _owner(status.st_uid), stat.filemode(status.st_mode), _reason(folder))


def _reason(folder: Path) -> str:
    if not folder.is_dir():
        return "it is not a folder"
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    return f"uid {os.geteuid()} may not write it"


def _owner(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
