"""Who may write where: folders that refuse a write, with owner and mode, found without writing anything."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from precast.cache.places import Place
from precast.cache.root import CacheRoot

__all__ = [
    "NO_FOLDER",
    "READ_ONLY",
    "UnwritableFolder",
    "is_writable",
    "nearest",
    "refused",
    "unwritable_folders",
]

READ_ONLY = "its file system is read-only"
NO_FOLDER = "it is not a folder"


@dataclass(frozen=True, slots=True)
class UnwritableFolder:
    """A folder, or the file of a lock, that this process may not write, or not use for what it must.

    Attributes:
        place: The folder with its rights.
        reason: Why a write would fail, with this process's own uid.
    """

    place: Place
    reason: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.place.path

    @property
    def owner(self) -> str:
        """Its owner, by name where the name is known, else by number."""
        return self.place.owner

    @property
    def mode(self) -> str:
        """Its mode, such as `drwxr-xr-x`."""
        return self.place.mode


def unwritable_folders(root: CacheRoot) -> tuple[UnwritableFolder, ...]:
    """Return every folder of a store that a writer needs and may not write; empty where all is well.

    A folder that does not exist yet stands for its nearest parent, because that is where it would be created.
    """
    return refused(nearest(folder) for folder in root.folders)


def is_writable(folder: Path) -> bool:
    """Tell whether this process may write a folder, or create it where it is not there yet."""
    return not refused([nearest(folder)])


def nearest(path: Path) -> Path:
    """Return a path, or the nearest folder above it that is there and can be seen."""
    place = path.absolute()
    # `Path.exists` raises below a folder that may not be entered.
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110
        place = place.parent
    return place


def refused(paths: Iterable[Path], *, files: bool = False) -> tuple[UnwritableFolder, ...]:
    """Return those of some folders that this process may not write, each once.

    Args:
        paths: Folders that exist.
        files: Whether files are meant as well; else a file is refused because it is no folder.
    """
    found = (_refusal(path, files=files) for path in dict.fromkeys(paths))
    return tuple(refusal for refusal in found if refusal is not None)


def _refusal(path: Path, *, files: bool) -> UnwritableFolder | None:
    folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises where the way is barred
    if (folder or files) and os.access(path, os.W_OK | os.X_OK if folder else os.W_OK):
        return None
    try:
        return UnwritableFolder(Place.at(path), _reason(path, is_fit=folder or files))
    except OSError:  # somebody took it away meanwhile
        return None


def _reason(path: Path, *, is_fit: bool) -> str:
    if not is_fit:
        return NO_FOLDER
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return READ_ONLY
    return f"uid {os.geteuid()} may not write it"
