"""Waiting for a process that does the same work, and showing that."""

from collections.abc import Iterator
from contextlib import contextmanager

from precast.aot.progress import Progress
from precast.cache.in_flight import in_flight
from precast.cache.locks import Holder
from precast.cache.store import Store

__all__ = ["done_once"]

_STAGE = "wait"


@contextmanager
def done_once(store: Store, work: str, progress: Progress) -> Iterator[bool]:
    """Do some work while no other process does it; wait for one that does already.

    Args:
        store: The store; its lock timeout bounds the wait.
        work: Names the work: letters, digits and dashes.
        progress: Is told who is waited for, once, and that the wait is a stage.

    Yields:
        Whether another process did it first.

    Raises:
        LockedError: Another process did it all the time.
        StoreAccessError: The store cannot be written.
    """
    wait = _Wait(progress)
    try:
        with in_flight(store, work, wait.tell) as waited:
            wait.end()
            yield waited
    finally:
        wait.end()


class _Wait:
    """One stage of progress that begins only where there is something to wait for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = False

    def tell(self, holder: Holder | None) -> None:
        self._progress.note(f"waiting for {holder or 'another process'}, which does the same work")
        if not self._began:
            self._began = True
            self._progress.start(_STAGE, 0)

    def end(self) -> None:
        if self._began:
            self._began = False
            self._progress.finish(_STAGE)
