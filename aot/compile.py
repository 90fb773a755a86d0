"""Compile unique pieces, each once per compile range, in parallel worker processes.

Nothing is published from here: a failed piece fails the whole compile, and its siblings are stopped.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.aot.progress import Progress
from precast.aot.target import Target
from precast.aot.worker import PAYLOAD, PROGRAM, RESULT, JobFile
from precast.errors import CompileError
from precast.splitter.split import Piece

__all__ = ["CompileRequest", "Compiled", "compile_pieces"]

_STAGE = "compile"


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What is the same for all pieces of a compile.

    Attributes:
        kind: Payload kind.
        target: What the code runs on.
        options: Inductor options that the user gave.
        modules: Modules that register custom ops.
        paths: Folders to put first on the module search path.
        jobs: Processes at a time; 0 takes one a core.
    """

    kind: str
    target: Target
    options: Mapping[str, Any]
    modules: tuple[str, ...]
    paths: tuple[str, ...]
    jobs: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """One payload: a unique piece compiled for one range.

    Attributes:
        key: Structural key of the piece.
        range: Token counts, inclusive.
        data: The payload.
        seconds: Wall time of its process.
    """

    key: str
    range: tuple[int, int]
    data: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class _Job:
    piece: Piece
    range: tuple[int, int]
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.piece.label} {self.range[0]}-{self.range[1]}"


def compile_pieces(
    pieces: Sequence[Piece], ranges: Sequence[tuple[int, int]], request: CompileRequest, progress: Progress
) -> tuple[Compiled, ...]:
    """Compile every piece for every range.

    Args:
        pieces: Unique pieces.
        ranges: Compile ranges, inclusive.
        request: What is the same for all.
        progress: Is told of each finished payload.

    Raises:
        CompileError: A piece could not be exported or compiled, or its process died; the error names it.
    """
    with tempfile.TemporaryDirectory(prefix="precast-compile-") as root:
        progress.start(_STAGE, len(pieces) * len(ranges))
        jobs = [_prepare(p, r, Path(root), request) for p in pieces for r in ranges]
        results = _run_all(jobs, request.jobs or os.cpu_count() or 1, progress)
        progress.finish(_STAGE)
    return tuple(results)


def _prepare(piece: Piece, span: tuple[int, int], root: Path, request: CompileRequest) -> _Job:
    from precast.aot.torch_seams.export import export_piece, program_bytes

    folder = root / f"{piece.key[:16]}-{span[0]}-{span[1]}"
    folder.mkdir()
    job = _Job(piece, span, folder)
    try:
        data = program_bytes(export_piece(piece.graph_module, *span))
    except Exception as error:
        raise _failed(job, f"{type(error).__name__}: {_first_line(error)}") from error
    (folder / PROGRAM).write_bytes(data)
    target = request.target
    JobFile(request.kind, target.device, target.arch, request.options, request.modules, request.paths).write(folder)
    return job


class _Processes:
    """The compile processes that run; once stopped, none is started any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def run(self, command: Sequence[str], folder: Path, log: Path) -> int:
        """Run a process to its end and return its status."""
        with self._lock, log.open("wb") as out:
            if self._stopped:
                return -signal.SIGTERM
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_environment(folder),
                start_new_session=True,  # so that its compilers stop with it
            )
            self._running.append(process)
        status = process.wait()
        with self._lock:
            self._running.remove(process)
        return status

    def stop(self) -> None:
        """Kill what runs, compilers included."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _run_all(jobs: Sequence[_Job], at_a_time: int, progress: Progress) -> list[Compiled]:
    processes = _Processes()
    done: dict[Path, Compiled] = {}
    with ThreadPoolExecutor(max_workers=min(at_a_time, len(jobs)) or 1) as pool:
        futures = {pool.submit(_run, job, processes): job for job in jobs}
        try:
            for future in as_completed(futures):
                job, made = futures[future], future.result()
                done[job.folder] = made
                progress.advance(_STAGE, job.label, made.seconds, len(made.data))
        except BaseException:
            processes.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[job.folder] for job in jobs]


def _run(job: _Job, processes: _Processes) -> Compiled:
    started = time.perf_counter()
    log = job.folder / "log.txt"
    command = [sys.executable, "-m", "precast.aot.worker", str(job.folder)]
    status = processes.run(command, job.folder, log)
    if status != 0:
        raise _failed(job, _why(job, status, log))
    data = (job.folder / PAYLOAD).read_bytes()
    return Compiled(job.piece.key, job.range, data, time.perf_counter() - started)


def _environment(folder: Path) -> dict[str, str]:
    """Give the process its own temporary folder, so that nothing of it stays, and let it find this very precast."""
    import precast

    source = str(Path(precast.__file__).parent.parent)
    path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH", "")) if p)
    scratch = folder / "tmp"
    scratch.mkdir()
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)}


def _why(job: _Job, status: int, log: Path) -> str:
    result = job.folder / RESULT
    if result.exists():
        return str(json.loads(result.read_text(encoding="utf-8")).get("error", "no reason given"))
    if status < 0:
        return f"its compile process died with {signal.Signals(-status).name}"
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return f"its compile process ended with status {status}" + (f": {tail[0]}" if tail else "")


def _failed(job: _Job, why: str) -> CompileError:
    return CompileError(
        f"{job.label} could not be compiled",
        why,
        "nothing was published; run again with --debug for the compiler's own message",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"
