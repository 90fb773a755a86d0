"""Children of the scenarios whose compile is stood in for, and what they leave behind.

A child that is started with the environment of `StandIn.environ` traces, exports and publishes as always, but a piece
takes as long as the test says and becomes some bytes that depend on nothing but the piece. Such an entry is sound in
every way but one: torch cannot load it.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

__all__ = ["Event", "StandIn", "start", "stand_in", "temporary_files", "wait_until"]

HOOK = Path(__file__).parent / "stand_in"


@dataclass(frozen=True)
class Event:
    """One line of the log: a process began or ended one piece for one range, or imported torch."""

    what: str
    pid: int
    piece: str
    range: str


@dataclass(frozen=True)
class StandIn:
    """A compile that is stood in for.

    Attributes:
        log: The file that all children append to.
        gate: A file; while `closed` runs, no piece gets done.
        scratch: The children's TMPDIR.
        environ: The whole environment of a child.
    """

    log: Path
    gate: Path
    scratch: Path
    environ: dict[str, str]

    def events(self, what: str = "done") -> list[Event]:
        """Read the log: `done` (one a compiled piece), `start`, or `torch` (one a process that imports it)."""
        try:
            lines = self.log.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return []
        found = [Event(what, int(pid), piece, span) for what, pid, piece, span in map(str.split, lines)]
        return [event for event in found if event.what == what]

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let no piece get done while the block runs. Children that were killed meanwhile stay undone."""
        with self.gate.open("rb") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield


def stand_in(
    folder: Path, *, seconds: float = 0.0, payload_bytes: int = 4096, environ: Mapping[str, str] | None = None
) -> StandIn:
    """Make the environment for children whose compile is stood in for.

    Args:
        folder: An empty or new folder for the log, the gate and the children's temporary files.
        seconds: How long a piece takes.
        payload_bytes: How big a payload is; it cannot be compressed.
        environ: More variables for the children.
    """
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    log, gate = folder / "pieces.log", folder / "gate"
    gate.touch()
    return StandIn(
        log,
        gate,
        scratch,
        {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join((str(HOOK), str(REPOSITORY / "src"))),
            "STAND_IN_LOG": str(log),
            "STAND_IN_GATE": str(gate),
            "STAND_IN_SECONDS": str(seconds),
            "STAND_IN_BYTES": str(payload_bytes),
            **(environ or {}),
        },
    )


def start(*args: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start the command line in a fresh process and its own session, without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "precast.cli", *args],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Look every few milliseconds whether something happened; tell whether it did in time."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def temporary_files(root: Path, scratch: Path) -> list[str]:
    """List what only unfinished work leaves: staged entries, temporary files, folders of compiles and loads."""
    found = (*root.glob("v1/staging/*"), *root.rglob("*.tmp"), *scratch.glob("precast-*"))
    return sorted(map(str, found))
