"""The compile process, in this process: it reports every failure, and never by a traceback alone."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.aot.worker import PAYLOAD, PROGRAM, RESULT, JobFile, main


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = list(sys.path)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    yield
    sys.path[:] = path


def run(folder: Path, kind: str = "aoti", modules: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> Any:
    JobFile(kind, "cpu", "x86-64-v3", {}, modules, paths).write(folder)
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
    assert result["error"] == "LookupError: imported"


@pytest.mark.usefixtures("reads")
def test_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    _, result = run(tmp_path, kind="unheard")
    assert result["kind"] == "FormatError"
