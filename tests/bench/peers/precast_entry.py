"""precast: `precast precompile` in one process, `precast.load` and `precast.capture_graphs` in another."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.peers.base import Captured, Forward, Peer, size_of
from tests.bench.session import Session
from tests.bench.workload import Workload

__all__ = ["Aoti", "Inductor", "OneRow"]

_KEY = "key.txt"


class _PrecastEntry(Peer):
    """An entry of a store of its own."""

    in_process = False
    options: tuple[str, ...] = ()

    def compile_apart(self, folder: Path, work: Workload) -> dict[str, float]:
        """Run `precast precompile` as CI does; its own seconds count, which hold the import of torch."""
        command = [sys.executable, "-m", "precast.cli", "precompile", str(work.folder), *work.assignments()]
        command += ["--target", work.device, "--max-num-batched-tokens", str(work.max_tokens), *self.options]
        done = subprocess.run([*command, "--cache-dir", str(_store(folder)), "--json"], stdout=subprocess.PIPE)
        made = json.loads(done.stdout)
        if done.returncode:
            raise RuntimeError(f"precompile: {made['errors']}")
        data = made["data"]
        (folder / _KEY).write_text(data["key"])
        return {
            "compile": data["seconds"],
            "pieces": data["pieces"],
            "unique": data["unique"],
            "mega bytes": data["mega_bytes"],
        }

    def stored(self, folder: Path) -> int:
        """Return the size of the store: objects, manifest, and the mega file, which holds all of it again."""
        return size_of(_store(folder))

    def load(self, session: Session) -> Forward:
        """Load the entry."""
        import precast

        key = (session.folder / _KEY).read_text()
        return precast.load(key, session.module, cache_dir=_store(session.folder))

    def captures(self, session: Session, forward: Forward) -> "dict[str, Callable[[], Captured]]":
        """Capture FULL graphs, and PIECEWISE ones."""
        modes = ("FULL", "PIECEWISE") if session.work.piecewise else ("FULL",)
        return {mode.lower(): _capture(session, forward, mode) for mode in modes}


class Aoti(_PrecastEntry):
    """The default payload."""

    options = ("--payload", "aoti")


class Inductor(_PrecastEntry):
    """Inductor's bundled artifacts."""

    options = ("--payload", "inductor")


class OneRow(_PrecastEntry):
    """Steps of one token compiled apart, whose products read the weights row by row."""

    options = ("--payload", "aoti", "--compile-sizes", "1")


def _capture(session: Session, forward: Any, mode: str) -> Callable[[], Captured]:
    def capture() -> Captured:
        import torch

        torch.cuda.empty_cache()
        session.wait()
        free = torch.cuda.mem_get_info()[0]
        started = time.perf_counter()
        import precast  # with all that capturing imports: a serving process imports it too

        manager = precast.capture_graphs(forward, session.state, session.limits, mode=mode)
        session.wait()
        seconds = time.perf_counter() - started
        torch.cuda.empty_cache()
        taken = free - torch.cuda.mem_get_info()[0]

        def step(batch: int) -> Callable[[], Any]:
            descriptor = manager.dispatch(batch, batch, 1)
            if descriptor.mode.name != mode:
                raise RuntimeError(f"a step of {batch} requests got {descriptor}")
            return lambda: manager.run(descriptor)

        return Captured(seconds, taken, step, manager.release)

    return capture


def _store(folder: Path) -> Path:
    return folder / "store"
