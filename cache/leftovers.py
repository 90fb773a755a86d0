"""Leftovers: half-written things that only a writer that died can have left."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from precast.cache.atomic import TEMPORARY_SUFFIX
from precast.cache.root import CacheRoot

__all__ = [
    "ASIDE",
    "SHARD",
    "TEMPORARY",
    "half_written",
    "matching",
    "remove",
    "remove_unfinished",
    "unfinished",
]

# Names that `unique` makes: of folders for a key, and of temporary files.
ASIDE = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")
TEMPORARY = re.compile(rf"\..+-[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}")

SHARD = re.compile(r"[0-9a-f]{2}")


def matching(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield what lies in a folder under a name of ours, sorted. Links are never ours."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    yield from (path for path in paths if pattern.fullmatch(path.name) and not path.is_symlink())


def unfinished(layout: CacheRoot) -> Iterator[Path]:
    """Yield what is staged, and temporary files beside objects. While somebody writes, they may be that writer's."""
    yield from matching(layout.staging, ASIDE)
    yield from matching(layout.staging, TEMPORARY)
    for shard in matching(layout.objects, SHARD):
        yield from matching(shard, TEMPORARY)


def half_written(folder: Path) -> tuple[Path, ...]:
    """Return the temporary files of short writes in a folder of many files. Somebody may be writing one just now."""
    try:
        with os.scandir(folder) as found:
            names = [item.name for item in found if item.name.startswith(".") and TEMPORARY.fullmatch(item.name)]
    except OSError:
        return ()
    return tuple(folder / name for name in sorted(names))


def remove_unfinished(layout: CacheRoot) -> None:
    """Remove all that is unfinished. The caller holds the store's lock and has seen that nobody writes."""
    for path in unfinished(layout):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it. What cannot be removed stays."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
