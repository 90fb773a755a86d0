"""Part `commands`: how long each command takes in a fresh process, on an empty cache and on large ones."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.inspect_scale import factors
from tests.bench.launch import ROOT
from tests.bench.prune_scale import fill
from tests.bench.recording import Bench, tell
from tests.bench.workload import CONFIGS

from precast.cache.factors import entry_key

__all__ = ["ENTRIES", "PART", "measure_commands"]

PART = "commands"
ENTRIES = (100, 1_000, 10_000)
_LEAST = 20.0
_MODEL = str(CONFIGS / "tiny-llama")
# Exit codes by which a command says what it found: nothing there, and damage, which synthetic entries are full of.
_FINE = (0, 3, 4, 10)


def measure_commands(bench: Bench, scratch: Path, counts: Sequence[int]) -> None:
    """Time every command in turns.

    Args:
        bench: The run.
        scratch: Where roots are made.
        counts: Entries of the large roots.
    """
    empty = scratch / "root-0"
    _measure(bench, start_ups(empty), None)
    for count in counts:
        if not bench.has_time(PART, "precast inspect ls", _LEAST + count / 300, at=count):
            continue
        root = scratch / f"root-{count}"
        started = time.perf_counter()
        fill(root, count)
        tell(f"{PART}: {count} entries made   {time.perf_counter() - started:.0f} s")
        bench.add(PART, "precast inspect ls, no index", "wall", _seconds(_words("inspect", "ls", root=root)), at=count)
        _measure(bench, on_root(root), count)


def start_ups(root: Path) -> dict[str, list[str]]:
    """Return a call of every command that says little: what it takes is its start."""
    return {
        "precast --help": _words("--help"),
        "precast precompile --help": _words("precompile", "--help"),
        "precast verify --help": _words("verify", "--help"),
        "precast config": _words("config", root=root),
        "precast schema precompile": _words("schema", "precompile"),
        "precast inspect ls": _words("inspect", "ls", root=root),
        "precast inspect stats": _words("inspect", "stats", root=root),
        "precast inspect explain MODEL": _words("inspect", "explain", _MODEL, root=root),
        "precast prune --dry-run": _words("prune", "--dry-run", root=root),
    }


def on_root(root: Path) -> dict[str, list[str]]:
    """Return the commands that read a root, on one with synthetic entries."""
    one, other = entry_key(factors(0)), entry_key(factors(1))
    size = sum(path.stat().st_blocks * 512 for path in root.rglob("*")) // 2
    return {
        "precast inspect ls": _words("inspect", "ls", root=root),
        "precast inspect show KEY": _words("inspect", "show", one, root=root),
        "precast inspect diff KEY KEY": _words("inspect", "diff", one, other, root=root),
        "precast inspect stats": _words("inspect", "stats", root=root),
        "precast inspect explain MODEL": _words("inspect", "explain", _MODEL, root=root),
        "precast verify KEY --level files": _words("verify", one, "--level", "files", root=root),
        "precast prune --dry-run": _words("prune", "--dry-run", root=root),
        "precast prune --dry-run --max-size": _words("prune", "--dry-run", "--max-size", str(size), root=root),
    }


def _measure(bench: Bench, commands: Mapping[str, list[str]], at: int | None) -> None:
    for number in range(bench.repeats + 1):
        for name, words in commands.items():
            seconds = _seconds(words)
            if number:  # the first one fills the file cache, and makes the index
                bench.add(PART, name, "wall", seconds, at=at)
        bench.save()
    tell(f"{PART}: {len(commands)} commands, {'empty cache' if at is None else f'{at} entries'}")


def _words(*words: str, root: Path | None = None) -> list[str]:
    place = [] if root is None else ["--cache-dir", str(root)]
    return [sys.executable, "-m", "precast.cli", *words, *place]


def _seconds(command: Sequence[str]) -> float:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PRECAST_")}
    environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environ, text=True)
    seconds = time.perf_counter() - started
    if done.returncode not in _FINE:
        raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr[-300:]}")
    return seconds
