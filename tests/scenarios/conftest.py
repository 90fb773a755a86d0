"""Shared by the scenarios: a copy of the model, and the command line in fresh processes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import REPOSITORY

HERE = Path(__file__).parent
OPTIONS = ("--target", "cpu", "--max-num-batched-tokens", "512")


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


Precast = Callable[..., Done]


def copy_model(folder: Path) -> Path:
    """Copy the model and its data file, and return the MODEL argument's file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "table.json"):
        shutil.copy(HERE / name, folder / ("scenario_model.py" if name == "model.py" else name))
    return folder / "scenario_model.py"


@pytest.fixture(autouse=True)
def forgotten_models() -> Iterator[None]:
    """Forget the scenario's modules around each test: copies in several folders share one module name."""
    _forget_models()
    yield
    _forget_models()


def _forget_models() -> None:
    for name in [n for n in sys.modules if n.startswith("scenario_")]:
        del sys.modules[name]


@pytest.fixture
def precast() -> Precast:
    """Run the command line in a fresh process, and fail on a traceback or a death by signal."""

    def run(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
        environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(REPOSITORY / "src")}
        command = [sys.executable, "-m", "precast.cli", *args]
        done = subprocess.run(command, env={**environ, **(env or {})}, cwd=cwd, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        assert 0 <= done.returncode < 128, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def fake_compile(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Publish without Inductor: payloads are their own names. For scenarios about keys, never about loading."""
    import precast.aot.compile as compile_room

    made: list[str] = []

    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[compile_room.Compiled, ...]:
        done = [compile_room.Compiled(p.key, r, f"{p.key}{r}".encode(), 1.0) for p in pieces for r in ranges]
        made.extend(c.key for c in done)
        return tuple(done)

    monkeypatch.setattr(compile_room, "compile_pieces", compile_pieces)
    return made
