"""For scenarios that move things: virtual environments with a copy of precast, another user, and who opens what."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.conftest import REPOSITORY, TINY
from tests.scenarios.jail import UID, can_jail, run_jailed

from precast.cache.mega import MegaFile
from precast.cache.store import Store

__all__ = ["Place", "Trace", "all_bytes", "give_to_other", "make_place", "run_as_other", "watched"]

HOOK = Path(__file__).parent / "watched"


@dataclass(frozen=True)
class Place:
    """A virtual environment that holds precast, and a model beside it.

    Attributes:
        python: Its interpreter.
        model: A copy of the tiny model's folder, below the environment.
    """

    python: Path
    model: Path


def make_place(folder: Path) -> Place:
    """Make a virtual environment with a copy of precast; what is large, such as torch, is shared with this one."""
    venv.EnvBuilder(symlinks=True).create(folder)
    site = next((folder / "lib").glob("python*/site-packages"))
    shared = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (site / "shared.pth").write_text("\n".join(shared), encoding="utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src" / "precast", site / "precast", ignore=ignored)
    shutil.copytree(TINY, folder / "share" / TINY.name)
    return Place(folder / "bin" / "python", folder / "share" / TINY.name)


def run_as_other(
    command: Sequence[str], scratch: Path, environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command with no HOME, as another user without a name where this process may become one.

    Returns:
        Its status, what it wrote to stdout, and to stderr.
    """
    given = {"PATH": "/nonexistent", "TMPDIR": str(scratch), **(environ or {})}
    if can_jail():
        done = run_jailed(command, scratch, given, mounts=False)
        return done.status, done.out, done.err
    plain = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    return plain.returncode, plain.stdout, plain.stderr


def give_to_other(*folders: Path) -> None:
    """Make the user of `run_as_other` the owner of folders and of all that is in them."""
    if can_jail():
        for folder in folders:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, UID, UID, follow_symlinks=False)


@dataclass(frozen=True)
class Trace:
    """Which paths below some folders a command named, and to whom.

    Attributes:
        python: Events of Python's audit hook, each with a path.
        system: Paths in system calls; None where they cannot be traced here.
        processes: How many Python processes the hook watched.
    """

    python: tuple[str, ...]
    system: tuple[str, ...] | None
    processes: int


def watched(command: Sequence[str], below: Sequence[Path], scratch: Path) -> tuple[tuple[int, str, str], Trace]:
    """Run a Python command as `run_as_other`, and note each path below some folders that it names.

    Args:
        command: The command; its first word is an interpreter.
        below: The folders.
        scratch: The command's TMPDIR.
    """
    with tempfile.TemporaryDirectory(prefix="notes-", dir=scratch.parent) as folder:
        give_to_other(Path(folder))
        return _watched(command, below, Path(folder), scratch)


def _watched(
    command: Sequence[str], below: Sequence[Path], folder: Path, scratch: Path
) -> tuple[tuple[int, str, str], Trace]:
    hook, calls = folder / "hook.log", folder / "calls.log"
    environ = {"PYTHONPATH": str(HOOK), "WATCH_LOG": str(hook), "WATCH_BELOW": os.pathsep.join(map(str, below))}
    tracer = [*_strace(), "-o", str(calls)] if _strace() else []
    done = run_as_other([*tracer, *command], scratch, environ)
    lines = hook.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if hook.exists() else []
    system = tuple(_named(calls, below)) if tracer else None
    return done, Trace(tuple(x for x in lines if x != "watched"), system, lines.count("watched"))


def _named(calls: Path, below: Sequence[Path]) -> Iterator[str]:
    """Give each line of a system-call trace that names a path below the folders, whether or not there is one."""
    wanted = tuple(f'"{folder}' for folder in below)
    with calls.open(encoding="utf-8", errors="surrogateescape") as lines:
        yield from (line for line in lines if any(text in line for text in wanted))


@lru_cache(maxsize=1)
def _strace() -> tuple[str, ...]:
    """Return the command that traces system calls with paths, or nothing where that is not possible."""
    found = shutil.which("strace")
    if found is None:
        return ()
    command = (found, "-f", "-qq", "-s", "4096", "-e", "trace=%file", "-e", "signal=none")
    status, _, _ = run_as_other([*command, "-o", "/dev/null", sys.executable, "-c", ""], Path("/"))
    return command if status == 0 else ()


def all_bytes(root: Path) -> Iterator[tuple[str, bytes]]:
    """Give every file of a cache root as it is, and every object and payload unpacked."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path.read_bytes()
    store = Store(root, read_only=True)
    for entry in store.entries():
        assert entry.manifest is not None, entry.reason
        mega = MegaFile(store.layout.mega(entry.key))
        for name, size in entry.manifest.objects.items():
            yield f"object {name}", store.read_object(name, size)
            yield f"object {name} of the mega file", mega.payload(name)
