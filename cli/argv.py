"""What has to happen to the words of the command line before Typer reads them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precast.cache.factors import GROUPS
from precast.cli.github import GithubChoice
from precast.cli.output import Format
from precast.cli.terminal import ColorChoice

__all__ = ["Preview", "preview", "rewrite"]

_LEVEL = re.compile(r"-O=?(.+)")
_KEY_OR_FILE = re.compile(r"[0-9a-f]+|.*[./].*", re.IGNORECASE)
_COMMANDS = ("precompile", "verify", "prune", "config", "schema")
_INSPECT = ("ls", "show", "diff", "explain", "stats", "coverage")
_SHORT_FLAGS = re.compile(r"-[vq]+")


@dataclass(frozen=True, slots=True)
class Preview:
    """How to answer when the command line itself is wrong, read before it is parsed."""

    format: Format
    color: ColorChoice
    quiet: bool
    debug: bool
    github: GithubChoice
    schema: str


def rewrite(argv: Sequence[str]) -> list[str]:
    """Give the words that Typer understands: one spelling of `-O`, and `inspect show KEY` for `inspect KEY`.

    `-O2`, `-O=2` and `-O 2` all become `--optimization-level 2`, as engines that serve models spell it.
    Words after `--` are left alone.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    words: list[str] = []
    for word in argv[:end]:
        level = _LEVEL.fullmatch(word)
        if word == "-O":
            words.append("--optimization-level")
        elif level:
            words += ["--optimization-level", level[1]]
        else:
            words.append(word)
    return [*_with_group(_with_show(words)), *argv[end:]]


def preview(argv: Sequence[str], environ: Mapping[str, str]) -> Preview:
    """Read the options that decide how errors are shown, forgiving everything that is wrong.

    Args:
        argv: The words after the program's name.
        environ: The environment, for PRECAST_FORMAT.
    """
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    quiet = "--quiet" in words or any(_SHORT_FLAGS.fullmatch(word) and "q" in word for word in words)
    named = _value(words, "--format")
    fallback = "quiet" if quiet else environ.get("PRECAST_FORMAT", "")
    wanted = "json" if "--json" in words else named or fallback
    color, github = _value(words, "--color"), _value(words, "--github")
    return Preview(
        Format(wanted) if wanted in set(Format) else Format.HUMAN,
        ColorChoice(color) if color in set(ColorChoice) else ColorChoice.AUTO,
        quiet,
        "--debug" in words,
        GithubChoice(github) if github in set(GithubChoice) else GithubChoice.AUTO,
        f"precast.{_command(rewrite(argv))}/1",
    )


def _command(words: Sequence[str]) -> str:
    """Name the command as its schema does; `help` stands for everything that is none."""
    if words[:1] == ["inspect"]:
        return f"inspect.{words[1]}" if words[1:2] and words[1] in _INSPECT else "help"
    return words[0] if words and words[0] in _COMMANDS else "help"


def _with_show(words: list[str]) -> list[str]:
    if words[:1] != ["inspect"] or {*_INSPECT, "--help"} & set(words):
        return words
    if any(_KEY_OR_FILE.fullmatch(word) for word in words[1:]):
        return ["inspect", "show", *words[1:]]
    return words


def _with_group(words: list[str]) -> list[str]:
    """Give `--factors env` and `--factors=env` as `--factors --group env`: Typer has no option with a free value."""
    if words[:2] != ["inspect", "show"]:
        return words
    found: list[str] = []
    for word in words:
        option, equals, group = word.partition("=")
        if found[-1:] == ["--factors"] and word in GROUPS:
            found += ["--group", word]
        elif option == "--factors" and equals:
            found += ["--factors", "--group", group]
        else:
            found.append(word)
    return found


def _value(words: Sequence[str], option: str) -> str:
    """Give the last value of an option in either spelling, or an empty string."""
    found = ""
    for number, word in enumerate(words):
        if word == option and number + 1 < len(words):
            found = words[number + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found
