"""Python imports this at start-up where its folder is on PYTHONPATH: pieces are then not compiled but stood in for.

Tracing, splitting, exporting, temporary folders and the store stay real; only the compile process of a piece is left
out. See `tests.scenarios.support.stand_in`, which sets the variables read here.
"""

import fcntl
import os
import random
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "precast.aot.compile"
_LOG = os.environ.get("STAND_IN_LOG", "")
_GATE = os.environ.get("STAND_IN_GATE", "")
_SECONDS = float(os.environ.get("STAND_IN_SECONDS", "0"))
_BYTES = int(os.environ.get("STAND_IN_BYTES", "4096"))


def _note(event: str, piece: str, span: str) -> None:
    line = f"{event} {os.getpid()} {piece} {span}\n".encode()
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)  # one write of a short line: appends of several processes never mix
    finally:
        os.close(descriptor)


def _work() -> None:
    """Take as long as a compile would, and as long as a test holds the gate."""
    time.sleep(_SECONDS)
    if _GATE:
        with Path(_GATE).open("rb") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)


class _Loader(SourceFileLoader):
    """Loads the module, then puts the stand-in in place of its compile processes."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)

        def run(processes: Any, command: Any, folder: Path, log: Path) -> int:
            piece, _, span = folder.name.partition("-")
            _note("start", piece, span)
            _work()
            (folder / module.PAYLOAD).write_bytes(random.Random(folder.name).randbytes(_BYTES))
            (folder / module.RESULT).write_text('{"seconds": 1.0}', encoding="ascii")
            _note("done", piece, span)
            return 0

        module._Processes.run = run


class _Finder:
    """Finds that one module, and nothing else; also notes that torch is imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == "torch._C":  # unlike torch itself, nobody looks for it without importing it
            _note("torch", "-", "-")
        spec = PathFinder.find_spec(name, path) if name == _MODULE else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


if _LOG:
    sys.meta_path.insert(0, _Finder)
