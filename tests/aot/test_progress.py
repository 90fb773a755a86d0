"""The silent progress is a progress."""

import inspect

import pytest

from precast.aot.progress import Progress, Silent


def test_silent_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent: Progress = Silent()
    silent.start("compile", 2)
    silent.advance("compile", "piece 0", 1.0, 5)
    silent.finish("compile")
    silent.note("text")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["start", "advance", "finish", "note"])
def test_silent_takes_what_the_protocol_takes(name: str) -> None:
    assert inspect.signature(getattr(Silent, name)) == inspect.signature(getattr(Progress, name))
