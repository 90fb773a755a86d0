"""The temporary folder: which one is used, and why none can be."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from precast.cache.access import UnwritableFolder, nearest, refused
from precast.cache.places import Place, details, listed, process_text
from precast.errors import StoreAccessError

__all__ = ["require_scratch", "scratch_candidates", "unusable_scratch"]

# As Python's tempfile looks for one, but for the current folder, where nobody wants temporary files.
_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - places to look at, not to write to


def scratch_candidates(environ: Mapping[str, str]) -> tuple[tuple[Path, str], ...]:
    """Return each temporary folder that could be meant, the strongest first, with the variable that names it.

    Args:
        environ: The environment.

    Returns:
        Folders and variables; `default` in place of a variable for the system's own folders.
    """
    found: dict[Path, str] = {}
    for name in _VARIABLES:
        if environ.get(name):
            found.setdefault(Path(environ[name]).absolute(), name)
    for text in _FOLDERS:
        found.setdefault(Path(text), "default")
    return tuple(found.items())


def unusable_scratch(environ: Mapping[str, str] | None = None) -> tuple[UnwritableFolder, ...]:
    """Return why a compile can use no temporary folder; empty where it can.

    It must be writable, and mounted so that code in it may run: what is compiled there is mapped from there.

    Args:
        environ: The environment; None means `os.environ`.
    """
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        return tuple(_against(os.environ if environ is None else environ))
    barred = refused([folder])
    if barred:
        return barred
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        reason = "code in it may not run, because its file system is mounted noexec"
        return (UnwritableFolder(Place.at(folder), reason),)
    return ()


def require_scratch(purpose: str) -> None:
    """Refuse to go on where there is no temporary folder at all.

    Args:
        purpose: What it is needed for, in words that go on `There is no temporary folder to`.

    Raises:
        StoreAccessError: There is none; its details list each that could be meant.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        wrong = [(each.place, each.reason) for each in unusable_scratch()]
        raise StoreAccessError(
            f"There is no temporary folder to {purpose}",
            f"this is {process_text()}; {listed(wrong)}",
            f"Give a folder that uid {os.geteuid()} may write with TMPDIR",
            details=details(wrong, ""),
        ) from None


def _against(environ: Mapping[str, str]) -> Iterator[UnwritableFolder]:
    """Yield what speaks against each temporary folder that could be meant."""
    for folder, origin in scratch_candidates(environ):
        if os.path.exists(folder):  # noqa: PTH110 - Path.exists raises where the way is barred
            full = UnwritableFolder(Place.at(folder), "nothing can be written into it; it may be full")
            yield from refused([folder]) or (full,)
        elif origin != "default":
            yield UnwritableFolder(Place.at(nearest(folder)), f"the temporary folder {folder} does not exist in it")
