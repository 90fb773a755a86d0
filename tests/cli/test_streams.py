"""stdout is kept for the answer, also against worker processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from precast.cli.streams import stdout_kept_clean


def test_prints_go_to_stderr_and_the_answer_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_kept_clean(sys.stdout):
        sys.stdout.write("noise\n")
    sys.stdout.write("answer\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("answer\n", "noise\n")


@pytest.fixture
def answer() -> Iterator[TextIO]:
    """A stream on the real descriptor 1, which the test runner has replaced in `sys.stdout`."""
    with os.fdopen(1, "w", closefd=False) as stream:
        yield stream


def test_child_processes_inherit_stderr_as_their_stdout(answer: TextIO, capfd: pytest.CaptureFixture[str]) -> None:
    with stdout_kept_clean(answer):
        subprocess.run(["/bin/echo", "child"], check=True)
    subprocess.run(["/bin/echo", "after"], check=True)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("after\n", "child\n")


def test_stdout_comes_back_after_an_exception(answer: TextIO, capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with pytest.raises(ZeroDivisionError), stdout_kept_clean(answer):
        raise ZeroDivisionError
    assert sys.stdout is before
    subprocess.run(["/bin/echo", "after"], check=True)
    assert capfd.readouterr().out == "after\n"


def test_an_answer_into_a_file_leaves_descriptor_one_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "answer").open("w") as answer, stdout_kept_clean(answer):
        subprocess.run(["/bin/echo", "child"], check=True)
    assert capfd.readouterr().out == "child\n"
