"""Compile processes: a death has a name, a failure stops its siblings, and nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models import Layers, make_spec, split_spec

from precast.aot import compile as compiling
from precast.aot.compile import Compiled, CompileRequest, compile_pieces, usable_cores
from precast.aot.progress import Silent
from precast.aot.target import Target
from precast.aot.worker import JOB, PAYLOAD, RESULT
from precast.errors import CompileError
from precast.splitter.split import Piece

PIECES = split_spec(make_spec(lambda: Layers(2))).pieces
REAL = subprocess.Popen


class Recorder(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def start(self, stage: str, total: int) -> None:
        self.events.append(("start", stage, total))

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        self.events.append(("advance", label, size))

    def finish(self, stage: str) -> None:
        self.events.append(("finish", stage))


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiles put their folders; no export, which is tested elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("precast.aot.torch_seams.export.export_piece", lambda *_: None)
    monkeypatch.setattr("precast.aot.torch_seams.export.program_bytes", lambda _: b"program")
    return tmp_path


def workers(monkeypatch: pytest.MonkeyPatch, program: Callable[[Path], str]) -> list[subprocess.Popen[bytes]]:
    """Replace the worker by a shell script that `program` makes for a job's folder."""
    started = []

    def popen(command: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        assert command[:3] == [sys.executable, "-m", "precast.aot.worker"]
        process = REAL(["/bin/sh", "-c", program(Path(command[3]))], **kwargs)
        started.append(process)
        return process

    monkeypatch.setattr("precast.aot.compile.subprocess.Popen", popen)
    return started


def run(
    pieces: tuple[Piece, ...] = PIECES[:1],
    ranges: tuple[tuple[int, int], ...] = ((1, 512),),
    jobs: int = 1,
    progress: Any = None,
) -> tuple[Compiled, ...]:
    request = CompileRequest("aoti", Target("cpu", "x86-64-v3"), {"a.b": 1}, ("some_module",), ("/some/path",), jobs)
    return compile_pieces(pieces, ranges, request, progress or Recorder())


def works(folder: Path) -> str:
    return f"printf %s {folder.name} > {folder}/{PAYLOAD}"


def test_each_piece_is_compiled_once_a_range(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    workers(monkeypatch, works)
    progress = Recorder()
    made = run(PIECES, ((1, 64), (65, 512)), 2, progress)
    assert [(m.key, m.range) for m in made] == [(p.key, r) for p in PIECES for r in ((1, 64), (65, 512))]
    assert all(m.data.decode() == f"{m.key[:16]}-{m.range[0]}-{m.range[1]}" for m in made)
    assert progress.events[0] == ("start", "compile", 6)
    assert progress.events[-1] == ("finish", "compile")
    assert {e[1] for e in progress.events[1:-1]} == {f"{p.label} {r}" for p in PIECES for r in ("1-64", "65-512")}
    assert list(scratch.iterdir()) == []


def test_the_job_file_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []

    def program(folder: Path) -> str:
        jobs.append(json.loads((folder / JOB).read_text(encoding="utf-8")))
        return works(folder)

    workers(monkeypatch, program)
    run()
    assert jobs == [
        {
            "kind": "aoti", "device": "cpu", "arch": "x86-64-v3", "description": None, "options": {"a.b": 1},
            "modules": ["some_module"], "paths": ["/some/path"],
        }
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_process_that_dies_by_a_signal_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    workers(monkeypatch, lambda folder: f"kill -{int(number)} $$")
    with pytest.raises(CompileError) as caught:
        run()
    assert caught.value.what == f"{PIECES[0].label} 1-512 could not be compiled"
    assert caught.value.why.endswith(number.name)
    assert "nothing was published" in caught.value.hint


def test_the_worker_s_own_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.dumps({"error": "RuntimeError: no such kernel"})
    workers(monkeypatch, lambda folder: f"echo '{result}' > {folder}/{RESULT}; exit 1")
    with pytest.raises(CompileError, match="RuntimeError: no such kernel") as caught:
        run()
    assert "nothing was published" in caught.value.hint


def test_what_the_worker_says_to_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.dumps({"error": "IncompatibleError: no headers", "hint": "install them"})
    workers(monkeypatch, lambda folder: f"echo '{result}' > {folder}/{RESULT}; exit 1")
    with pytest.raises(CompileError) as caught:
        run()
    assert caught.value.hint == "install them"


def test_a_process_without_a_reason_gives_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    workers(monkeypatch, lambda folder: "echo first; echo last words >&2; exit 3")
    with pytest.raises(CompileError, match="status 3: last words"):
        run()


def test_a_piece_that_cannot_be_exported_starts_no_process(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("unsupported\nmore lines")

    monkeypatch.setattr("precast.aot.torch_seams.export.export_piece", fail)
    started = workers(monkeypatch, works)
    with pytest.raises(CompileError, match="ValueError: unsupported"):
        run(PIECES)
    assert not started
    assert list(scratch.iterdir()) == []


def test_a_failing_piece_stops_its_siblings_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    failing = PIECES[1].key[:16]

    def program(folder: Path) -> str:
        if folder.name.startswith(failing):  # fails as soon as its sibling has started
            return f"until ls {folder.parent}/*/never; do :; done; exit 1"
        os.mkfifo(folder / "never")
        return f"cat {folder / 'never'}"  # waits until it is killed

    started = workers(monkeypatch, program)
    with pytest.raises(CompileError, match=PIECES[1].label.replace("(", r"\(").replace(")", r"\)")):
        run(PIECES[:2], jobs=2)
    assert sorted(p.wait(timeout=30) for p in started) == [-signal.SIGKILL, 1]
    assert list(scratch.iterdir()) == []


def test_jobs_that_had_not_started_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = workers(monkeypatch, lambda folder: "exit 1")
    with pytest.raises(CompileError):
        run(PIECES, ((1, 64), (65, 512)), jobs=1)
    assert len(started) <= 2  # one may have been under way when the failure was seen


def test_an_interrupt_stops_everything(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    class Interrupting(Recorder):
        def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
            raise KeyboardInterrupt

    workers(monkeypatch, works)
    with pytest.raises(KeyboardInterrupt):
        run(PIECES, jobs=1, progress=Interrupting())
    assert list(scratch.iterdir()) == []


def test_a_worker_finds_this_precast_and_keeps_its_files_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    workers(monkeypatch, lambda folder: f'printf "%s|%s" "$PYTHONPATH" "$TMPDIR" > {folder}/{PAYLOAD}')
    monkeypatch.setenv("PYTHONPATH", "/their/own")
    path, scratch = run()[0].data.decode().split("|")
    first, *rest = path.split(os.pathsep)
    assert Path(first, "precast", "errors.py").is_file()
    assert rest == ["/their/own"]
    assert Path(scratch).name == "tmp"


def test_the_worker_s_trace_and_the_end_of_its_log_are_shown_with_the_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    result = tmp_path_factory.mktemp("given") / "result.json"
    result.write_text(json.dumps({"error": "E: x", "trace": "Traceback\n  in the_worker"}), encoding="utf-8")
    workers(monkeypatch, lambda f: f"for i in $(seq 1 99); do echo line-$i; done; cp {result} {f}/{RESULT}; exit 1")
    with pytest.raises(CompileError) as caught:
        run()
    shown = "".join(traceback.format_exception(caught.value))  # what --debug prints
    assert "in the_worker" in shown
    assert "line-99" in shown
    assert "line-60\n" in shown
    assert "line-59\n" not in shown
    assert "line-99" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"error": "half of', "", "[1, 2]", "null"])
def test_a_half_written_result_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    workers(monkeypatch, lambda folder: f"printf '%s' '{text}' > {folder}/{RESULT}; kill -9 $$")
    with pytest.raises(CompileError, match="died with SIGKILL"):
        run()


def test_a_signal_without_a_name_is_told_by_number() -> None:
    assert compiling._ending(-35, []).endswith("died with signal 35")


@pytest.mark.parametrize(
    ("affinity", "quotas", "cores"),
    [
        (8, {}, 8), (8, {"a/b": "max 100000"}, 8), (8, {"a/b": "300000 100000"}, 3), (2, {"a/b": "300000 100000"}, 2),
        (8, {"a": "150000 100000", "a/b": "max 100000"}, 1), (8, {"": "50000 100000"}, 1), (8, {"a/b": "garbage"}, 8),
    ],
)  # fmt: skip
def test_the_cores_are_those_that_this_process_may_use(
    affinity: int, quotas: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups/a/b").mkdir(parents=True)
    (tmp_path / "own").write_text("3:cpu:/elsewhere\n0::/a/b\n", encoding="utf-8")
    for folder, text in quotas.items():
        (tmp_path / "groups" / folder / "cpu.max").write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(compiling, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(compiling, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    assert usable_cores() == cores


def test_without_cgroups_the_affinity_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_OWN_CGROUP", tmp_path / "absent")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert usable_cores() == 3


def test_jobs_0_takes_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def run_all(jobs: Any, at_a_time: int, progress: Any) -> list[Compiled]:
        seen.append(at_a_time)
        return []

    monkeypatch.setattr(compiling, "usable_cores", lambda: 3)
    monkeypatch.setattr(compiling, "_run_all", run_all)
    run(jobs=0)
    run(jobs=2)
    assert seen == [3, 2]


def test_a_worker_is_told_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def popen(command: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        seen.append(command[4])
        return REAL(["/bin/sh", "-c", works(Path(command[3]))], **kwargs)

    monkeypatch.setattr("precast.aot.compile.subprocess.Popen", popen)
    run()
    assert seen == [str(os.getpid())]
