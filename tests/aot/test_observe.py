"""What a model's own code reads is seen; what others read is not."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.aot.observe import is_model_file, observe, variables_named_in

MODULE = """
import json, os
from os import environ
from pathlib import Path
A = os.environ.get("SEEN_GET")
B = os.getenv("SEEN_GETENV", "x")
C = "SEEN_IN" in environ
try:
    environ["SEEN_ITEM"]
except KeyError:
    pass
NAME = "SEEN_" + "COMPUTED"
D = os.environ.get(NAME)
TABLE = json.loads(Path(__file__).with_name("observed_table.json").read_text())
with open(Path(__file__).with_name("observed_weights.safetensors"), "rb") as f:
    f.read()
def later():
    return os.environ.get("SEEN_LATER")
"""
SEEN = {"SEEN_GET", "SEEN_GETENV", "SEEN_IN", "SEEN_ITEM", "SEEN_COMPUTED"}


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "observed_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "observed_table.json").write_text("{}", encoding="utf-8")
    (tmp_path / "observed_weights.safetensors").write_bytes(b"")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    sys.path.remove(str(tmp_path))
    sys.modules.pop("observed_module", None)


def test_variables_and_data_files_of_an_import_are_seen(module: Path) -> None:
    with observe() as seen:
        importlib.import_module("observed_module")
    assert set(seen.variables) == SEEN
    assert set(seen.files) == {module / "observed_table.json"}


def test_reads_of_a_call_are_seen_and_nothing_after_the_block(module: Path) -> None:
    made = importlib.import_module("observed_module")
    with observe() as seen:
        made.later()
    made.later()
    os.environ.get("SEEN_AFTER")
    assert set(seen.variables) == {"SEEN_LATER"}


def test_the_environment_is_put_back(module: Path) -> None:
    before = os._Environ.__getitem__
    with pytest.raises(ZeroDivisionError), observe():
        raise ZeroDivisionError
    assert os._Environ.__getitem__ is before


def test_what_an_installed_package_reads_for_the_model_counts_and_what_it_reads_when_imported_does_not(
    tmp_path: Path,
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "observed_package.py").write_text(
        "import os\nfrom pathlib import Path\nos.environ.get('SEEN_IMPORT')\n"
        "def load(path):\n    os.environ.get('SEEN_CALL')\n    return Path(path).read_text()\n",
        encoding="utf-8",
    )
    table = tmp_path / "table.csv"
    table.write_text("1", encoding="utf-8")
    sys.path.insert(0, str(installed))
    try:
        with observe() as seen:
            importlib.import_module("observed_package").load(str(table))
        with observe(["observed_package"]) as own:
            sys.modules["observed_package"].load(str(table))
    finally:
        sys.path.remove(str(installed))
        sys.modules.pop("observed_package", None)
    # this file, a model's to the observer, makes the call; the package's import is its own affair
    assert (set(seen.variables), set(seen.files)) == ({"SEEN_CALL"}, {table})
    assert set(own.variables) == {"SEEN_CALL"}


def test_modules_that_were_there_before_are_told(module: Path) -> None:
    with observe() as seen:
        importlib.import_module("observed_module")
    assert "observed_module" not in seen.imported_before
    assert "os" in seen.imported_before


def test_sources_are_searched_for_literal_reads() -> None:
    assert variables_named_in({"observed_module": MODULE}) == (SEEN - {"SEEN_COMPUTED"}) | {"SEEN_LATER"}


def test_an_assignment_is_no_read_and_broken_text_has_none() -> None:
    assert variables_named_in({"a": "import os\nos.environ['SET'] = '1'\n", "b": "def ("}) == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/home/me/shop/model.py", True),
        ("/home/me/precast/model.py", True),
        ("/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", False),
        ("/venv/lib/python3.12/site-packages/shop/model.py", True),
        ("/venv/lib/python3.12/site-packages/shop.py", True),
        (os.__file__, False),
        ("<frozen os>", False),
    ],
)
def test_a_model_s_own_file_is_neither_installed_nor_the_standard_library_s(name: str, expected: bool) -> None:
    assert is_model_file(name, frozenset({"shop"})) is expected


def test_of_precast_only_the_examples_are_a_model_s() -> None:
    import precast.aot.spec
    import precast.examples.decoder.config as config

    assert not is_model_file(str(precast.aot.spec.__file__))
    assert is_model_file(str(config.__file__))


def test_the_value_at_the_first_read_is_kept(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEEN_DEFAULT", raising=False)
    with observe() as seen:
        os.environ.setdefault("SEEN_DEFAULT", "1")
        os.environ.get("SEEN_DEFAULT")
    monkeypatch.delenv("SEEN_DEFAULT")
    assert seen.variables == {"SEEN_DEFAULT": None}


def test_a_copy_of_the_environment_names_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with observe() as seen:
        copies = [dict(os.environ), {**os.environ}, os.environ.copy(), list(os.environ.items())]
        os.environ.get("SEEN_AFTER_COPY")
    assert len(copies) == 4
    assert set(seen.variables) == {"SEEN_AFTER_COPY"}


def test_a_data_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with observe() as seen, pytest.raises(FileNotFoundError):
        (tmp_path / "absent.json").read_text(encoding="utf-8")
    assert seen.files == {tmp_path / "absent.json": None}


def test_an_installed_package_s_noise_is_not_recorded(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "observed_noise.py").write_text(
        "import os\ndef read():\n    return os.environ.get('HF_HOME'), os.environ.get('SEEN_OPTION')\n",
        encoding="utf-8",
    )
    sys.path.insert(0, str(installed))
    try:
        read = importlib.import_module("observed_noise").read
        with observe() as seen:
            read()
    finally:
        sys.path.remove(str(installed))
        sys.modules.pop("observed_noise", None)
    assert set(seen.variables) == {"SEEN_OPTION"}
