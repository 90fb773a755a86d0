"""The one ordered table that turns exceptions into three lines, a stable code and an exit status."""

import errno
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import typer

from precast.cli.envelope import Remark
from precast.cli.signals import Terminated
from precast.errors import ExitCode, PrecastError

__all__ = ["TABLE", "Failure", "failure_of"]

_GROUPS = ("precast", "precast inspect")
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Failure:
    """What the user is told about an exception, and the exit status it leads to."""

    remark: Remark
    exit_code: ExitCode


def _interrupted(_error: BaseException) -> Failure:
    remark = Remark("interrupted", "Interrupted", hint="Run the same command again")
    return Failure(remark, ExitCode.INTERRUPTED)


def _terminated(_error: BaseException) -> Failure:
    return Failure(Remark("terminated", "Ended by SIGTERM"), ExitCode.TERMINATED)


def _precast(error: BaseException) -> Failure:
    assert isinstance(error, PrecastError)
    remark = Remark(error.code, error.what, error.why, error.hint, error.entry, error.path, error.details)
    return Failure(remark, error.exit_code)


def _declined(_error: BaseException) -> Failure:
    return Failure(
        Remark("declined", "Nothing was changed", "the question was not answered with yes"), ExitCode.INTERNAL
    )


def _usage(error: BaseException) -> Failure:
    assert isinstance(error, typer.TyperException)
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "precast"
    misplaced = hasattr(error, "option_name") and command in _GROUPS
    why = "options go after the name of the command" if misplaced else ""
    return Failure(Remark("usage", message, why, f"See `{command} --help`"), ExitCode.USAGE)


def _os_error(error: BaseException) -> Failure:
    assert isinstance(error, OSError)
    if error.errno not in _UNWRITABLE:
        return _internal(error)
    path = str(error.filename or "")
    remark = Remark(
        "store.unwritable",
        f"Cannot use {path}" if path else "A file cannot be written",
        error.strerror or "",
        "Free space or give access there, or name another folder with --cache-dir",
        path=path,
    )
    return Failure(remark, ExitCode.USAGE)


def _internal(error: BaseException) -> Failure:
    report = _report(error)
    told = f"Report it with the traceback in {report}" if report else "Report it with the traceback that --debug shows"
    detail = f"{type(error).__name__}: {error}".rstrip(": ")
    remark = Remark("internal", "An internal error in precast", detail, told, path=report)
    return Failure(remark, ExitCode.INTERNAL)


TABLE: tuple[tuple[type[BaseException], Callable[[BaseException], Failure]], ...] = (
    (KeyboardInterrupt, _interrupted),
    (Terminated, _terminated),
    (PrecastError, _precast),
    (typer.Abort, _declined),
    (typer.TyperException, _usage),
    (OSError, _os_error),
    (Exception, _internal),
)


def failure_of(error: BaseException) -> Failure:
    """Find what to tell about an exception: the first row of the table whose type fits.

    Args:
        error: What was raised; a BaseException that no row names counts as internal.
    """
    for kind, tell in TABLE:
        if isinstance(error, kind):
            return tell(error)
    return _internal(error)


def _report(error: BaseException) -> str:
    """Write the traceback to a new file and give its path, or an empty text where nothing can be written."""
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="precast-crash-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return ""
    return file.name
