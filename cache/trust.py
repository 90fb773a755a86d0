"""Trust by place: who could have written what is stored, told from owners and modes as sshd's StrictModes does.

A payload is code of whoever wrote it. So a store is used only where nobody but root and this user can write to it, or
to a folder on the way to it: through such a folder the whole store could be replaced by another one.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.places import Place, details, listed, process_text, quoted, shell
from precast.cache.root import CacheRoot
from precast.errors import UntrustedError

if TYPE_CHECKING:
    from precast.cache.options import StoreOptions

__all__ = ["UntrustedPlace", "require_trusted", "require_trusted_file", "untrusted_file", "untrusted_places"]

_OPEN_TO_ALL = "every user can write to it"
_OPEN_TO_GROUP = "its group can write to it"
_FOREIGN = "its owner is neither root nor this user"
_UNKNOWN = "its owner is not known in this user namespace"

_MOST_LINKS = 40
_ALL_IDS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class UntrustedPlace:
    """A folder, file or link that somebody else could have changed.

    Attributes:
        place: It, with owner and mode.
        reason: Why it is not trusted.
        is_passed: Whether it is only passed through on the way to the store or file.
    """

    place: Place
    reason: str
    is_passed: bool

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.place.path


def untrusted_places(root: CacheRoot, key: str | None = None) -> tuple[UntrustedPlace, ...]:
    """Return every place through which another user could have changed what a store holds; empty where all is well.

    Looked at are the folders on the way to the root, the root, the folders that are read from below it and, of one
    entry, its folder and files. Nothing is opened. A place that does not exist, or vanishes meanwhile, is passed over.

    Args:
        root: The layout.
        key: The entry that is about to be used, or None.
    """
    return tuple(_judged([*_way(root.path), *(_Step(path, is_passed=False) for path in _read_from(root, key))]))


def untrusted_file(path: Path) -> tuple[UntrustedPlace, ...]:
    """Return every place through which another user could have changed a file: itself and the folders on the way."""
    return tuple(_judged(_way(path)))


def require_trusted(root: CacheRoot, options: "StoreOptions", key: str | None = None) -> None:
    """Refuse a store that another user could have written to, unless the user trusts it.

    Args:
        root: The layout.
        options: How the store is opened; `trust_root` lifts the check.
        key: The entry that is about to be used, or None.

    Raises:
        UntrustedError: Another user could have; it names each place with owner and mode, and the ways out.
    """
    if not options.trust_root:
        _refuse(f"The cache at {root.path} is not trusted", untrusted_places(root, key), root, key or "")


def require_trusted_file(path: Path, options: "StoreOptions") -> None:
    """Refuse a file, such as a mega file, that another user could have written, unless the user trusts it.

    Raises:
        UntrustedError: Another user could have; it names each place with owner and mode, and the ways out.
    """
    if not options.trust_root:
        _refuse(f"{path} is not trusted", untrusted_file(path))


def _refuse(what: str, wrong: tuple[UntrustedPlace, ...], root: CacheRoot | None = None, entry: str = "") -> None:
    if not wrong:
        return
    told = [(each.place, each.reason) for each in wrong]
    command = _mending(wrong, None if root is None else root.base)
    who = "As root, run" if any(each.place.uid != os.geteuid() for each in wrong) and os.geteuid() else "Run"
    first = f"{who} `{command}`" if command else "Use a folder that only you can write, below others of that kind"
    raise UntrustedError(
        f"{what}: others than you can put code into it",
        f"this is {process_text()}; {listed(told)}",
        f"{first}, or trust it with --trust-root or PRECAST_TRUST_ROOT=1, or, to load from it, demand a signature "
        "with --require-signature",
        entry=entry,
        path=str(wrong[0].path),
        details=details(told, command),
    )


def _mending(wrong: Sequence[UntrustedPlace], layout: Path | None) -> str:
    """Return the command that takes the rights of others away.

    Empty where a folder of somebody else is on the way: it is theirs, so neither its owner nor its mode is ours to
    change. Nor can it be done from inside a namespace that does not know the owner.
    """
    if any(each.reason == _UNKNOWN or (each.is_passed and each.place.uid != os.geteuid()) for each in wrong):
        return ""
    foreign = [each.path for each in wrong if each.reason == _FOREIGN]
    open_to = [each.path for each in wrong if each.place.bits & 0o022 and not stat.S_ISLNK(each.place.bits)]
    return shell(*_changing(f"chown -h {os.geteuid()}", foreign, layout), *_changing("chmod go-w", open_to, layout))


def _changing(change: str, paths: Sequence[Path], layout: Path | None) -> Iterator[str]:
    """Yield a command for some paths; what is in the layout goes as a whole, since other entries are like this one."""
    inside = [path for path in paths if layout is not None and path.is_relative_to(layout)]
    outside = [path for path in paths if path not in inside]
    if outside:
        yield f"{change} {quoted(outside)}"
    if inside and layout is not None:
        yield f"{change} -R {quoted([layout])}"


def _read_from(root: CacheRoot, key: str | None) -> Iterator[Path]:
    """Yield what is read below the root. Bytes of objects are proved by the manifest; their folders are looked at."""
    yield from (root.base, root.objects, root.entries, root.requests, root.tags)
    if key is not None:
        entry = root.entry(key)
        yield entry
        with suppress(OSError), os.scandir(entry) as found:
            yield from sorted(Path(item.path) for item in found)


@dataclass(frozen=True, slots=True)
class _Step:
    """A place to look at, and whether it is only passed through.

    In a folder that is only passed through, a name of ours cannot be replaced if the folder is sticky, as /tmp is.
    """

    path: Path
    is_passed: bool


def _way(path: Path) -> Iterator[_Step]:
    """Yield each folder and link on the way to a path, as the kernel walks, and the path itself."""
    place, rest, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    yield _Step(place, is_passed=True)
    while rest:
        name = rest.pop()
        if name == "..":
            place = place.parent
            continue
        step = place / name
        yield _Step(step, is_passed=bool(rest))
        if step.is_symlink() and links < _MOST_LINKS:
            links += 1
            target = step.readlink()
            place = Path("/") if target.is_absolute() else place
            rest += reversed(target.parts[target.is_absolute() :])
        else:
            place = step


def _judged(steps: Iterable[_Step]) -> Iterator[UntrustedPlace]:
    uid = os.geteuid()
    for step in dict.fromkeys(steps):
        try:
            status = step.path.lstat()
        except OSError:
            continue
        reason = _objection(status, uid, is_passed=step.is_passed)
        if reason:
            yield UntrustedPlace(Place.of(step.path, status), reason, step.is_passed)


def _objection(status: os.stat_result, uid: int, *, is_passed: bool) -> str:
    """Return what speaks against a place, or empty."""
    if _is_outside(status.st_uid):
        # The way to the root was laid by whoever made the namespace; who wrote the root itself cannot be told.
        if not is_passed:
            return _UNKNOWN
    elif status.st_uid not in (0, uid):
        return _FOREIGN
    if stat.S_ISLNK(status.st_mode) or (is_passed and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return _OPEN_TO_ALL
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid, uid):
        return _OPEN_TO_GROUP
    return ""


def _is_outside(uid: int) -> bool:
    """Tell whether a number stands for all users that this process's user namespace does not know."""
    return uid == _overflow_uid() and not _knows_all_users()


@lru_cache(maxsize=1)
def _overflow_uid() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534


@lru_cache(maxsize=1)
def _knows_all_users() -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[2]) for line in lines) >= _ALL_IDS
    except (OSError, ValueError, IndexError):
        return True


@lru_cache(maxsize=64)
def _is_own_group(gid: int, uid: int) -> bool:
    """Tell whether a group has no members but one user and root.

    Many systems give each user such a group and let it write to all that the user makes (umask 002); Debian's sshd
    takes it for no danger either. A container's databases often know neither the user nor the group: then a group of
    the user's own number is taken for such a one.
    """
    members, is_known = _members(gid)
    if uid not in members and gid in (os.getegid(), *os.getgroups()):
        # We are in it and no database says so: who else is, cannot be told.
        return gid == uid and not members and not is_known
    return bool(members) and members <= {0, uid}


def _members(gid: int) -> tuple[set[int], bool]:
    """Return the numbers of a group's members, and whether the database knows the group."""
    import grp
    import pwd

    members = {user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid}
    try:
        names = grp.getgrgid(gid).gr_mem
    except KeyError:
        return members, False
    for name in names:
        try:
            members.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            members.add(-1)  # a member without a number is somebody else
    return members, True
