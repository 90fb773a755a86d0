"""The node's facts: each is what the machine says, and none is asked for that nobody wants."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

from precast.aot import node
from precast.aot.libraries import FIELDS, MARKERS
from precast.aot.node import ABSENT, driver_version, node_facts, python_minor, system, version
from precast.aot.target import Target, cpu_isa


class Driver:
    """A libcuda that says which CUDA it supports."""

    def __init__(self, number: int, status: int = 0) -> None:
        self.number, self.status = number, status

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.number
        return self.status


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (Driver(12080), "12.8"), (Driver(13000), "13.0"), (Driver(9020), "9.2"), (Driver(11040), "11.4"),
        (Driver(0), ABSENT), (Driver(12080, status=3), ABSENT),
    ],
)  # fmt: skip
def test_the_driver_s_number_becomes_a_version(driver: Driver, told: str) -> None:
    assert driver_version(driver) == told


def test_without_a_driver_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_version() == ABSENT


def test_the_facts_are_this_machine_s() -> None:
    facts = node_facts("cpu", {"PATH": "/usr/bin:/bin"})
    told = {field: fact() for field, fact in facts.items() if field != "driver"}
    assert (told["device"], told["arch"], told["isa"]) == ("cpu", cpu_isa(), cpu_isa())
    assert told["python"] == ".".join(map(str, sys.version_info[:2])) == python_minor()
    assert told["system"] == system() == "linux " + __import__("platform").machine()
    assert set(facts) >= {*FIELDS, MARKERS, "torch", "triton", "compiler", "driver"}


def test_nothing_is_read_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "node_version", lambda field: pytest.fail(field))
    monkeypatch.setattr(node, "version", lambda name: pytest.fail(name))
    assert node_facts("cpu", {})["device"]() == "cpu"


def test_without_a_gpu_the_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.target._torch_has_cuda", lambda: False)
    facts = node_facts("cuda", {})
    assert (facts["device"](), facts["arch"]()) == ("no gpu", "none")


def test_with_a_gpu_it_is_the_first_visible_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "detect_target", lambda device, environ: Target(device, "sm_90"))
    facts = node_facts("cuda", {})
    assert (facts["device"](), facts["arch"]()) == ("cuda", "sm_90")


def test_the_compiler_is_the_one_that_inductor_would_run(tmp_path: Path) -> None:
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text("", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    here, nowhere = {"PATH": str(tmp_path)}, {"PATH": str(tmp_path / "none")}
    assert node_facts("cpu", here)["compiler"]() == "c++"
    assert node_facts("cpu", {**here, "CXX": "clang++"})["compiler"]() == "c++"
    assert node_facts("cpu", {**here, "CXX": "icpx"})["compiler"]() == ABSENT
    assert node_facts("cpu", nowhere)["compiler"]() == ABSENT


def test_what_is_not_installed_is_absent() -> None:
    assert version("torch").startswith("2.")
    assert version("no-such-distribution") == ABSENT
