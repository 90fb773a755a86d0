import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from precast.cache.canonical import sha256
from precast.cache.sources import hash_source, locate_data, locate_source

TREE = (
    "first/regular/__init__.py",
    "first/regular/inner.py",
    "first/regular/inner/__init__.py",
    "first/module.py",
    "first/spread/one.py",
    "second/spread/two.py",
    "second/regular/__init__.py",
    "second/regular/hidden.py",
    "second/module.py",
    "second/late.py",
    "second/late/__init__.py",
    "second/data/table.json",
)


@pytest.fixture
def search_path(tmp_path: Path) -> list[str]:
    for name in TREE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return [str(tmp_path / "missing"), str(tmp_path / "first"), str(tmp_path / "second")]


MODULES = {
    "regular": "first/regular/__init__.py",
    "regular.inner": "first/regular/inner/__init__.py",
    "regular.hidden": None,
    "module": "first/module.py",
    "module.inner": None,
    "spread.one": "first/spread/one.py",
    "spread.two": "second/spread/two.py",
    "spread": None,
    "late": "second/late/__init__.py",
    "absent": None,
    "absent.inner": None,
}


@pytest.mark.parametrize(("module", "expected"), MODULES.items())
def test_a_module_is_found_where_an_import_would_find_it(
    search_path: list[str], tmp_path: Path, module: str, expected: str | None
) -> None:
    found = locate_source(module, search_path)
    assert found == (None if expected is None else tmp_path / expected)


def test_the_import_system_agrees(search_path: list[str]) -> None:
    program = (
        "import importlib.util, json, sys\n"
        "sys.path[:0] = json.loads(sys.argv[1])\n"
        "def find(name):\n"
        "    try:\n"
        "        spec = importlib.util.find_spec(name)\n"
        "    except ImportError:\n"
        "        return None\n"
        "    return spec and spec.has_location and spec.origin or None\n"
        "print(json.dumps({name: find(name) for name in json.loads(sys.argv[2])}))\n"
    )
    # The files hold no valid Python; parents are imported by find_spec, so they must.
    for folder in search_path:
        for path in Path(folder).rglob("*.py"):
            path.write_text("")
    argv = [sys.executable, "-c", program, json.dumps(search_path), json.dumps(list(MODULES))]
    theirs = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    ours = {name: found and str(found) for name in MODULES for found in (locate_source(name, search_path),)}
    assert ours == theirs


def test_an_extension_module_comes_before_a_source_file(search_path: list[str], tmp_path: Path) -> None:
    binary = tmp_path / "first" / f"module{EXTENSION_SUFFIXES[0]}"
    binary.touch()
    assert locate_source("module", search_path) == binary


def test_an_empty_search_path_entry_is_the_current_folder(
    search_path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "second")
    found = locate_source("module", [""])
    assert found is not None
    assert found.resolve() == tmp_path / "second/module.py"


def test_locating_imports_nothing(search_path: list[str]) -> None:
    before = set(sys.modules)
    assert locate_source("regular.inner", search_path) is not None
    assert set(sys.modules) == before


def test_a_source_is_hashed_by_content_alone(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_bytes(b"x = 1\n")
    assert hash_source(tmp_path / "a.py") == hash_source(str(tmp_path / "b.py")) == sha256(b"x = 1\n")
    with pytest.raises(FileNotFoundError):
        hash_source(tmp_path / "c.py")


@pytest.mark.parametrize(
    ("name", "found"),
    [("data/table.json", True), ("data/none.json", False), ("data", False), ("../second/data/table.json", False)],
)
def test_a_data_file_is_found_below_the_search_path_only(search_path: list[str], name: str, found: bool) -> None:
    assert (locate_data(name, search_path) is not None) is found


def test_an_absolute_data_file_is_not_found(search_path: list[str], tmp_path: Path) -> None:
    assert locate_data(str(tmp_path / "second/data/table.json"), search_path) is None
