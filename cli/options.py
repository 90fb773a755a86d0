"""The options that several commands share, as annotated types, and how their values are read."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from precast.cache.canonical import Json, canonical_json
from precast.cli.github import GithubChoice
from precast.cli.output import Format
from precast.cli.terminal import ColorChoice
from precast.errors import ConfigValueError, UsageError

__all__ = [
    "Level",
    "ProgressChoice",
    "Shared",
    "assignments",
    "exclusive",
    "integers",
    "numbers",
]

_SHARED = "Shared options"
_RANGE = re.compile(r"\s*([1-9]\d{0,5})\s*(?:-\s*([1-9]\d{0,5})\s*)?", re.ASCII)


class ProgressChoice(StrEnum):
    """How long work is shown."""

    AUTO = "auto"
    PLAIN = "plain"
    NONE = "none"


class Level(StrEnum):
    """How far `verify` goes; each level includes those before it."""

    AUTO = "auto"
    FILES = "files"
    ENV = "env"
    LOAD = "load"
    NUMERICS = "numerics"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that every command takes, after its name."""

    cache_dir: Annotated[
        str | None,
        typer.Option(
            "--cache-dir",
            metavar="DIR",
            help="Folder of the store (PRECAST_CACHE_DIR)",
            rich_help_panel=_SHARED,
        ),
    ] = None
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Write nothing to the store (PRECAST_READ_ONLY)", rich_help_panel=_SHARED),
    ] = False
    format: Annotated[
        Format | None,
        typer.Option("--format", help="How the answer is written (PRECAST_FORMAT)", rich_help_panel=_SHARED),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Same as --format json", rich_help_panel=_SHARED)] = False
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Tell more on stderr; repeatable", rich_help_panel=_SHARED),
    ] = 0
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only ids on stdout, no hints", rich_help_panel=_SHARED)
    ] = False
    color: Annotated[ColorChoice | None, typer.Option("--color", help="When to color", rich_help_panel=_SHARED)] = None
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings file in place of precast.toml (PRECAST_CONFIG)",
            rich_help_panel=_SHARED,
        ),
    ] = None
    log_file: Annotated[
        str | None,
        typer.Option(
            "--log-file",
            metavar="FILE",
            help="Write a debug log there (PRECAST_LOG)",
            rich_help_panel=_SHARED,
        ),
    ] = None
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks", rich_help_panel=_SHARED)] = False
    progress: Annotated[
        ProgressChoice | None,
        typer.Option("--progress", help="Bars, plain lines or nothing", rich_help_panel=_SHARED),
    ] = None
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="FILE", help="Write progress there, one JSON a line", rich_help_panel=_SHARED),
    ] = None
    github: Annotated[
        GithubChoice | None,
        typer.Option("--github", help="Annotations, summary and outputs of GitHub Actions", rich_help_panel=_SHARED),
    ] = None


def exclusive(given: Mapping[str, bool]) -> None:
    """Refuse options that contradict each other.

    Args:
        given: Whether each option was given, by its name.

    Raises:
        UsageError: If more than one was.
    """
    names = [name for name, present in given.items() if present]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} contradict each other", hint="Give one of them")


def assignments(flag: str, texts: Iterable[str] | None) -> dict[str, Json]:
    """Read `KEY=VALUE` words; a value is JSON where it can be and text otherwise, and the last one wins.

    Args:
        flag: Name of the option, for messages.
        texts: The words as given.

    Raises:
        ConfigValueError: If a word has no key or no equals sign.
    """
    values: dict[str, Json] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise ConfigValueError(f"{flag} {text} is not KEY=VALUE", hint=f"Write {flag} name=value")
        values[key.strip()] = _literal(value)
    return values


def integers(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Read a list of whole numbers such as `1,2,4`; None stays None and an empty text is an empty list.

    Args:
        flag: Name of the option, for messages.
        text: The list as given.

    Raises:
        ConfigValueError: If a member is not a positive whole number.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() or int(word) == 0]
    if wrong:
        raise ConfigValueError(
            f"{flag} {text} is not a list of numbers",
            f"{', '.join(wrong)} is no positive whole number",
            "Write 1,2,4",
        )
    return tuple(int(word) for word in words)


def numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Read whole numbers and ranges of them such as `1-12,16`, each number once; None stays None.

    Args:
        flag: Name of the option, for messages.
        text: The list as given.

    Raises:
        ConfigValueError: If a member is neither a positive whole number nor a range of them, or there is none.
    """
    if text is None:
        return None
    found = [(word.strip(), _RANGE.fullmatch(word)) for word in text.split(",")]
    ranges = [(word, int(m[1]), int(m[2] or m[1])) for word, m in found if m]
    wrong = [word for word, m in found if not m] + [word for word, first, last in ranges if last < first]
    if wrong:
        raise ConfigValueError(
            f"{flag} {text} is not a list of numbers",
            f"{', '.join(wrong) or 'nothing'} is neither a number from 1 to 999999 nor a range of them",
            "Write 1-12,16",
        )
    return tuple(sorted({number for _, first, last in ranges for number in range(first, last + 1)}))


def _literal(text: str) -> Json:
    """Read a value as JSON where it is some that a key can hold, which infinities and NaN are not; else as text."""
    try:
        value: Json = json.loads(text)
        canonical_json(value)
    except (ValueError, RecursionError):
        return text
    return value
