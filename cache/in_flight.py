"""Work in flight: whoever is about to do what another process does already waits for it instead."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from precast.cache.store import Store
from precast.errors import LockedError

__all__ = ["in_flight"]


@contextmanager
def in_flight(store: Store, name: str, on_wait: Callable[[str], None]) -> Iterator[bool]:
    """Be the only process that does some work while the block runs.

    Args:
        store: The store; its lock timeout bounds the wait.
        name: The work: letters, digits and dashes.
        on_wait: Is told once, before waiting, who holds it.

    Yields:
        Whether another process held it first, so that its result may be there now.

    Raises:
        LockedError: Another process held it all the time; the error names it.
        StoreAccessError: The store cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(store.lock(name, timeout_s=0))
            waited = False
        except LockedError:
            on_wait("another process")
            stack.enter_context(store.lock(name))
            waited = True
        yield waited
