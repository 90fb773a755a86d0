"""One compile process: reads a job folder, writes the payload beside it.

Run as `python -m precast.aot.worker FOLDER PARENT`; it ends when the process PARENT does, and its compilers with it.

A process compiles one piece and ends. Inductor numbers what it compiles in a process, so this makes a payload
independent of what was compiled before it, and a crash of the compiler costs one piece and has a name.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precast.aot.torch_seams.caches import user_has_name
from precast.errors import PrecastError

__all__ = ["JOB", "PAYLOAD", "PROGRAM", "RESULT", "JobFile", "brief", "die_with_parent", "end_with_compilers", "main"]

JOB = "job.json"
PROGRAM = "program.pt2"
PAYLOAD = "payload.bin"
RESULT = "result.json"

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class JobFile:
    """What the parent asks of a compile process.

    Attributes:
        kind: Payload kind.
        device: Target's device.
        arch: Target's architecture.
        description: The described GPU, as JSON; None for a CPU.
        options: Inductor options by dotted name.
        modules: Modules that register custom ops; imported before the program is read.
        paths: Folders to put first on the module search path, for models given as a file.
    """

    kind: str
    device: str
    arch: str
    description: Mapping[str, Any] | None
    options: Mapping[str, Any]
    modules: tuple[str, ...]
    paths: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write the job into its folder."""
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")


def main(argv: list[str]) -> int:
    """Compile the job in folder `argv[0]`.

    Returns:
        0, or 1 with the error in the result file.
    """
    folder = Path(argv[0])
    started = time.perf_counter()
    try:
        with user_has_name():
            payload = _compile(folder, JobFile(**json.loads((folder / JOB).read_text(encoding="utf-8"))))
    except Exception as error:  # noqa: BLE001 - the parent turns any failure into one error with the piece's name
        told = {"error": brief(error), "kind": type(error).__name__, "trace": traceback.format_exc()}
        _report(folder, {**told, "hint": error.hint if isinstance(error, PrecastError) else ""})
        return 1
    (folder / PAYLOAD).write_bytes(payload)
    _report(folder, {"seconds": time.perf_counter() - started})
    return 0


def brief(error: BaseException) -> str:
    """Return an error's type and the first line of its message, for people."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the one that started it ends, however it ends (Linux, `prctl`).

    Args:
        parent: Process id of the parent; it may have ended before this was asked for.
    """
    if not sys.platform.startswith("linux"):
        return
    _signal_on_death_of(parent, signal.SIGKILL)


@contextmanager
def end_with_compilers() -> Iterator[None]:
    """Let whatever this process starts in the block end with it, however it ends (Linux, `prctl`).

    The kernel tells only the children of a process that it has ended, and only those that asked; a compiler driver
    and the programs that it starts never do. A child that did ask kills them all: they are one process group.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    watch = os.fork()
    if watch == 0:
        _signal_on_death_of(parent, signal.SIGTERM)
        signal.sigwait({signal.SIGTERM})
        os.killpg(parent, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        os.kill(watch, signal.SIGKILL)
        os.waitpid(watch, 0)


def _signal_on_death_of(parent: int, number: signal.Signals) -> None:
    """Ask the kernel for a signal when the parent ends; send it oneself where it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _compile(folder: Path, job: JobFile) -> bytes:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    sys.path[:0] = job.paths

    from precast.aot.described import compiling_for
    from precast.aot.description import read_description
    from precast.aot.payloads import BuildJob, payload_kind
    from precast.aot.target import Target
    from precast.aot.torch_seams.export import program_from

    for name in job.modules:
        importlib.import_module(name)
    target = Target(job.device, job.arch, None if job.description is None else read_description(job.description))
    with compiling_for(target):
        program = program_from((folder / PROGRAM).read_bytes())
        return payload_kind(job.kind).build(BuildJob(program, target, job.options, folder))


def _report(folder: Path, result: Mapping[str, Any]) -> None:
    unfinished = folder / f"{RESULT}.part"
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(folder / RESULT)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    with end_with_compilers():
        status = main(sys.argv[1:])
    sys.exit(status)
