"""Work in flight: whoever is about to do what another process does already waits for it instead."""

from collections.abc import Iterator
from contextlib import contextmanager

from precast.cache.locks import OnWait
from precast.cache.store import Store

__all__ = ["in_flight"]


@contextmanager
def in_flight(store: Store, name: str, on_wait: OnWait) -> Iterator[bool]:
    """Be the only process that does some work while the block runs.

    When the process that does it dies, whoever waits goes on at once; on a folder of several hosts after a few
    seconds. A result that is there by then is for the caller to find, also where it did not wait: the other process
    may have ended a moment ago.

    Args:
        store: The store; its lock timeout bounds the wait.
        name: The work: letters, digits and dashes.
        on_wait: Is told who does it before it is waited for, and again when yet another process has taken over.

    Yields:
        Whether another process did it first.

    Raises:
        LockedError: Another process did it all the time; the error names it and how long was waited.
        StoreAccessError: The store cannot be written.
    """
    with store.lock(name, on_wait=on_wait) as waited:
        yield waited
