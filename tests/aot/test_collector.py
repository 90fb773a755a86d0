"""Garbage collection is held off while an artifact is loaded, and is as before after any way out."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.conftest import REPOSITORY

from precast.aot.collector import collector_held_off
from precast.aot.load import load
from precast.errors import PrecastError


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_off_inside_and_as_before_outside(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    with collector_held_off():
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_it_is_as_before_after_an_error() -> None:
    with pytest.raises(RuntimeError), collector_held_off():
        raise RuntimeError
    assert gc.isenabled()


def test_a_load_holds_it_off_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(source: object) -> bool:
        seen.append(gc.isenabled())
        return True

    monkeypatch.setattr("precast.aot.load.names_file", look)
    for _ in range(2):  # a decorator that holds it off once alone would show the second time
        with pytest.raises(PrecastError):
            load("/nowhere/model.mega", object())
    assert seen == [False, False]
    assert gc.isenabled()


def test_the_import_of_a_public_name_collects_nothing() -> None:
    code = (
        "import gc, precast; seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append(phase))\n"
        "gc.set_threshold(1, 1, 1); gc.collect(); seen.clear()\n"
        "home = precast.__getattr__; load = home('load'); count = len(seen)\n"
        "print(count, gc.isenabled(), load.__name__)"
    )
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    count, enabled, name = done.stdout.split()
    assert (enabled, name) == ("True", "load")
    assert int(count) <= 4  # what begins before the import, or after it; the import itself makes thousands of objects
