"""Compile unique pieces, each once per compile range, in parallel worker processes.

Nothing is published from here: a failed piece fails the whole compile, and its siblings are stopped.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.aot.described import compiling_for
from precast.aot.progress import Progress
from precast.aot.scratch import scratch_folder
from precast.aot.target import Target
from precast.aot.worker import PAYLOAD, PROGRAM, RESULT, JobFile, brief
from precast.errors import CompileError, StoreAccessError
from precast.splitter.split import Piece

__all__ = ["CompileRequest", "Compiled", "compile_pieces", "usable_cores"]

_STAGE = "compile"
_LOG_LINES = 40
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


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
        StoreAccessError: The temporary folder cannot be used.
    """
    with _scratch() as root:
        progress.start(_STAGE, len(pieces) * len(ranges))
        with compiling_for(request.target):
            jobs = [_prepare(p, r, root, request) for p in pieces for r in ranges]
        results = _run_all(jobs, request.jobs or usable_cores(), progress)
        progress.finish(_STAGE)
    return tuple(results)


@contextmanager
def _scratch() -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder("compile"))
        except OSError as error:
            raise StoreAccessError(
                "pieces cannot be compiled without a temporary folder",
                brief(error),
                "free space or give access there, or name another folder in TMPDIR",
                path=str(error.filename or os.environ.get("TMPDIR", "")),
            ) from error
        yield folder


def _prepare(piece: Piece, span: tuple[int, int], root: Path, request: CompileRequest) -> _Job:
    from precast.aot.torch_seams.export import export_piece, program_bytes

    folder = root / f"{piece.key[:16]}-{span[0]}-{span[1]}"
    folder.mkdir()
    job = _Job(piece, span, folder)
    try:
        data = program_bytes(export_piece(piece.graph_module, *span))
    except Exception as error:
        raise _failed(job, brief(error)) from error
    (folder / PROGRAM).write_bytes(data)
    target = request.target
    description = None if target.description is None else target.description.to_json()
    JobFile(
        request.kind, target.device, target.arch, description, request.options, request.modules, request.paths
    ).write(folder)
    return job


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and the CPU quota of its cgroups (version 2)."""
    return max(1, int(min([len(os.sched_getaffinity(0)), *_quotas()])))


def _quotas() -> list[float]:
    """Return the cores that each cgroup around this process allows; a cgroup without a limit is passed over."""
    try:
        lines = _OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    found = []
    for folder in (_CGROUPS / own, *(_CGROUPS / own).parents):
        with suppress(OSError, ValueError):  # the root has no limit, and "max" is no number
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
            found.append(int(quota) / int(period))
        if folder == _CGROUPS:
            break
    return found


class _Processes:
    """The compile processes that run; once stopped, none is started any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._failure: CompileError | None = None

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

    def failed(self, failure: CompileError) -> CompileError:
        """Stop all because of a failure; return the first one, since those after it may be of the stopping."""
        with self._lock:
            first = self._failure = self._failure or failure
        self.stop()
        return first

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
    command = [sys.executable, "-m", "precast.aot.worker", str(job.folder), str(os.getpid())]
    status = processes.run(command, job.folder, log)
    if status != 0:
        raise processes.failed(_died(job, status, log))
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


def _died(job: _Job, status: int, log: Path) -> CompileError:
    """Say why a process failed; its trace and the end of its log go along, since its folder does not stay."""
    result = _result(job.folder / RESULT)
    lines = _tail(log)
    why = str(result["error"]) if "error" in result else _ending(status, lines)
    error = _failed(job, why, str(result.get("hint") or ""))
    if "trace" in result:
        error.add_note(f"In the compile process:\n{str(result['trace']).rstrip()}")
    if lines:
        error.add_note("\n".join(["End of the compile process's log:", *lines]))
    return error


def _result(path: Path) -> dict[str, Any]:
    """Read what a process reported; one that was killed has reported nothing, or half of it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tail(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LOG_LINES:]
    except OSError:
        return []


def _ending(status: int, lines: Sequence[str]) -> str:
    if status < 0:
        known = {s.value: s.name for s in signal.Signals}
        return f"its compile process died with {known.get(-status, f'signal {-status}')}"
    return f"its compile process ended with status {status}" + (f": {lines[-1]}" if lines else "")


def _failed(job: _Job, why: str, hint: str = "") -> CompileError:
    return CompileError(
        f"{job.label} could not be compiled",
        why,
        hint or "nothing was published; run again with --debug for the compiler's own message",
    )
