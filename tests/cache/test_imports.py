"""What importing the cache costs: a command that only looks at the store must answer at once."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import precast.cache

MODULES = sorted(f"precast.cache.{module.name}" for module in pkgutil.iter_modules(precast.cache.__path__))
HEAVY = ("torch", "numpy", "zstandard", "filelock", "safetensors", "cryptography")


def modules_after(program: str) -> set[str]:
    argv = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_of_weight_and_none_of_its_modules() -> None:
    loaded = modules_after("import precast.cache")
    assert loaded.isdisjoint(HEAVY)
    assert not [name for name in loaded if name.startswith("precast.cache.")]


def test_importing_every_module_imports_nothing_of_weight() -> None:
    loaded = modules_after("\n".join(f"import {name}" for name in MODULES))
    assert loaded.issuperset(MODULES)
    assert loaded.isdisjoint(HEAVY)


def test_using_the_store_and_the_mega_artifact_needs_neither_torch_nor_numpy() -> None:
    program = """
import pathlib, tempfile
from precast.cache.frames import compress, decompress
from precast.cache.container import serialize_tensors
from precast.cache.store import Store
store = Store(pathlib.Path(tempfile.mkdtemp()))
store.put_object(b"abc")
serialize_tensors({"a": ("uint8", (1,), b"a")}, {})
"""
    loaded = modules_after(program)
    assert loaded.issuperset({"zstandard", "filelock", "safetensors"})
    assert loaded.isdisjoint({"torch", "numpy"})


@pytest.mark.parametrize("name", precast.cache.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(precast.cache, name) is not None


def test_every_public_name_is_public_in_its_own_module_too() -> None:
    for home, names in precast.cache._HOMES.items():
        assert set(names) <= set(importlib.import_module(home).__all__)


def test_no_public_name_is_hidden_by_a_module() -> None:
    assert set(precast.cache.__all__).isdisjoint(name.rpartition(".")[2] for name in MODULES)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = precast.cache.nonsense
