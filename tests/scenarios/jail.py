"""A hard container for one command: another user without a name, and nothing that can be written but one folder.

As a program it makes the container around itself and becomes the command. It needs root, of which the command keeps
one right: to read everything, because a checkout may lie in a private folder.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["UID", "Jailed", "can_jail", "can_mount", "run_jailed"]

UID = 4242

_READ_EVERYTHING = 2  # CAP_DAC_READ_SEARCH
_CAPABILITY_VERSION = 0x20080522
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 38, 47, 2
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_READ_ONLY, _NOEXEC = 1, 8
_NO_JAIL, _NO_MOUNTS = 97, 98


@dataclass(frozen=True)
class Jailed:
    """A command that was run.

    Attributes:
        status: Its exit status.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
        seconds: Processor time that it took, which does not depend on what else the machine does.
    """

    status: int
    out: str
    err: str
    seconds: float


def run_jailed(
    command: Sequence[str],
    scratch: Path | None,
    environ: Mapping[str, str] | None = None,
    *,
    mounts: bool = True,
    noexec: bool = False,
) -> Jailed:
    """Run a command in the container: no passwd line, no HOME, no USER, umask 077.

    Args:
        command: The command.
        scratch: The one folder that can be written, which is its TMPDIR; None for none at all.
        environ: More of its environment.
        mounts: Whether everything else is mounted read-only; else only owners and modes protect it.
        noexec: Whether the folder is mounted so that no code in it may run.
    """
    given = {"PATH": "/usr/bin:/bin", **({"TMPDIR": str(scratch)} if scratch else {}), **(environ or {})}
    flags = [f"--scratch={scratch or ''}", *(["--mounts"] if mounts else []), *(["--noexec"] if noexec else [])]
    words = [sys.executable, __file__, *flags, *(f"--env={name}={value}" for name, value in given.items()), *command]
    before = _children_seconds()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return Jailed(done.returncode, done.stdout, done.stderr, _children_seconds() - before)


@lru_cache(maxsize=1)
def can_jail() -> bool:
    """Tell whether this process can become a user who may only read."""
    return os.geteuid() == 0 and run_jailed(["/bin/true"], None, mounts=False).status == 0


@lru_cache(maxsize=1)
def can_mount() -> bool:
    """Tell whether this process can mount everything read-only for a command."""
    return can_jail() and run_jailed(["/bin/true"], None).status == 0


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def _mount_read_only(scratch: str, *, noexec: bool) -> None:
    """Mount all that there is read-only in a namespace of this process's own, but for one folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    if scratch:
        failed = failed or libc.mount(scratch.encode(), scratch.encode(), None, _MS_BIND, None)
    failed = failed or _set_attributes(libc, "/", _Attributes(set=_READ_ONLY), _AT_RECURSIVE)
    if scratch:
        changed = _Attributes(set=_NOEXEC if noexec else 0, clear=_READ_ONLY)
        failed = failed or _set_attributes(libc, scratch, changed, 0)
    if failed:
        sys.exit(_NO_MOUNTS)


def _set_attributes(libc: ctypes.CDLL, path: str, attributes: _Attributes, flags: int) -> int:
    size = ctypes.sizeof(attributes)
    result: int = libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size)
    return result


def _become_nobody() -> None:
    """Become a user without a name who may read everything and owns nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    try:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    except OSError:
        sys.exit(_NO_JAIL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    bit = 1 << _READ_EVERYTHING
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    failed = libc.capset(header, sets)
    failed = failed or libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _READ_EVERYTHING, 0, 0)
    if failed or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        sys.exit(_NO_JAIL)


def main(words: list[str]) -> None:
    """Make the container and become the command."""
    flags = [word for word in words[: _flags(words)] if word.startswith("--")]
    command = words[len(flags) :]
    scratch = next(flag.partition("=")[2] for flag in flags if flag.startswith("--scratch="))
    environ = dict(flag.removeprefix("--env=").split("=", 1) for flag in flags if flag.startswith("--env="))
    if "--mounts" in flags:
        _mount_read_only(scratch, noexec="--noexec" in flags)
    _become_nobody()
    os.umask(0o077)
    os.chdir("/")
    os.execve(command[0], command, environ)


def _flags(words: Sequence[str]) -> int:
    """Count the flags before the command."""
    return next(number for number, word in enumerate(words) if not word.startswith("--"))


if __name__ == "__main__":
    main(sys.argv[1:])
