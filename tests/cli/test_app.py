"""The app ends every run with an exit status and, with --json, with one document."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import FakeLibrary, Ran
from typer.testing import CliRunner

from precast.cli.app import build_app, main
from precast.cli.signals import Terminated
from precast.errors import CompileError, CorruptError, ExitCode, LockedError, NoEntryError, NoGpuError, PrecastError

Run = Callable[..., Ran]
Library = Callable[[str, object], FakeLibrary]

_OUTCOMES = [
    (NoEntryError("Absent"), 10),
    (CorruptError("Bad"), 4),
    (CompileError("Failed"), 7),
    (NoGpuError("No GPU"), 9),
    (LockedError("Locked"), 11),
    (PrecastError("Odd"), 1),
    (RuntimeError("bug"), 1),
    (KeyboardInterrupt(), 130),
    (Terminated(), 143),
    (SystemExit(0), 1),
]


@pytest.mark.parametrize(("error", "status"), _OUTCOMES, ids=lambda value: type(value).__name__)
def test_every_outcome_has_its_status_and_one_document(
    run: Run, library: Library, root: Path, error: BaseException, status: int
) -> None:
    library("precompile", error)
    ran = run("precompile", "m.py:f", "--json")
    assert ran.code == status
    answer = ran.json()
    assert answer["schema"] == "precast.precompile/1"
    assert answer["data"] == {}
    assert len(answer["errors"]) == 1


def test_an_error_has_three_lines_and_no_traceback(run: Run, library: Library, root: Path) -> None:
    library("precompile", CompileError("Piece 3 failed", "no compiler", "Install one"))
    ran = run("precompile", "m.py:f")
    assert (ran.out, ran.err.splitlines()) == (
        "",
        ["error: Piece 3 failed", "why: no compiler", "next: Install one"],
    )


def test_debug_shows_the_traceback(run: Run, library: Library, root: Path) -> None:
    library("precompile", RuntimeError("bug"))
    assert "Traceback" not in run("precompile", "m.py:f").err
    assert "Traceback" in run("precompile", "m.py:f", "--debug").err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["precompile", "m.py:f", "--jsno"], "No such option: --jsno"),
        (["precompile"], "Missing argument"),
        (["precompile", "m.py:f", "-O9"], "Invalid value for '--optimization-level'"),
        (["precompile", "m.py:f", "--payload", "aot"], "Invalid value for '--payload'"),
        (["verify", "--level", "everything"], "Invalid value for '--level'"),
        (["inspekt"], "Did you mean 'inspect'"),
        (["inspect", "lss"], "Did you mean 'ls'"),
        (["precompile", "m.py:f", "--format", "tsv"], "contradict each other"),
    ],
)
def test_usage_errors_exit_2_with_one_document(run: Run, root: Path, argv: list[str], message: str) -> None:
    ran = run(*argv, "--json")
    assert ran.code == ExitCode.USAGE
    assert message in ran.json()["errors"][0]["message"]
    assert "Traceback" not in ran.err


def test_a_misspelt_option_gets_a_suggestion(run: Run) -> None:
    assert "--progress" in run("verify", "--progres", "none").err


def test_an_option_before_the_command_is_told_where_it_belongs(run: Run) -> None:
    assert "options go after the name of the command" in run("--json", "config").out


@pytest.mark.parametrize(("argv", "word"), [([], "precompile"), (["inspect"], "show")])
def test_a_bare_group_shows_help_and_exits_2(run: Run, argv: list[str], word: str) -> None:
    ran = run(*argv)
    assert ran.code == ExitCode.USAGE
    assert "Usage: precast" in ran.out
    assert word in ran.out
    assert ran.err == ""


def test_help_inside_json_is_one_document(run: Run) -> None:
    ran = run("verify", "--help", "--json")
    assert ran.json()["schema"] == "precast.help/1"
    assert "Usage: precast verify" in ran.json()["data"]["text"]


def test_a_bare_group_in_json_is_an_error_in_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_FORMAT", "json")
    answer = run("inspect").json()
    assert (answer["exit_code"], answer["errors"][0]["message"]) == (2, "No command was named")


def test_the_version_is_shown(run: Run) -> None:
    ran = run("--version")
    assert (ran.code, ran.out) == (0, "precast 0.1.0\n")


def test_help_lists_the_environment(run: Run) -> None:
    assert "PRECAST_CACHE_DIR" in run("--help").out


def test_what_a_model_prints_stays_out_of_the_answer(run: Run, library: Library, root: Path) -> None:
    def noisy(**_kwargs: object) -> object:
        print("loading weights")  # noqa: T201
        raise CompileError("Failed")

    library("precompile", noisy)
    ran = run("precompile", "m.py:f", "--json")
    assert "loading weights" in ran.err
    assert ran.json()["ok"] is False


def test_a_reader_that_went_away_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    assert main(["config"]) == ExitCode.INTERNAL
    assert capsys.readouterr().err == ""


def test_a_closed_stdout_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["config"]) == ExitCode.OK


def test_a_log_file_holds_debug_lines(run: Run, library: Library, root: Path, tmp_path: Path) -> None:
    import logging

    def logs(**_kwargs: object) -> object:
        logging.getLogger("precast.aot").debug("detail")
        logging.getLogger("precast.aot").warning("careful")
        raise CompileError("Failed")

    library("precompile", logs)
    ran = run("precompile", "m.py:f", "--log-file", str(tmp_path / "run.log"))
    assert "detail" not in ran.err
    assert "careful" in ran.err
    assert "detail" in (tmp_path / "run.log").read_text()
    assert "detail" in run("precompile", "m.py:f", "-vv").err
    assert logging.getLogger("precast").handlers == []


@pytest.mark.parametrize("option", ["--log-file", "--events"])
def test_a_file_that_cannot_be_written_is_named(
    run: Run, library: Library, root: Path, tmp_path: Path, option: str
) -> None:
    fake = library("precompile", CompileError("Never reached"))
    ran = run("precompile", "m.py:f", option, str(tmp_path / "absent" / "file"), "--json")
    assert ran.code == ExitCode.USAGE
    assert ran.json()["errors"][0]["message"].startswith(option)
    assert fake.args == ()


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (["--help"], ["PRECAST_CACHE_DIR", "precompile", "verify", "inspect", "prune", "config", "schema"]),
        (["verify", "--help"], ["PRECAST_CACHE_DIR", "PRECAST_LOG", "KEY|TAG|MODEL|FILE.mega", "--no-strict"]),
        (["inspect", "ls", "--help"], ["KEY:DIR", "EXPR", "--long"]),
    ],
)
def test_help_loses_no_word_to_markup(rich: bool, words: list[str], pieces: list[str]) -> None:
    shown = CliRunner().invoke(build_app(rich=rich), words, env={"COLUMNS": "200"}).stdout
    assert [piece for piece in pieces if piece not in shown] == []
