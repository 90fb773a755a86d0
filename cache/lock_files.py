"""Lock files: of a kind for local disks, and of one for folders that several hosts share.

On a local disk the kernel holds the lock (`NAME.lock`, flock) and lets go of it when its process dies, however it
dies. Across hosts nothing does that, and some network folders do not lock at all. There the file itself is the lock
(`NAME.lease`): its holder touches it every few seconds, and one that nobody touched for `LEASE_S` may be taken over;
on the holder's own host at once, when its process is gone. A holder that hangs for so long can meet a second one, so
whatever a lease guards must be right without it: here it only saves work.

The suffix tells the kind, so a file of the other kind is still read rightly after a store has moved.
"""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.filesystem import filesystem_type, is_network
from precast.errors import ConfigValueError

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = [
    "KINDS_VARIABLE",
    "LEASE_S",
    "LEASE_SUFFIX",
    "LOCK_SUFFIX",
    "Holder",
    "discard",
    "is_held",
    "lock_path",
    "open_lock",
    "poll_s",
    "read_holder",
    "sign",
    "unsign",
]

KINDS_VARIABLE = "PRECAST_LOCKS"
LOCK_SUFFIX = ".lock"
LEASE_SUFFIX = ".lease"

# All processes on all hosts must agree on it.
LEASE_S = 24.0
_HEARTBEAT_S = 4.0

# Clocks of machines that share a folder differ a little.
_CLOCK_SLACK_S = 60.0

_KINDS = {"flock": LOCK_SUFFIX, "lease": LEASE_SUFFIX}
_MOST_BYTES = 1024
_NAMESPACE = "?pidns-"
# The inode that Linux gives to the first namespace of process ids.
_FIRST_NAMESPACE = 0xEFFFFFFC


def lock_path(folder: Path, name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the file of a lock, of the kind that its folder's file system needs.

    Args:
        folder: The folder of lock files; where it does not exist yet, its nearest parent decides.
        name: What is locked.
        environ: The environment; None means `os.environ`. `PRECAST_LOCKS` may say `flock`, `lease` or `auto`.

    Raises:
        ConfigValueError: `PRECAST_LOCKS` says something else.
    """
    wanted = (os.environ if environ is None else environ).get(KINDS_VARIABLE, "") or "auto"
    if wanted not in ("auto", *_KINDS):
        raise ConfigValueError(
            f"{KINDS_VARIABLE} cannot be `{wanted}`", "locks are of one of these kinds", "write auto, flock or lease"
        )
    return folder / f"{name}{_suffix(folder) if wanted == 'auto' else _KINDS[wanted]}"


@lru_cache(maxsize=256)
def _suffix(folder: Path) -> str:
    return LEASE_SUFFIX if is_network(filesystem_type(folder)) else LOCK_SUFFIX


def open_lock(path: Path) -> "BaseFileLock":
    """Return a lock on a file, not yet acquired; the suffix says its kind.

    Whoever may write in the folder may take the lock.

    Raises:
        OSError: The folder cannot be looked at.
    """
    from filelock import FileLock, SoftFileLease

    mode = path.parent.stat().st_mode & 0o666
    if path.suffix == LEASE_SUFFIX:
        return SoftFileLease(
            path, mode=mode, thread_local=False, lease_duration=LEASE_S, heartbeat_interval=_HEARTBEAT_S
        )
    # Without a fallback: another kind of lock on the same path would not be seen by processes that got this one.
    return FileLock(path, mode=mode, thread_local=False, fallback_to_soft=False)


def poll_s(path: Path) -> float:
    """Return the seconds between two tries to get a lock; a try on a network folder costs several round trips."""
    return 0.25 if path.suffix == LEASE_SUFFIX else 0.05


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: Its process id.
        host: Its host's name; empty where it is this host.
        since_s: When it got the lock, in seconds since the epoch; None where it has not said so yet.
    """

    pid: int
    host: str
    since_s: float | None

    def __str__(self) -> str:
        """Say who it is, for people."""
        where = f" on {self.host}" if self.host else ""
        if self.since_s is None:
            return f"process {self.pid}{where}"
        return f"process {self.pid}{where}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since_s))}"


def sign(path: Path) -> None:
    """Write into a lock file who holds it. The caller does; where nothing can be written, nobody learns more."""
    text = f"since={time.time():.3f}\n"
    if path.suffix == LOCK_SUFFIX:
        text = f"pid={os.getpid()}\nhost={_Place.own()}\n{text}"
    # A lease says the rest itself, and its lines must stay.
    flags = os.O_WRONLY | (os.O_APPEND if path.suffix == LEASE_SUFFIX else os.O_TRUNC)
    with suppress(OSError):
        descriptor = os.open(path, flags)
        try:
            if path.suffix == LEASE_SUFFIX:  # whoever cannot read it, cannot see that its holder is dead
                os.fchmod(descriptor, path.parent.stat().st_mode & 0o644)
            os.write(descriptor, text.encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)


def unsign(path: Path, *, keep: bool) -> None:
    """Empty a lock file that is about to be released, or remove it; a lease goes by itself, and as a whole.

    Only who holds a lock may remove its file. filelock looks, once it has a lock, whether the file still has a name,
    so a process that waited on the removed file starts over with a new one, and there are never two holders.
    """
    if path.suffix == LOCK_SUFFIX:
        with suppress(OSError):
            if keep:
                os.truncate(path, 0)
            else:
                path.unlink(missing_ok=True)


def read_holder(path: Path) -> Holder | None:
    """Return who holds a lock, or None where its file does not say or the process is gone."""
    try:
        fields = _fields(path)
        pid, place = int(fields["pid"]), _Place.of(fields["host"])
        since_s = float(fields["since"]) if "since" in fields else None
    except (OSError, KeyError, ValueError):
        return None
    if place != _Place.own():
        return Holder(pid, place.name, since_s)
    # A dead process is one that was killed; whoever has the lock now has not written its own name yet.
    return Holder(pid, "", since_s) if _is_alive(pid) else None


def is_held(path: Path) -> bool:
    """Tell whether a process holds a lock file, without changing it. One that cannot be opened counts as held."""
    try:
        if path.suffix == LEASE_SUFFIX:
            return _is_fresh(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_fresh(path: Path) -> bool:
    age_s = time.time() - path.stat().st_mtime
    if age_s > LEASE_S + _CLOCK_SLACK_S:
        return False
    fields = _fields(path)
    same_place = "host" in fields and _Place.of(fields["host"]) == _Place.own()
    return not (same_place and fields.get("pid", "").isdecimal() and not _is_alive(int(fields["pid"])))


def discard(path: Path) -> bool:
    """Remove a lock file that nobody holds, by holding it; see `unsign`.

    Returns:
        Whether it is gone; a process may have got hold of it.
    """
    from filelock import LeaseSettingsMismatch, Timeout

    if path.suffix == LEASE_SUFFIX and is_held(path):
        return False
    try:
        lock = open_lock(path)
        lock.acquire(timeout=0)
    except (Timeout, LeaseSettingsMismatch):
        if path.suffix == LOCK_SUFFIX:
            return False
        # A lease of another host: filelock watches such a one for a while before it takes it over.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return True
    except OSError:
        return not path.exists()
    unsign(path, keep=False)
    lock.release()
    return not path.exists()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where process ids mean something: a host, and on it a namespace, as filelock writes them into a lease."""

    name: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.name}{_NAMESPACE}{self.namespace}" if self.namespace else self.name

    @classmethod
    def of(cls, text: str) -> "_Place":
        name, _, namespace = text.partition(_NAMESPACE)
        return cls(name, namespace)

    @classmethod
    def own(cls) -> "_Place":
        namespace = _FIRST_NAMESPACE
        with suppress(OSError):
            namespace = Path("/proc/self/ns/pid").stat().st_ino
        return cls(socket.gethostname(), "" if namespace == _FIRST_NAMESPACE else f"{namespace:x}")


def _fields(path: Path) -> dict[str, str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        text = os.read(descriptor, _MOST_BYTES).decode("utf-8", "surrogateescape")
    finally:
        os.close(descriptor)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True
