"""The compile process, in this process: it reports every failure, and never by a traceback alone."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.aot.worker import PAYLOAD, PROGRAM, RESULT, JobFile, brief, main


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = list(sys.path)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    yield
    sys.path[:] = path


def run(folder: Path, kind: str = "aoti", modules: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> Any:
    JobFile(kind, "cpu", "x86-64-v3", None, {}, modules, paths).write(folder)
    (folder / PROGRAM).write_bytes(b"program")
    status = main([str(folder)])
    return status, json.loads((folder / RESULT).read_text(encoding="utf-8"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.torch_seams.export.program_from", lambda data: data)


def test_a_folder_without_a_job_is_reported(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
    assert "FileNotFoundError" in json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))["error"]


def test_a_program_that_cannot_be_read_is_reported_in_one_line(tmp_path: Path) -> None:
    status, result = run(tmp_path)
    assert status == 1
    assert "\n" not in result["error"]
    assert "Traceback" in result["trace"]
    assert not (tmp_path / PAYLOAD).exists()


@pytest.mark.usefixtures("reads")
def test_a_built_payload_lies_beside_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        def build(self, job: Any) -> bytes:
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
            assert os.environ["TRITON_CACHE_DIR"].startswith(str(tmp_path))
            return bytes(job.program) + str(job.target).encode()

    monkeypatch.setattr("precast.aot.payloads.payload_kind", lambda name: Kind())
    status, result = run(tmp_path)
    assert status == 0
    assert result["seconds"] >= 0
    assert (tmp_path / PAYLOAD).read_bytes() == b"programcpu x86-64-v3"


@pytest.mark.usefixtures("reads")
def test_modules_that_register_ops_are_imported_from_the_model_s_folder(tmp_path: Path) -> None:
    (tmp_path / "worker_ops.py").write_text("raise LookupError('imported')", encoding="utf-8")
    _, result = run(tmp_path, modules=("worker_ops",), paths=(str(tmp_path),))
    assert (result["error"], result["hint"]) == ("LookupError: imported", "")


@pytest.mark.usefixtures("reads")
def test_what_an_error_of_ours_says_to_do_goes_along(tmp_path: Path) -> None:
    text = "from precast.errors import IncompatibleError\nraise IncompatibleError('gone', 'why', 'install it')"
    (tmp_path / "worker_hint.py").write_text(text, encoding="utf-8")
    _, result = run(tmp_path, modules=("worker_hint",), paths=(str(tmp_path),))
    assert (result["error"], result["hint"]) == ("IncompatibleError: gone: why", "install it")


@pytest.mark.usefixtures("reads")
def test_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    _, result = run(tmp_path, kind="unheard")
    assert result["kind"] == "FormatError"


def test_an_error_is_told_by_its_type_and_first_line() -> None:
    assert brief(ValueError("\n  first \nsecond")) == "ValueError: first"
    assert brief(ValueError()) == "ValueError"


def test_a_report_leaves_no_unfinished_file(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert [p.name for p in tmp_path.iterdir()] == [RESULT]


# The child waits for a signal; its parent is killed as soon as the child has said that it is ready.
_CHILD = """
import os, signal, sys
from precast.aot.worker import die_with_parent
die_with_parent(int(sys.argv[1]))
os.write(1, b"ready\\n")
signal.pause()
"""
_PARENT = """
import os, subprocess, sys
command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
assert child.stdout.readline() == b"ready\\n"
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


# The same with a compiler driver and a compiler: they know nothing of either.
_CHILD_WITH_COMPILERS = """
import os, signal, subprocess, sys
from precast.aot.worker import die_with_parent, end_with_compilers
die_with_parent(int(sys.argv[1]))
with end_with_compilers():
    subprocess.Popen(["sh", "-c", "sleep 600 & echo ready; wait"])
    signal.pause()
"""


def source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


@pytest.mark.parametrize("program", [_CHILD, _CHILD_WITH_COMPILERS], ids=["alone", "with compilers"])
def test_a_worker_dies_with_its_parent_and_so_does_all_that_it_started(program: str) -> None:
    reader, writer = os.pipe()  # all hold its writing end as stderr: it ends when all have ended
    command = [sys.executable, "-c", _PARENT, program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, env=source()) as parent:
        os.close(writer)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.wait(timeout=60) == -signal.SIGKILL
        ended, _, _ = select.select([reader], [], [], 30)
    if not ended:
        os.killpg(child, signal.SIGKILL)
    assert ended
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_worker_that_ends_leaves_no_process_behind() -> None:
    program = """
import os, subprocess, sys
from precast.aot.worker import end_with_compilers
with end_with_compilers():
    subprocess.run(["true"], check=True)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none")
"""
    out = subprocess.run([sys.executable, "-c", program], env=source(), capture_output=True, check=False)
    assert (out.returncode, out.stdout) == (0, b"none\n")


def test_a_worker_whose_parent_has_ended_ends_at_once() -> None:
    program = "from precast.aot.worker import die_with_parent; die_with_parent(1 << 30); print('alive')"
    out = subprocess.run([sys.executable, "-c", program], env=source(), capture_output=True, check=False)
    assert (out.returncode, out.stdout) == (-signal.SIGKILL, b"")
