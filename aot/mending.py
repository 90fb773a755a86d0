"""Damage on the way to an answer: what a lookup found is checked in full, and mended where that can be done."""

from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

from precast.aot.progress import Progress
from precast.aot.scratch import sweep_scratch
from precast.cache.damage import MISSING
from precast.cache.lookup import Lookup, MissReason
from precast.cache.preflight import require_room, require_working_root
from precast.cache.repair import Repaired, repair
from precast.cache.store import Store
from precast.errors import NoEntryError

__all__ = ["checked", "damaged_keys", "mend", "require_able", "sweep"]

_MENDABLE = ("artifact_missing", "corrupt", "format_too_new", "format_too_old")


def checked(store: Store, found: Lookup) -> Lookup:
    """Turn a hit into a miss where any of the entry's bytes is not what it must be.

    Args:
        store: The store; nothing in it is written.
        found: What the quick lookup said, which looks at sizes only.

    Raises:
        StoreAccessError: A file cannot be read.
    """
    if found.hit is None:
        return found
    key = found.hit.key
    try:
        damage = store.check(key)
    except NoEntryError as error:
        return Lookup(None, (MissReason("artifact_missing", key, "manifest.json", b=error.why),))
    if not damage:
        return found
    reasons = (("artifact_missing" if item.code == MISSING else "corrupt", item) for item in damage)
    return Lookup(None, tuple(MissReason(code, key, item.sentence, b=item.code) for code, item in reasons))


def damaged_keys(store: Store, found: Lookup) -> tuple[str, ...]:
    """Return the entries that damage alone keeps from answering."""
    codes: dict[str, set[str]] = {}
    for reason in found.reasons:
        codes.setdefault(reason.entry, set()).add(reason.code)
    return tuple(
        key for key, met in codes.items() if key and met <= set(_MENDABLE) and store.layout.entry(key).is_dir()
    )


def mend(store: Store, key: str, progress: Progress) -> Repaired | None:
    """Mend an entry, and warn where that cannot be done.

    Returns:
        The sound entry; None where there is none, or it is in the quarantine now.

    Raises:
        FormatError: It has a format that this version does not read.
        StoreAccessError: A file cannot be read or written.
        LockedError: Another process held a lock all the time.
    """
    if not store.layout.entry(key).is_dir():
        return None
    repaired = repair(store, key)
    if repaired is None:
        progress.warning(
            "store.damaged",
            f"Entry {key[:12]} was damaged beyond repair; it is in {store.layout.quarantine} now",
            "It is made anew; `precast prune` removes the bad copy",
        )
    return repaired


def sweep(store: Store) -> None:
    """Remove what killed processes left, in the store and in the temporary folder, also where nothing had to be done.

    Where that cannot be done, nothing happens.
    """
    store.tidy()
    with suppress(OSError):
        sweep_scratch()


def require_able(store: Store) -> None:
    """Refuse a store that could not take what a compile makes: too little room, or a file system that is unfit.

    Raises:
        StoreAccessError: So it is; the error names the file system.
    """
    require_room(store.layout, Path(gettempdir()))
    store.layout.prepare()
    require_working_root(store.layout)
