"""The app: words in, exit status out, and exactly one place where exceptions end."""

import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from precast import __version__
from precast.cli import argv as words
from precast.cli.commands import (
    config,
    inspect_coverage,
    inspect_diff,
    inspect_explain,
    inspect_ls,
    inspect_show,
    inspect_stats,
    precompile,
    prune,
    schema,
    verify,
)
from precast.cli.envelope import Remark
from precast.cli.errors import failure_of
from precast.cli.github import Github
from precast.cli.output import Format, Output
from precast.cli.session import Invocation
from precast.cli.signals import raising_signals
from precast.cli.terminal import is_terminal, wants_color
from precast.errors import ExitCode

__all__ = ["build_app", "main"]

_COMPLETION = "_PRECAST_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status.

    Args:
        argv: The words after the program's name; None takes them from the process.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if _COMPLETION in os.environ:
        typer.main.get_command(build_app(rich=False)).main(args=given, prog_name="precast")
    seen = words.preview(given, os.environ)
    out = _output(seen, os.environ)
    try:
        with raising_signals():
            status = _run(words.rewrite(given), out, seen)
    except BrokenPipeError:
        return _reader_gone()
    return int(status)


def build_app(*, rich: bool) -> typer.Typer:
    """Make the Typer app.

    Args:
        rich: Whether help may be drawn by rich. Typer's rich help emits escape codes under GITHUB_ACTIONS
            even into a pipe, so it is for colored terminals only.
    """
    mode: Literal["rich"] | None = "rich" if rich else None
    about = f"{_WHAT}\n\n{_ENVIRONMENT}"
    app = typer.Typer(help=about, rich_markup_mode=mode, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    app.command("precompile", short_help="Compile a model into the store")(precompile.precompile)
    app.command("verify", short_help="Prove that an entry works here")(verify.verify)
    app.command("prune", short_help="Bound what the store holds")(prune.prune)
    app.command("config", short_help="Show the configuration")(config.config)
    app.command("schema", short_help="Print a JSON Schema")(schema.schema)
    group = typer.Typer(help=_INSPECT, rich_markup_mode=mode, pretty_exceptions_enable=False)
    group.callback(invoke_without_command=True)(_bare)
    group.command("ls")(inspect_ls.inspect_ls)
    group.command("show", short_help="Show one entry")(inspect_show.inspect_show)
    group.command("diff", short_help="Say what makes two keys differ")(inspect_diff.inspect_diff)
    group.command("explain", short_help="Say why a model hits or misses")(inspect_explain.inspect_explain)
    group.command("stats", short_help="Count hits and misses")(inspect_stats.inspect_stats)
    group.command("coverage", short_help="Say which batches have no CUDA graph")(inspect_coverage.inspect_coverage)
    app.add_typer(group, name="inspect", short_help="Look at what the store holds")
    return app


_INSPECT = "Look at what the store holds; `inspect KEY` means `inspect show KEY`."
_WHAT = "Compile PyTorch decoder models ahead of time, and manage what was compiled."
_ENVIRONMENT = (
    "Environment: PRECAST_CACHE_DIR, PRECAST_CONFIG, PRECAST_FORMAT, PRECAST_PROGRESS, PRECAST_LOG; "
    "`precast config --env` lists what each does."
)


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"precast {__version__}")
        raise typer.Exit
    _bare(ctx)


def _bare(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(ExitCode.USAGE)


def _output(seen: words.Preview, environ: Mapping[str, str]) -> Output:
    stdout, stderr = _stream(sys.stdout), _stream(sys.stderr)
    color = (wants_color(seen.color, environ, stdout), wants_color(seen.color, environ, stderr))
    github = Github(seen.github, environ)
    return Output(stdout, stderr, format=seen.format, color=color, quiet=seen.quiet, schema=seen.schema, github=github)


def _stream(stream: TextIO | None) -> TextIO:
    """Give a stream that can be written to, also where the process was started with the descriptor closed."""
    return stream if stream is not None else io.StringIO()


def _run(argv: list[str], out: Output, seen: words.Preview) -> ExitCode | int:
    """Run the command, report what it raised and close the answer."""
    help_text = io.StringIO()
    # In JSON the help must not stand beside the document, so it goes inside.
    aside = redirect_stdout(help_text) if seen.format is Format.JSON else nullcontext()
    try:
        with aside:
            status = _invoke(argv, out, seen)
    except BrokenPipeError:
        raise
    except BaseException as error:  # noqa: BLE001 - the one place where exceptions end
        failure = failure_of(error)
        if seen.debug:
            out.debug(traceback.format_exc())
        out.error(failure.remark)
        status = failure.exit_code
    _close(out, status, help_text.getvalue())
    return status


def _invoke(argv: list[str], out: Output, seen: words.Preview) -> ExitCode | int:
    rich = wants_color(seen.color, os.environ, out.stdout) and is_terminal(out.stdout)
    app = typer.main.get_command(build_app(rich=rich))
    invocation = Invocation(out, os.environ, _cwd(), is_terminal(_stream(sys.stdin)))
    try:
        with app.make_context("precast", argv, obj=invocation) as context:
            status: ExitCode | int | None = app.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return status or ExitCode.OK


def _close(out: Output, status: ExitCode | int, help_text: str) -> None:
    if help_text:
        if status != ExitCode.OK and not out.failed:
            out.error(Remark("usage", "No command was named", hint="Name one of those that `precast --help` lists"))
        out.schema = "precast.help/1"
        out.result({"text": help_text})
    out.finish(status)


def _cwd() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None


def _reader_gone() -> int:
    """End quietly when nobody reads our answer any more, as in `precast inspect ls | head -1`."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.INTERNAL
