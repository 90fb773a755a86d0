"""Locks between processes, and claims that say what a living process is using.

A claim is a lock file that its process holds. It falls free when the process dies, however it dies, so a claim that
nobody holds is a dead one and none needs a timeout of its own. Its name says what is used and since when.
"""

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.atomic import refused, unique
from precast.cache.lock_files import (
    KINDS_VARIABLE,
    LEASE_SUFFIX,
    LOCK_SUFFIX,
    Holder,
    discard,
    is_held,
    lock_path,
    open_lock,
    poll_s,
    read_holder,
    sign,
    unsign,
)
from precast.errors import LockedError, PrecastError, StoreAccessError

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = [
    "LEASE_SUFFIX",
    "LOCK_SUFFIX",
    "Claim",
    "Holder",
    "LiveClaim",
    "OnWait",
    "dead_claims",
    "discard",
    "hold_lock",
    "is_held",
    "live_claims",
    "make_claim",
]

OnWait = Callable[[Holder | None], None]
"""Is told who holds a lock that is waited for; None where that cannot be seen."""

_CLAIM = re.compile(
    rf"claim\.(?P<subject>[^.]+)\.(?P<since>\d+)-[0-9a-f]+(?:{re.escape(LOCK_SUFFIX)}|{re.escape(LEASE_SUFFIX)})"
)

# Whoever looks whether a lock is held has it for a moment; that is no reason to say a word.
_GRACE_S = 0.3
_LOOK_S = 1.0
# For a file that only its maker and such lookers ever lock.
_CLAIM_TIMEOUT_S = 30.0

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def hold_lock(path: Path, timeout_s: float, on_wait: OnWait | None = None, *, keep: bool = True) -> Iterator[bool]:
    """Hold a lock while the block runs.

    Args:
        path: The lock file; its folder must exist. On a network folder a lease takes its place.
        timeout_s: How many seconds to wait for another holder.
        on_wait: Is told who holds the lock before it is waited for, and again when another process has got it.
        keep: Whether the file stays; a lease never does.

    Yields:
        Whether another process held it first.

    Raises:
        LockedError: Another process held the lock all the time; the error names it.
        StoreAccessError: The lock file cannot be written.
    """
    place = lock_path(path.parent, path.stem)
    lock, waited = _acquire(place, timeout_s, on_wait or (lambda _: None))
    sign(place)
    try:
        yield waited
    finally:
        unsign(place, keep=keep)
        lock.release()


@dataclass(frozen=True, slots=True)
class Claim:
    """A mark that this process uses something; see `make_claim`."""

    _path: Path
    _lock: "BaseFileLock"

    def release(self) -> None:
        """Take the mark away."""
        unsign(self._path, keep=False)
        self._lock.release()


def make_claim(locks: Path, subject: str) -> Claim:
    """Mark that this process uses `subject` until the claim is released or the process ends. Waits for nobody.

    Args:
        locks: The folder of lock files.
        subject: What is used: a key, or a word. It holds no dot.

    Raises:
        StoreAccessError: The lock file cannot be written.
    """
    path = lock_path(locks, f"claim.{subject}.{unique(str(time.time_ns()))}")
    # Somebody may see the file before it is locked and take it for a dead one: then the lock makes it anew.
    lock, _ = _acquire(path, _CLAIM_TIMEOUT_S, lambda _: None)
    return Claim(path, lock)


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """A claim of a living process.

    Attributes:
        subject: What is used.
        since_ns: When the claim was made, in nanoseconds since the epoch.
    """

    subject: str
    since_ns: int


def live_claims(locks: Path) -> tuple[LiveClaim, ...]:
    """Return the claims of living processes."""
    return tuple(claim for path, claim in _claims(locks) if is_held(path))


def dead_claims(locks: Path) -> tuple[Path, ...]:
    """Return the lock files that dead processes left; `discard` removes one."""
    return tuple(path for path, _ in _claims(locks) if path.exists() and not is_held(path))


def _claims(locks: Path) -> Iterator[tuple[Path, LiveClaim]]:
    for path in sorted(locks.glob("claim.*")):
        match = _CLAIM.fullmatch(path.name)
        if match:
            yield path, LiveClaim(match["subject"], int(match["since"]))


def _acquire(path: Path, timeout_s: float, on_wait: OnWait) -> tuple["BaseFileLock", bool]:
    """Get a lock, and tell whether somebody else held it first."""
    from filelock import LeaseSettingsMismatch, Timeout

    began = time.monotonic()
    lookout = _Lookout(path, on_wait)
    try:
        lock = open_lock(path)
        for pause_s in lookout.pauses():
            left_s = max(0.0, timeout_s - (time.monotonic() - began))
            try:
                lock.acquire(timeout=min(pause_s, left_s), poll_interval=poll_s(path))
            except Timeout as error:
                if left_s <= pause_s:
                    raise _locked(path, time.monotonic() - began) from error
                if path.suffix == LEASE_SUFFIX and not is_held(path):
                    discard(path)  # one that its maker had no time to fill in; filelock leaves it alone for ever
            else:
                break
    except LeaseSettingsMismatch as error:
        raise _locked(path, time.monotonic() - began) from error
    except OSError as error:
        raise _refused(error, path) from error
    return lock, lookout.waited


class _Lookout:
    """Looks at who holds a lock while it is waited for, and tells each holder once."""

    def __init__(self, path: Path, on_wait: OnWait) -> None:
        self._path = path
        self._on_wait = on_wait
        self.waited = False

    def pauses(self) -> Iterator[float]:
        """Yield how long to try, forever; between two tries it looks."""
        yield 0.0
        self.waited = True
        yield _GRACE_S
        told = last = read_holder(self._path)
        self._on_wait(told)
        while True:
            yield _LOOK_S
            seen = read_holder(self._path)
            # One that is seen only once has looked something up and is gone again.
            if seen is not None and seen == last and seen != told:
                told = seen
                self._on_wait(told)
            last = seen


def _locked(path: Path, waited_s: float) -> LockedError:
    holder = read_holder(path)
    return LockedError(
        f"The lock {path.name} was not got within {waited_s:.0f} s",
        f"{holder or 'another process'} holds it",
        "Wait for that process to end, then run the command again, or give it more time with --lock-timeout",
        path=str(path),
    )


def _refused(error: OSError, path: Path) -> PrecastError:
    if error.errno not in _NO_LOCKS:
        return refused(error, path)
    return StoreAccessError(
        f"{path} cannot be locked",
        f"the file system of {path.parent} has no locks: {error.strerror}",
        f"Set {KINDS_VARIABLE}=lease in every process that uses this cache",
        path=str(path),
    )
