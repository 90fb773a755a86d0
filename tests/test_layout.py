"""The package is what the folders hold: sub-packages are listed, linked and typed, imports stay where they belong."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("cli", "aot", "cache", "splitter", "capture", "examples")


def test_every_package_is_listed() -> None:
    found = {"precast"}
    for folder in FOLDERS:
        for file in (REPOSITORY / folder).rglob("__init__.py"):
            found.add(".".join(("precast", *file.parent.relative_to(REPOSITORY).parts)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_folder_of_sources_is_a_package() -> None:
    bare = {
        str(file.parent.relative_to(REPOSITORY))
        for folder in FOLDERS
        for file in (REPOSITORY / folder).rglob("*.py")
        if not (file.parent / "__init__.py").is_file()
    }
    assert bare == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_is_linked_into_the_package(folder: str) -> None:
    link = REPOSITORY / "src" / "precast" / folder
    assert link.resolve() == REPOSITORY / folder


def test_every_json_file_of_a_package_is_shipped() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    schemas = sorted(p.name for p in (REPOSITORY / "cli" / "schemas").iterdir())
    assert schemas
    assert data["precast.cli"] == ["schemas/*.json"]
    targets = sorted(p.name for p in (REPOSITORY / "aot" / "targets").iterdir())
    assert targets
    assert all(name.endswith(".json") for name in targets)
    assert data["precast.aot"] == ["targets/*.json"]


@pytest.mark.parametrize(
    "module", ["precast", "precast.cache", "precast.cli.app", "precast.aot.precompile", "precast.aot.live"]
)
def test_start_up_never_imports_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_there() -> None:
    import precast

    for name in precast.__all__:
        assert getattr(precast, name) is not None
    with pytest.raises(AttributeError):
        precast.nothing  # noqa: B018


def test_no_python_file_is_executed_from_the_root_by_accident() -> None:
    assert not [p.name for p in REPOSITORY.glob("*.py")]
    assert not (REPOSITORY / "__init__.py").exists()
    assert Path(REPOSITORY / "src" / "precast" / "py.typed").is_file()
