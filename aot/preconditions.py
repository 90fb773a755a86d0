"""What must hold before a precompile goes on: a store that it may use, a target that code can be made for here."""

from pathlib import Path

from precast.aot.mending import require_able
from precast.aot.progress import Progress
from precast.aot.target import Target, require_buildable
from precast.cache.filesystem import cautions
from precast.cache.options import StoreOptions
from precast.cache.store import Store
from precast.cache.trust import require_trusted
from precast.cache.writable import require_writable
from precast.errors import UsageError

__all__ = ["require_target", "require_usable", "require_work_possible"]


def require_usable(store: Store, options: StoreOptions, *, output: Path | None, compiles: bool) -> None:
    """Refuse a store that cannot be written, or is not trusted: what it holds is believed.

    Args:
        store: The store.
        options: How it was opened.
        output: A file that will be written besides, or None.
        compiles: Whether it is certain that something is compiled.

    Raises:
        UsageError: The store is opened read-only.
        StoreAccessError: Something cannot be written.
        UntrustedError: Others can write to the store.
    """
    if store.read_only:
        raise UsageError(
            "precompile writes to the store",
            "it is opened read-only, by --read-only or PRECAST_READ_ONLY",
            "add --check or --dry-run to look only, or leave that out",
        )
    require_writable(store.layout, output=output, compiles=compiles)
    require_trusted(store.layout, options)


def require_target(target: Target, payload: str, progress: Progress) -> None:
    """Refuse a target that this machine cannot make code for, and say what is doubtful about its payload.

    Args:
        target: What the code must run on.
        payload: Payload kind.
        progress: Is told of doubts.

    Raises:
        IncompatibleError: No code can be made here.
    """
    require_buildable(target)
    if target.device == "cpu" and payload == "inductor":
        progress.note("an inductor payload on a CPU runs the C++ compiler when it is loaded; aoti does not")


def require_work_possible(store: Store, output: Path | None, progress: Progress) -> None:
    """Refuse before any work what could not be written at its end, and say what is doubtful about the store's place.

    Args:
        store: The store.
        output: A file that will be written besides, or None.
        progress: Is told of doubts.

    Raises:
        StoreAccessError: Something cannot be written, or there is too little space.
    """
    require_writable(store.layout, output=output)
    require_able(store)
    for caution in cautions(store.root):
        progress.warning(caution.code, caution.message, caution.hint)
