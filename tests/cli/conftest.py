"""Fixtures of the command line: run it in this process, over a store in a temporary folder."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from tests.cli.support import FakeLibrary, Ran, strict_schema

from precast.cli.app import main

Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a home, a working folder and a temporary folder of its own, and no variable of ours."""
    for name in [*os.environ]:
        if name.startswith(("PRECAST_", "XDG_", "GITHUB_")) or name in ("NO_COLOR", "FORCE_COLOR", "CI"):
            monkeypatch.delenv(name)
    for name in ("home", "work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store that every run uses."""
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; a JSON answer is always held against its schema."""

    def go(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        ran = Ran(code, captured.out, captured.err)
        if "--json" in argv:
            answer = ran.json()
            name = answer["schema"].removeprefix("precast.").partition("/")[0]
            jsonschema.validate(answer, strict_schema(name))
            assert answer["exit_code"] == code
            assert answer["ok"] is (code == 0)
        return ran

    return go


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLibrary]:
    """Put a stand-in for a module of `precast.aot` in place, so that nothing is compiled."""

    def put(name: str, answer: object, function: str = "") -> FakeLibrary:
        fake = FakeLibrary(answer)
        module = ModuleType(f"precast.aot.{name}")
        setattr(module, function or name, fake)
        monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
        return fake

    return put
