"""The age of a process, from the kernel's own file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY

from precast.cli.process_age import process_age


def stat(path: Path, started: str, name: str = "python") -> Path:
    fields = ["S", *["0"] * 18, started, "0"]
    path.write_text(f"1 ({name}) {' '.join(fields)}\n", encoding="ascii")
    return path


def test_the_age_counts_from_the_start_that_the_kernel_names(tmp_path: Path) -> None:
    ticks, now = os.sysconf("SC_CLK_TCK"), time.clock_gettime(time.CLOCK_BOOTTIME)
    made = stat(tmp_path / "stat", str(int((now - 30) * ticks)))
    assert 30 <= process_age(made) <= 30 + time.clock_gettime(time.CLOCK_BOOTTIME) - now + 2 / ticks


@pytest.mark.parametrize("name", ["a b", "a) S 0 0 (b", "x" * 15])
def test_the_name_of_a_program_may_hold_anything(tmp_path: Path, name: str) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    began = int((time.clock_gettime(time.CLOCK_BOOTTIME) - 30) * ticks)
    assert process_age(stat(tmp_path / "stat", str(began), name)) >= 30


@pytest.mark.parametrize("text", ["", "1 (python) S", "1 (python) " + "x " * 30])
def test_where_the_kernel_does_not_say_it_is_0(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text, encoding="ascii")
    assert process_age(tmp_path / "stat") == process_age(tmp_path / "absent") == 0
    assert process_age(stat(tmp_path / "no clock", "0")) == 0
    assert process_age(stat(tmp_path / "later", str(10**12))) == 0


def test_a_process_is_older_than_its_first_line() -> None:
    code = "import time; a = time.clock_gettime(time.CLOCK_BOOTTIME); from precast.cli.process_age import process_age;"
    code += "age = process_age(); b = time.clock_gettime(time.CLOCK_BOOTTIME); print(age, b - a)"
    environ = {"PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    age, own = map(float, done.stdout.split())
    assert age > own - 0.02
