"""A process that has imported what a command needs and forks a new process for each command line.

A scenario that repeats commands dozens of times would spend most of its time on imports. Each command still runs in a
process of its own, which begins and dies alone; some repetitions are left to processes that start from nothing.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

__all__ = ["Ended", "Forks", "forks"]

_SERVER = """
import importlib, json, os, sys
given = json.loads(sys.argv[1])
for name in given["modules"]:
    importlib.import_module(name)
from precast.cli.app import main
if given["warm"]:
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    assert main(given["warm"]) == 0
    sys.stdout.flush()
    os.dup2(told, 1)
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(os.open(asked["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.environ.update(asked["environ"])
        code = 70
        try:
            code = main(asked["argv"])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


class Forks:
    """Runs command lines one after the other, each in a process of its own."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self._server = server
        self._out, self._err = folder / "out", folder / "err"
        self.pid = 0

    def start(self, *args: str, **environ: str) -> int:
        """Start a command, and return its process id."""
        asked = {"argv": args, "environ": environ, "out": str(self._out), "err": str(self._err)}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        self.pid = int(self._line())
        return self.pid

    def kill(self) -> None:
        """Kill the command that runs, as `kill -9` does; one that has just ended is left alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> Ended:
        """Wait for the command to end; fail on a traceback."""
        status = int(self._line())
        err = self._err.read_text(encoding="utf-8")
        assert "Traceback" not in err, err
        return Ended(status, self._out.read_text(encoding="utf-8"), err)

    def run(self, *args: str, **environ: str) -> Ended:
        """Run a command to its end."""
        self.start(*args, **environ)
        return self.end()

    def _line(self) -> str:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the process that forks has ended"
        return line


@contextmanager
def forks(folder: Path, environ: dict[str, str], modules: Sequence[str], warm: Sequence[str] = ()) -> Iterator[Forks]:
    """Start the process that forks.

    Args:
        folder: An empty folder for what the commands write.
        environ: The environment of all commands.
        modules: What is imported before the first fork.
        warm: A command line that is run before the first fork; what torch does once a process is done then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environ = {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1", **environ}
    given = json.dumps({"modules": [*modules], "warm": [*warm]})
    command = [sys.executable, "-W", "ignore", "-c", _SERVER, given]
    server = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield Forks(server, folder)
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(60)
