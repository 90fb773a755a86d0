"""The command line in a fresh process in which traces and compiles are counted from outside: see `counted`."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

__all__ = ["ACCOUNTED", "TICK", "Run", "counted", "verify"]

HOOK = Path(__file__).parent / "counted"
ACCOUNTED = 0.95  # share of the wall time that named phases must make up
TICK = 0.02  # the kernel dates the start of a process in steps of 10 ms


@dataclass(frozen=True)
class Run:
    """A finished command.

    Attributes:
        status: Its exit status.
        answer: The JSON that it wrote.
        err: What it wrote to stderr.
        seconds: From its start until the answer had come.
        counts: What was traced, compiled and started in it, by kind.
        torch: Whether it imported torch.
    """

    status: int
    answer: dict[str, Any]
    err: str
    seconds: float
    counts: Mapping[str, int]
    torch: bool

    @property
    def stages(self) -> dict[str, Any]:
        """The stages of a verify by name."""
        return {stage["name"]: stage for stage in self.answer["data"]["stages"]}


def counted(log: Path, *command: str, environ: Mapping[str, str] | None = None) -> tuple[subprocess.Popen[str], float]:
    """Start a command in a fresh process that counts; returns it and the time of its start.

    Args:
        log: Where it writes what it counted.
        command: The command.
        environ: More of its environment.
    """
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        **(environ or {}),
        "PYTHONPATH": os.pathsep.join((str(HOOK), str(REPOSITORY / "src"))),
        "COUNT_LOG": str(log),
    }
    started = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environ, text=True, **pipes), started


def verify(log: Path, root: Path, *args: str, environ: Mapping[str, str] | None = None) -> Run:
    """Run `precast verify` on a root, and wait for it."""
    command = [sys.executable, "-m", "precast.cli", "verify", *args, "--json", "--cache-dir", str(root)]
    process, started = counted(log, *command, environ=environ)
    assert process.stdout is not None
    assert process.stderr is not None
    answer = process.stdout.readline()
    seconds = time.perf_counter() - started
    _, err = process.communicate()
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    log.unlink()
    counts: Counter[str] = Counter()
    for line in lines:  # processes that it started count too
        counts.update(line["counts"])
    return Run(process.returncode, json.loads(answer), err, seconds, counts, any(line["torch"] for line in lines))
