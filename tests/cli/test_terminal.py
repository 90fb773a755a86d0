"""Colour and marks follow the stream and the environment."""

import io

import pytest

from precast.cli.terminal import ColorChoice, Palette, is_terminal, speaks_unicode, wants_color


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


@pytest.mark.parametrize(
    ("choice", "environ", "terminal", "wanted"),
    [
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"GITHUB_ACTIONS": "true"}, False, False),
        ("auto", {}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {}, False, False),
    ],
)
def test_color_follows_flag_then_variables_then_terminal(
    choice: str, environ: dict[str, str], terminal: bool, wanted: bool
) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    assert wants_color(ColorChoice(choice), environ, stream) is wanted


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert not is_terminal(stream)


@pytest.mark.parametrize(("encoding", "wanted"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_marks_need_an_encoding_that_holds_them(encoding: str, wanted: bool) -> None:
    assert speaks_unicode(_stream(encoding)) is wanted


def test_marks_become_ascii_where_they_cannot_be_written() -> None:
    palette = Palette(_stream("ascii"), color=False)
    assert palette.fit("3 pieces \N{MULTIPLICATION SIGN}2 \N{RIGHTWARDS ARROW} ok") == "3 pieces x2 -> ok"
    assert palette.fit("caf\N{LATIN SMALL LETTER E WITH ACUTE}") == "caf\\xe9"


def test_paint_adds_escapes_only_with_color() -> None:
    assert Palette(_stream("utf-8"), color=True).paint("ok", "green") == "\x1b[32mok\x1b[0m"
    assert Palette(_stream("utf-8"), color=True).paint("ok", "") == "ok"
    assert Palette(_stream("utf-8"), color=False).paint("ok", "green") == "ok"
