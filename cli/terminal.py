"""What a stream can show: whether color is wanted, and whether it can hold marks beyond ASCII."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TextIO

__all__ = ["DASH", "TIMES", "ColorChoice", "Palette", "is_terminal", "speaks_unicode", "wants_color"]

DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ASCII = {DASH: "-", TIMES: "x", "·": "|", "→": "->"}


class ColorChoice(StrEnum):
    """When to use color."""

    ALWAYS = "always"
    NEVER = "never"
    AUTO = "auto"


def is_terminal(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal; a closed stream is none."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def wants_color(choice: ColorChoice, environ: Mapping[str, str], stream: TextIO) -> bool:
    """Decide on color: the flag, then NO_COLOR, then FORCE_COLOR, then whether the stream is a terminal.

    Args:
        choice: The value of `--color`.
        environ: The environment; NO_COLOR and FORCE_COLOR count when they are not empty.
        stream: The stream to be written.
    """
    if choice is not ColorChoice.AUTO:
        return choice is ColorChoice.ALWAYS
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def speaks_unicode(stream: TextIO) -> bool:
    """Tell whether a stream's encoding can hold the marks that human output uses."""
    try:
        "".join(_ASCII).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Palette:
    """Text made fit for one stream: colored or plain, with marks or with their ASCII stand-ins."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        self.color = color
        self.unicode = speaks_unicode(stream)
        self.encoding = stream.encoding or "ascii"

    def fit(self, text: str) -> str:
        """Replace what the stream cannot hold, so that writing never raises."""
        if not self.unicode:
            for mark, plain in _ASCII.items():
                text = text.replace(mark, plain)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def paint(self, text: str, style: str) -> str:
        """Wrap text in a named style when color is on; an empty style leaves it alone."""
        if not (self.color and style):
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
