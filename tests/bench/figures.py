"""Figures with bounds of their own: `python -m tests.bench [start-up] [load] [depth]`, all by default.

Each figure is the median of fresh processes on this machine, printed with its bound. Exit 1 when a bound is missed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GROUPS", "run_groups"]

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples" / "configs" / "tiny-llama"
OPTIONS = ("--max-num-batched-tokens", "512")
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and its bound."""

    name: str
    value: float
    bound: float
    unit: str

    @property
    def ok(self) -> bool:
        return self.value <= self.bound

    def __str__(self) -> str:
        return f"{self.name:58} {self.value:9.3f} {self.unit:3} (bound {self.bound:g}) {'ok' if self.ok else 'MISSED'}"


def precast(*args: str, store: Path) -> str:
    """Run the command line in a fresh process and return its stdout."""
    command = [sys.executable, "-m", "precast.cli", *args, "--cache-dir", str(store)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def seconds(command: Sequence[str]) -> float:
    """Return the median wall time of a command in fresh processes."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def child(code: str, *args: str) -> dict[str, float]:
    """Run code that prints one JSON object in fresh processes, and return the median of each number."""
    rows = []
    for _ in range(REPEATS):
        done = subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True, cwd=ROOT)
        rows.append(json.loads(done.stdout))
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def start_up(store: Path) -> list[Figure]:
    """Measure the commands that must not import torch."""
    precast("precompile", str(TINY), *OPTIONS, store=store)
    cli = [sys.executable, "-m", "precast.cli"]
    again = [*cli, "precompile", str(TINY), *OPTIONS, "--cache-dir", str(store)]
    return [
        Figure("precast --help", seconds([*cli, "--help"]), 0.6, "s"),
        Figure("precast inspect ls", seconds([*cli, "inspect", "ls", "--cache-dir", str(store)]), 0.6, "s"),
        Figure("precast precompile, up to date", seconds(again), 0.6, "s"),
    ]


LOAD = """
import json, sys, time
import torch
from precast.examples.decoder.spec import tiny
spec = tiny()
module = spec.build().eval().requires_grad_(False)
started = time.perf_counter()
import precast
forward = precast.load(sys.argv[1], module, cache_dir=sys.argv[2])
loaded = time.perf_counter()
with torch.no_grad(), spec.sample(module, 64, 0) as inputs:
    first = time.perf_counter()
    forward(*inputs)
    done = time.perf_counter()
heavy = [m for m in ("torch._dynamo", "torch._inductor", "sympy", "triton") if m in sys.modules]
print(json.dumps({"load": loaded - started, "first": done - first, "heavy": len(heavy)}))
"""


def load(store: Path) -> list[Figure]:
    """Measure load and first call of a 4-layer model in a fresh process, torch's import left out."""
    key = precast("precompile", str(TINY), *OPTIONS, "--format", "quiet", store=store).strip()
    found = child(LOAD, key, str(store))
    return [
        Figure("load, 4 layers, CPU", found["load"], 0.1, "s"),
        Figure("first call, 64 tokens", found["first"], 0.5, "s"),
        Figure("heavy modules imported by load and first call", found["heavy"], 0, ""),
    ]


def depth(store: Path) -> list[Figure]:
    """Measure that work and bytes do not grow with depth: 4, 16 and 32 equal layers."""
    found = {}
    for layers in (4, 16, 32):
        options = (*OPTIONS, "--set", f"num_hidden_layers={layers}", "--json")
        found[layers] = json.loads(precast("precompile", str(TINY), *options, store=store))["data"]
    return [
        Figure("unique pieces, 32 layers against 4", found[32]["unique"] / found[4]["unique"], 1.0, "x"),
        Figure("unique pieces, 16 layers against 4", found[16]["unique"] / found[4]["unique"], 1.0, "x"),
        Figure("mega artifact, 32 layers against 4", found[32]["mega_bytes"] / found[4]["mega_bytes"], 1.2, "x"),
    ]


GROUPS: dict[str, Callable[[Path], list[Figure]]] = {"start-up": start_up, "load": load, "depth": depth}


def run_groups(names: Sequence[str]) -> int:
    """Run the named groups and print their figures; 1 when a bound is missed."""
    given = os.environ.get("PRECAST_BENCH_STORE")
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(given or scratch)
        figures = [f for name in names or GROUPS for f in GROUPS[name](store)]
    print("\n".join(str(f) for f in figures))
    return 0 if all(f.ok for f in figures) else 1
