"""The one sink of the command line: nothing else in precast prints.

stdout carries the answer and stderr everything else. With `--format json` exactly one document reaches
stdout, written by `finish`; the other verbs then only collect.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from precast.cache.canonical import Json
from precast.cli.envelope import Envelope, Remark
from precast.cli.github import Annotation, Github, GithubChoice
from precast.cli.terminal import DASH, ColorChoice, Palette, wants_color

__all__ = ["Column", "Format", "Output"]

Row = Mapping[str, Json]
_TSV_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_STATUS_STYLES = {
    "ok": "green",
    "PASS": "green",
    "HIT": "green",
    "added": "green",
    "removed": "red",
    "breaking": "red",
    "noise": "dim",
    "skipped": "dim",
    "planned": "cyan",
    "pulled": "green",
    "degraded": "yellow",
    "partial": "yellow",
    "MISS": "yellow",
    "FAILED": "red",
    "FAIL": "red",
    "CORRUPT": "red",
    "damaged": "red",
    "unreadable": "red",
}


class Format(StrEnum):
    """How the answer is written."""

    HUMAN = "human"
    JSON = "json"
    TSV = "tsv"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        key: The row's field, and the TSV header.
        title: What people see above the column.
        show: Turns the field into text for people.
        right: Whether people see it aligned to the right.
    """

    key: str
    title: str
    show: Callable[[Json], str] = str
    right: bool = False


class Output:
    """Where a command says everything it has to say.

    Args:
        stdout: Stream for the answer.
        stderr: Stream for warnings, hints and errors.
        format: How the answer is written.
        color: Whether stdout and stderr may hold color, in this order.
        quiet: Whether hints are left out.
        schema: Name and version of the shape of the envelope's `data`.
        github: The job of GitHub Actions that runs us, or None for none.
        clock: Seconds of a monotonic clock.
        now: The time of day.
    """

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        *,
        format: Format = Format.HUMAN,  # noqa: A002 - the flag's own name
        color: tuple[bool, bool] = (False, False),
        quiet: bool = False,
        schema: str = "precast.help/1",
        github: Github | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.format = format
        self.quiet = quiet
        self.schema = schema
        self.github = github or Github(GithubChoice.OFF, {})
        self._answer = Palette(stdout, color=color[0])
        self._remarks = Palette(stderr, color=color[1])
        self._clock = clock
        self._began = (now(), clock())
        self._data: dict[str, Json] = {}
        self._ids: list[str] = []
        self._tabled = False
        self._warnings: list[Remark] = []
        self._errors: list[Remark] = []

    @property
    def failed(self) -> bool:
        """Whether an error was reported."""
        return bool(self._errors)

    @property
    def colors_remarks(self) -> bool:
        """Whether stderr may hold color."""
        return self._remarks.color

    def adopt(self, format: Format, choice: ColorChoice, environ: Mapping[str, str], *, quiet: bool) -> None:  # noqa: A002
        """Take over what the configuration says, before anything was written.

        Args:
            format: How the answer is written.
            choice: When to use color.
            environ: The environment, for NO_COLOR and FORCE_COLOR.
            quiet: Whether hints are left out.
        """
        self.format = format
        self.quiet = quiet or format is Format.QUIET
        self._answer = Palette(self.stdout, color=wants_color(choice, environ, self.stdout))
        self._remarks = Palette(self.stderr, color=wants_color(choice, environ, self.stderr))

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Show rows: aligned for people, all fields untouched as TSV."""
        self._tabled = True
        if self.format is Format.TSV:
            self._tsv([[column.key for column in columns], *([row[c.key] for c in columns] for row in rows)])
        elif self.format is Format.HUMAN:
            cells = [[column.show(row[column.key]) or DASH for column in columns] for row in rows]
            self._aligned([column.title for column in columns], cells, [column.right for column in columns])

    def records(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Give rows as TSV only, for an answer that people read in another form."""
        if self.format is Format.TSV:
            self.table(columns, rows)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Show labelled lines to people; an empty label continues the line above."""
        if self.format is Format.HUMAN:
            for label, text in pairs:
                self._write(f"{self._answer.paint(label.ljust(10), 'bold' if label else '')} {text}".rstrip())

    def status(self, word: str, text: str = "") -> None:
        """Show one line that begins with a status word, such as `ok` or `MISS`."""
        if self.format is Format.HUMAN:
            painted = self._answer.paint(word, _STATUS_STYLES.get(word, "bold"))
            self._write(f"{painted}  {text}".rstrip())

    def lines(self, lines: Iterable[str]) -> None:
        """Show people lines as they are, such as a patch."""
        if self.format is Format.HUMAN:
            for line in lines:
                self._write(line)

    def footer(self, text: str) -> None:
        """Show people one line below an answer, such as a sum."""
        if self.format is Format.HUMAN:
            self._write(self._answer.paint(text, "dim"))

    def text(self, block: str) -> None:
        """Show a block of text that is an answer by itself, to people and as TSV alike."""
        if self.format in (Format.HUMAN, Format.TSV):
            self._tabled = True
            self._write(block)

    def mark(self, word: str) -> str:
        """Colour a status word for use inside a line of the answer."""
        return self._answer.paint(word, _STATUS_STYLES.get(word, "bold"))

    def result(self, data: Mapping[str, Json], ids: Iterable[str] = ()) -> None:
        """Give the machine's answer.

        Args:
            data: The `data` object of the envelope; as TSV its plain fields unless a table was shown.
            ids: What `--format quiet` writes, one a line.
        """
        self._data = dict(data)
        self._ids = list(ids)

    def warning(self, code: str, message: str, *, hint: str = "", entry: str = "") -> None:
        """Tell the user something that the command could live with."""
        self._warnings.append(Remark(code, message, hint=hint, entry=entry))
        self._say(f"{self._remarks.paint('warning:', 'yellow')} {one_line(message)}")
        self.annotate(Annotation.WARNING, code, message, hint)
        if hint:
            self.hint(hint)

    def warn(self, code: str, message: str, hint: str) -> None:
        """Tell a warning, for those that know nothing of entries."""
        self.warning(code, message, hint=hint)

    def hint(self, text: str) -> None:
        """Tell the user what to do next."""
        if not self.quiet:
            self._say(f"{self._remarks.paint('next:', 'cyan')} {text}")

    def error(self, remark: Remark) -> None:
        """Tell the user why the command failed: what, why, what to do next, each on one line."""
        self._errors.append(remark)
        lines = (
            ("error:", "red", remark.message),
            ("why:", "bold", remark.why),
            ("next:", "cyan", remark.hint),
        )
        for label, style, text in lines:
            if text:
                self._say(f"{self._remarks.paint(label, style)} {one_line(text)}")
        self.annotate(Annotation.ERROR, remark.code, remark.message, remark.why, remark.hint)

    def annotate(self, kind: Annotation, title: str, *lines: str) -> None:
        """Mark the job of GitHub Actions that runs us, if one does.

        Only where people read: with the other formats stderr may go to a program, and the answer says it all.
        """
        if self.github.active and self.format is Format.HUMAN:
            self._say(kind.line(f"precast {title}", "\n".join(one_line(line) for line in lines if line)))

    def summarize(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Put a table into the job's summary on GitHub Actions, in every format."""
        with self._github_files():
            self.github.summarize(title, header, rows)

    def set_outputs(self, values: Mapping[str, str]) -> None:
        """Give later steps of the job on GitHub Actions values to use, in every format."""
        with self._github_files():
            self.github.set_outputs(values)

    def debug(self, block: str) -> None:
        """Tell developers something long, such as a traceback."""
        self._say(block.rstrip())

    def progress_line(self, text: str) -> None:
        """Tell one line about work that goes on."""
        self._say(text)

    def finish(self, exit_code: int) -> None:
        """Write what the format holds back until the end; called once, whatever happened."""
        if self._errors:
            told = [(remark.code, remark.message, remark.why, remark.hint) for remark in self._errors]
            self.summarize("precast failed", ("error", "what", "why", "next"), told)
        if self.format is Format.JSON:
            self._write(json.dumps(_finite(self._envelope(exit_code).to_json()), allow_nan=False))
        elif self.format is Format.QUIET:
            for name in self._ids:
                self._write(name)
        elif self.format is Format.TSV and self._data and not self._tabled:
            self._tsv([["field", "value"], *([key, value] for key, value in _flat(self._data))])
        self.stdout.flush()

    @contextmanager
    def _github_files(self) -> Iterator[None]:
        """Survive that a file of the job cannot be written: the answer counts more."""
        try:
            yield
        except OSError as error:
            self.warning("github.unwritable", f"{error.filename} cannot be written: {error.strerror}")

    def _envelope(self, exit_code: int) -> Envelope:
        started_at, began = self._began
        seconds = self._clock() - began
        return Envelope(
            self.schema,
            exit_code,
            started_at,
            seconds,
            self._data,
            tuple(self._warnings),
            tuple(self._errors),
        )

    def _aligned(self, titles: list[str], rows: list[list[str]], right: list[bool]) -> None:
        widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
        for number, row in enumerate([titles, *rows]):
            cells = [
                cell.rjust(width) if flush else cell.ljust(width)
                for cell, width, flush in zip(row, widths, right, strict=True)
            ]
            self._write(self._answer.paint("  ".join(cells).rstrip(), "bold" if number == 0 else ""))

    def _tsv(self, rows: Iterable[Sequence[Json]]) -> None:
        for row in rows:
            self._write("\t".join(_cell(value) for value in row))

    def _write(self, line: str) -> None:
        shown = self._answer.fit(line)
        self.stdout.write((self.github.fenced(shown) if self.format is Format.HUMAN else shown) + "\n")

    def _say(self, line: str) -> None:
        self.stderr.write(self._remarks.fit(line) + "\n")
        self.stderr.flush()


def one_line(text: str) -> str:
    """Fold text to one line, since an error is three lines and not more."""
    return " ".join(text.split())


def _finite(value: Json) -> Json:
    """Word the floats that JSON has no form for, so that a strict parser reads the document."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.translate(_TSV_ESCAPES)
    return json.dumps(value, separators=(",", ":"))


def _flat(data: Mapping[str, Json]) -> Iterable[tuple[str, Json]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", leaf) for inner, leaf in _flat(value))
        else:
            yield key, value
