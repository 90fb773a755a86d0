"""Locks between processes, and claims that say what a living process is using.

A claim is a lock file that its process holds. The operating system lets go of it when the process dies, however it
dies, so a claim that somebody else can lock is a dead one and none needs a timeout. Its name says what is used and
since when.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.atomic import refused, unique
from precast.errors import LockedError

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Claim", "LiveClaim", "dead_claims", "hold_lock", "is_held", "live_claims", "make_claim"]

LOCK_SUFFIX = ".lock"

_CLAIM = re.compile(r"claim\.(?P<subject>[^.]+)\.(?P<since>\d+)-[0-9a-f]+\.lock")


@contextmanager
def hold_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock while the block runs.

    Args:
        path: The lock file; its folder must exist.
        timeout_s: How many seconds to wait for another holder.

    Raises:
        LockedError: Another process held the lock all the time.
        StoreAccessError: The lock file cannot be written.
    """
    lock = _acquire(path, timeout_s)
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class Claim:
    """A mark that this process uses something; see `make_claim`."""

    _path: Path
    _lock: "BaseFileLock"

    def release(self) -> None:
        """Take the mark away."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._lock.release()


def make_claim(locks: Path, subject: str) -> Claim:
    """Mark that this process uses `subject` until the claim is released or the process ends.

    Args:
        locks: The folder of lock files.
        subject: What is used: a key, or a word. It holds no dot.

    Raises:
        StoreAccessError: The lock file cannot be written.
    """
    path = locks / f"claim.{subject}.{unique(str(time.time_ns()))}{LOCK_SUFFIX}"
    return Claim(path, _acquire(path, 0))


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
    """Return the lock files that dead processes left."""
    return tuple(path for path, _ in _claims(locks) if not is_held(path))


def _claims(locks: Path) -> Iterator[tuple[Path, LiveClaim]]:
    for path in sorted(locks.glob("claim.*")):
        match = _CLAIM.fullmatch(path.name)
        if match:
            yield path, LiveClaim(match["subject"], int(match["since"]))


def is_held(path: Path) -> bool:
    """Tell whether a process holds a lock file. A file that cannot be opened counts as held."""
    from filelock import FileLock, Timeout

    if not path.is_file():
        return False
    lock = FileLock(path, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def _acquire(path: Path, timeout_s: float) -> "BaseFileLock":
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        raise LockedError(
            f"The lock {path.name} was not got within {timeout_s:g} s",
            "another precast process holds it",
            "Wait for that process to end, then run the command again",
            path=str(path),
        ) from error
    except OSError as error:
        raise refused(error, path) from error
    return lock
