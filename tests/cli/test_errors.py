"""Every exception becomes three lines, a code and an exit status."""

import inspect
from pathlib import Path

import pytest
import typer

from precast import errors as tree
from precast.cli.errors import TABLE, failure_of
from precast.cli.signals import Terminated
from precast.errors import CorruptError, ExitCode, PrecastError

_OURS = [kind for _, kind in inspect.getmembers(tree, inspect.isclass) if issubclass(kind, PrecastError)]


@pytest.mark.parametrize("kind", _OURS, ids=lambda kind: kind.__name__)
def test_our_errors_keep_their_code_and_exit_status(kind: type[PrecastError]) -> None:
    failure = failure_of(kind("What", "why", "Hint", entry="7f3c", path="/store"))
    assert failure.exit_code == kind.exit_code
    assert failure.remark.to_json() == {
        "code": kind.code,
        "message": "What",
        "why": "why",
        "hint": "Hint",
        "entry": "7f3c",
        "path": "/store",
    }


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (Terminated(), "terminated", 143),
        (typer.Abort(), "declined", 1),
        (typer.BadParameter("no"), "usage", 2),
        (OSError(28, "No space left on device", "/store/x"), "store.unwritable", 2),
        (PermissionError(13, "Permission denied", "/store/x"), "store.unwritable", 2),
        (FileNotFoundError(2, "No such file", "/x"), "internal", 1),
        (ZeroDivisionError("division"), "internal", 1),
        (SystemExit(0), "internal", 1),
    ],
)
def test_other_exceptions_have_their_row(error: BaseException, code: str, status: int) -> None:
    failure = failure_of(error)
    assert (failure.remark.code, failure.exit_code) == (code, status)


def test_no_row_hides_behind_an_earlier_one() -> None:
    kinds = [kind for kind, _ in TABLE]
    for number, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:number])


def test_a_full_disk_names_the_file() -> None:
    remark = failure_of(OSError(28, "No space left on device", "/store/x")).remark
    assert (remark.message, remark.why, remark.path) == ("Cannot use /store/x", "No space left on device", "/store/x")


def test_a_bug_leaves_a_report_with_its_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        remark = failure_of(error).remark
    assert remark.why == "ValueError: odd"
    assert remark.path in remark.hint
    assert "ValueError: odd" in Path(remark.path).read_text()


def test_a_bug_without_a_place_for_the_report_still_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    remark = failure_of(ValueError("odd")).remark
    assert (remark.path, remark.hint) == ("", "Report it with the traceback that --debug shows")


def test_the_exit_status_of_a_subclass_goes_before_its_base() -> None:
    assert failure_of(tree.FormatError("Too new")).exit_code == ExitCode.CORRUPT == CorruptError.exit_code
    assert failure_of(tree.FormatError("Too new")).remark.code == "store.format"
