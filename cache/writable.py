"""Writable or not: all that a precompile could not write, told at once and with the command that mends it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from precast.cache.access import NO_FOLDER, READ_ONLY, UnwritableFolder, nearest, refused, unwritable_folders
from precast.cache.places import details, listed, process_text, quoted, shell
from precast.cache.root import CacheRoot
from precast.cache.scratch import unusable_scratch
from precast.errors import StoreAccessError

__all__ = ["require_writable"]


def require_writable(root: CacheRoot, *, output: Path | None = None, compiles: bool = True) -> None:
    """Refuse a store that cannot be written, with all that stands in the way at once.

    Args:
        root: The layout.
        output: A file outside the store that will be written as well, or None.
        compiles: Whether a temporary folder is needed too; an unusable one is listed in any case.

    Raises:
        StoreAccessError: Something cannot be written; its details list each place, and the command that mends it.
    """
    store = _of_store(root)
    beside = () if output is None else refused([nearest(output.absolute().parent)])
    scratch = unusable_scratch()
    if not (store or beside or (scratch and compiles)):
        return
    wrong = [(each.place, each.reason) for each in (*store, *beside, *scratch)]
    command = _mending(root, store)
    flags = {"--cache-dir": store, "--output": beside, "TMPDIR": scratch}
    raise StoreAccessError(
        _what(root, store, beside),
        f"this is {process_text()}; {listed(wrong)}",
        _hint(command, [flag for flag, places in flags.items() if places]),
        path=str(wrong[0][0].path),
        details=details(wrong, command),
    )


def _of_store(root: CacheRoot) -> tuple[UnwritableFolder, ...]:
    """Return what of a store every writer meets and may not write: its folders, those of objects, and common locks."""
    folders = unwritable_folders(root)
    shards = refused(path for path in _children(root.objects) if os.path.isdir(path))  # noqa: PTH112
    # Locks and claims of one key or request, which have a dash or a dot in their names, are met by others.
    locks = refused((p for p in _children(root.locks) if p.stem.isalpha()), files=True)
    met = (*folders, *shards, *(() if folders else locks))
    around = refused(nearest(path) for path in (root.path, root.base)) if met else ()
    return tuple({each.path: each for each in (*around, *met)}.values())


def _children(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _mending(root: CacheRoot, wrong: Sequence[UnwritableFolder]) -> str:
    """Return the command that lets this process write the store, or empty where none does."""
    reasons = {each.reason for each in wrong}
    if not reasons or NO_FOLDER in reasons:
        return ""
    if READ_ONLY in reasons:
        return f"mount -o remount,rw {quoted([_mount_of(nearest(root.path))])}"
    own = f"{os.geteuid()}:{os.getegid()}"
    if nearest(root.path) != root.path.absolute():
        return shell(f"mkdir -p {quoted([root.path])}", f"chown {own} {quoted([root.path])}")
    # Only what is ours is changed all the way down: the root may be a folder with other things in it.
    layout = [root.base] if nearest(root.base) == root.base.absolute() else []
    given = (f"chown {own} {quoted([root.path])}", *(f"chown -R {own} {quoted([path])}" for path in layout))
    mine = all(each.place.uid == os.geteuid() for each in wrong)
    closed = any(each.place.bits & 0o300 != 0o300 and each.path.is_dir() for each in wrong)
    opened = f"chmod -R u+rwX {quoted(layout or [root.path])}" if closed or mine else ""
    return shell(*(() if mine else given), opened)


def _what(root: CacheRoot, store: Sequence[UnwritableFolder], beside: Sequence[UnwritableFolder]) -> str:
    if store:
        return f"The cache at {root.path} cannot be written"
    return "The folder of --output cannot be written" if beside else "No temporary folder can be used to compile"


def _hint(command: str, flags: Sequence[str]) -> str:
    """Say what to do: the command where there is one, or another folder."""
    other = f"a folder that uid {os.geteuid()} may write with {', '.join(flags)}; --check and --dry-run write nothing"
    if not command:
        return f"Give {other}"
    return f"{'Run' if command.startswith('chmod') else 'As root, run'} `{command}`, or give {other}"


def _mount_of(path: Path) -> Path:
    place = path.resolve()
    while not os.path.ismount(place):
        place = place.parent
    return place
