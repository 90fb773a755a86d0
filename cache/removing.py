"""Removing entries while others read: who reads never waits, and what is read is never taken away.

A reader claims its key first and then looks whether the key is announced as going. A remover, one at a time under the
store's lock, announces the keys first and then looks for claims. Both write before they read, so of any two that meet
at least one sees the other, in whatever order their steps fall:

- The reader's look came before the announcement. Then so did its claim, and the remover sees it and spares the key.
- The announcement came first. Then the reader sees it, and treats the entry as gone. That the remover may have seen
  the claim as well, and spares the entry, does no harm.

So an entry under a claim that was granted does not even vanish for a moment, and a spared one never does. What goes is
renamed away in one step before anything of it is deleted, so that others, who claim nothing, find it whole or not at
all; objects go after all entries, once it is clear which of them stay. A remover that is killed leaves an announcement
that nobody stands by, and its claim says so.

Claims and the announcement lie in one folder. A network file system drops what it remembers of a folder when it writes
there, so a look after a write of one's own sees what other hosts wrote before.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from precast.cache.atomic import write_atomic
from precast.cache.locks import live_claims, make_claim
from precast.errors import StoreAccessError

__all__ = ["ANNOUNCEMENT", "REMOVER", "announced", "is_going"]

REMOVER = "remover"

ANNOUNCEMENT = "going"


@contextmanager
def announced(locks: Path, keys: Iterable[str]) -> Iterator[frozenset[str]]:
    """Announce that keys go while the block runs. The caller holds the store's lock.

    Args:
        locks: The folder of lock files.
        keys: What is to go.

    Yields:
        The keys that somebody uses: they must stay, and all others may go.

    Raises:
        StoreAccessError: The announcement cannot be written.
    """
    path = locks / ANNOUNCEMENT
    wanted = frozenset(keys)
    _withdraw(path)  # what a remover that was killed has left
    claim = make_claim(locks, REMOVER)
    try:
        _announce(path, wanted)
        used = wanted & {claim.subject for claim in live_claims(locks)}
        if used == wanted:
            _withdraw(path)
        elif used:
            # They stay, so whoever comes to read them now need not be sent away.
            _announce(path, wanted - used)
        yield used
    finally:
        _withdraw(path)
        claim.release()


def _announce(path: Path, keys: frozenset[str]) -> None:
    try:
        write_atomic(path, "".join(f"{key}\n" for key in sorted(keys)).encode(), durable=False)
    except StoreAccessError:
        # A full disk is what a remover is for: an empty announcement speaks of every key.
        write_atomic(path, b"", durable=False)


def _withdraw(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def is_going(locks: Path, key: str) -> bool:
    """Tell whether a living remover takes an entry away. Who asks has claimed the key before."""
    try:
        keys = (locks / ANNOUNCEMENT).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return (not keys or key in keys) and any(claim.subject == REMOVER for claim in live_claims(locks))
