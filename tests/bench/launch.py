"""Start measured processes, each with caches that only the figures' own rules fill, and read what they print."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.peers import Entry
from tests.bench.workload import Workload

__all__ = ["ROOT", "Budget", "Ran", "Runner"]

ROOT = Path(__file__).resolve().parents[2]
_KERNELS = "eager"  # the peer whose Triton cache holds the kernels of the attention op, and nothing else


@dataclass(frozen=True, slots=True)
class Ran:
    """What a measured process told.

    Attributes:
        found: The JSON object that it printed; empty if it failed.
        wall: Seconds from its start to its end.
        error: Why it failed; None if it did not.
    """

    found: dict[str, Any]
    wall: float
    error: str | None = None


@dataclass(slots=True)
class Budget:
    """Seconds that a run may take.

    Attributes:
        seconds: All of them; None for no limit.
    """

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Return what is left."""
        return float("inf") if self.seconds is None else self.seconds - (time.monotonic() - self.started)


class Runner:
    """Starts processes of peers.

    Args:
        scratch: Where artifacts and caches lie.
        budget: Ends what takes longer.
    """

    def __init__(self, scratch: Path, budget: Budget) -> None:
        self._scratch = scratch
        self._budget = budget
        self._count = 0

    def compile(self, peer: Entry, work: Workload, label: str) -> Ran:
        """Compile with empty caches."""
        folder = self._folder(peer.after or peer.name, label)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return self._run(peer, "compile", folder, work, folder)

    def start(self, peer: Entry, work: Workload, label: str) -> Ran:
        """Start a serving process; caches are those of the compile, or empty but for the attention op's kernels."""
        folder = self._folder(peer.after or peer.name, label)
        if peer.keeps_caches:
            return self._run(peer, "start", folder, work, folder)
        caches = self._scratch / f"caches-{self._count}"
        kernels = self._folder(_KERNELS, label) / "triton"
        if kernels.is_dir() and not peer.name.startswith("precast"):  # precast ships them
            shutil.copytree(kernels, caches / "triton")
        try:
            return self._run(peer, "start", folder, work, caches)
        finally:
            shutil.rmtree(caches, ignore_errors=True)

    def has_kernels(self, label: str) -> bool:
        """Tell whether the eager peer has run, whose cache others are given a copy of."""
        return self._folder(_KERNELS, label).is_dir()

    def discard(self, label: str) -> None:
        """Remove what all peers keep for a model."""
        shutil.rmtree(self._scratch / label, ignore_errors=True)

    def _folder(self, name: str, label: str) -> Path:
        return self._scratch / label / name

    def _run(self, peer: Entry, stage: str, folder: Path, work: Workload, caches: Path) -> Ran:
        self._count += 1
        words = [peer.name, stage, str(folder), json.dumps(work.to_json())]
        log = self._scratch / f"{self._count:03}-{peer.name}-{stage}.log"
        for name in ("inductor", "triton", "tmp"):
            (caches / name).mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.child", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=_environment(caches),
                start_new_session=True,
            )
            out, error = self._communicate(process)
        wall = time.perf_counter() - started
        if error is None and process.returncode:
            error = f"exit {process.returncode}: {_last_line(log)}"
        if error is not None:
            return Ran({}, wall, error)
        found = _printed(out.decode(errors="replace"))
        return Ran(found, wall) if found else Ran({}, wall, "it printed no figures")

    def _communicate(self, process: "subprocess.Popen[bytes]") -> tuple[bytes, str | None]:
        """Wait for a process and all that it started, or end them."""
        left = self._budget.left()
        try:
            out, _ = process.communicate(timeout=None if left == float("inf") else max(left, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return b"", "the budget ended"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return out, None


def _printed(out: str) -> dict[str, Any]:
    """Return the last JSON object of an output, in which compilers may have printed too; empty if there is none."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def _environment(caches: Path) -> dict[str, str]:
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "PRECAST_CACHE_DIR": str(caches / "precast"),
        "TMPDIR": str(caches / "tmp"),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PRECAST_TRUST_ROOT": "1",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PRECAST_", "TORCHINDUCTOR_", "TRITON_"))}
    return {**inherited, **own}


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
