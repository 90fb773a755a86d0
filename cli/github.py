"""Telling GitHub Actions: annotations in the log, a table in the job's summary, outputs for later steps.

The three are plain text that a runner parses, so what goes into them is escaped: nothing that a model or an
environment holds can become a command, a second output or markup. A runner looks for commands in all of stdout, so an
answer that would hold one is fenced.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

__all__ = ["Annotation", "Github", "GithubChoice"]

# The percent sign comes first: the others bring more of it.
_DATA = (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"))
_PROPERTY = (*_DATA, (":", "%3A"), (",", "%2C"))
# Where a runner sees a command: at a line's begin, blanks before it aside, or in the older form anywhere in a line.
_COMMAND = re.compile(r"(?:\A|[\r\n])\s*::|##\[")
_TOKEN_BYTES = 16
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~!&])")


class GithubChoice(StrEnum):
    """When to talk to GitHub Actions."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Annotation(StrEnum):
    """How grave an annotation is."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"

    def line(self, title: str, message: str) -> str:
        """Write the workflow command that makes the annotation; line breaks inside it survive."""
        return f"::{self.value} title={_escaped(title, _PROPERTY)}::{_escaped(message, _DATA)}"


class Github:
    """The job that runs us.

    Args:
        choice: `auto` follows GITHUB_ACTIONS.
        environ: The environment, which also names the files of the summary and of the outputs.
    """

    def __init__(self, choice: GithubChoice, environ: Mapping[str, str]) -> None:
        automatic = environ.get("GITHUB_ACTIONS") == "true"
        self.active = choice is GithubChoice.ON or (choice is GithubChoice.AUTO and automatic)
        self._summary = environ.get("GITHUB_STEP_SUMMARY", "")
        self._outputs = environ.get("GITHUB_OUTPUT", "")

    def fenced(self, text: str) -> str:
        """Return lines for the log so that the runner takes none of them for a command.

        The fence is a token that nobody can know before, so that no text can end it.
        """
        if not (self.active and _COMMAND.search(text)):
            return text
        token = os.urandom(_TOKEN_BYTES).hex()
        return f"::stop-commands::{token}\n{text}\n::{token}::"

    def summarize(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Append a table to the job's summary, where there is one.

        Raises:
            OSError: If the file cannot be written.
        """
        lines = [f"### {_cell(title)}", "", _row(header), _row(["---"] * len(header), escape=False)]
        self._append(self._summary, [*lines, *(_row(row) for row in rows), ""])

    def set_outputs(self, values: Mapping[str, str]) -> None:
        """Append outputs of the step, where there is a file for them; a value is one line.

        Raises:
            OSError: If the file cannot be written.
        """
        self._append(self._outputs, [f"{name}={' '.join(value.split())}" for name, value in values.items()])

    def _append(self, name: str, lines: Sequence[str]) -> None:
        if self.active and name:
            with Path(name).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("".join(f"{line}\n" for line in lines))


def _escaped(text: str, marks: Iterable[tuple[str, str]]) -> str:
    for mark, code in marks:
        text = text.replace(mark, code)
    return text


def _row(cells: Sequence[str], *, escape: bool = True) -> str:
    return f"| {' | '.join(_cell(cell) if escape else cell for cell in cells)} |"


def _cell(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
