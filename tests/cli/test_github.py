"""GitHub Actions is told what happened, and nothing that we tell it can be more than text."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.support import FakeLibrary, FakeReport, FakeResult, FakeStage, Ran, outside_fences

from precast.cli.envelope import Remark
from precast.cli.github import Annotation, Github, GithubChoice
from precast.cli.output import Format, Output
from precast.errors import CompileError, ExitCode, VerifyError

Run = Callable[..., Ran]
Library = Callable[..., FakeLibrary]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of GitHub Actions; its summary and outputs lie in the folder that is given."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    return tmp_path


@pytest.mark.parametrize(
    ("choice", "variable", "active"),
    [
        (GithubChoice.AUTO, "true", True),
        (GithubChoice.AUTO, "false", False),
        (GithubChoice.AUTO, "", False),
        (GithubChoice.ON, "", True),
        (GithubChoice.OFF, "true", False),
    ],
)
def test_a_job_is_recognized_by_its_variable(choice: GithubChoice, variable: str, active: bool) -> None:
    assert Github(choice, {"GITHUB_ACTIONS": variable}).active is active


def test_an_annotation_is_escaped() -> None:
    line = Annotation.ERROR.line("a:b,c%\n", "50% of\r\nlines: 1,2")
    assert line == "::error title=a%3Ab%2Cc%25%0A::50%25 of%0D%0Alines: 1,2"


@given(st.text(), st.text())
def test_no_text_breaks_out_of_an_annotation(title: str, message: str) -> None:
    line = Annotation.WARNING.line(title, message)
    assert "\n" not in line
    assert "\r" not in line
    head, _, told = line.removeprefix("::warning title=").partition("::")
    assert ":" not in head
    for code, mark in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        head, told = head.replace(code, mark), told if mark in ":," else told.replace(code, mark)
    assert (head, told) == (title, message)


@given(st.text())
def test_an_output_is_one_line_whatever_its_value(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    file = tmp_path_factory.mktemp("job") / "output"
    Github(GithubChoice.ON, {"GITHUB_OUTPUT": str(file)}).set_outputs({"key": value})
    assert file.read_text().count("\n") == 1
    assert file.read_text().startswith("key=")


def test_text_that_is_not_unicode_is_survived(tmp_path: Path) -> None:
    Github(GithubChoice.ON, {"GITHUB_OUTPUT": str(tmp_path / "output")}).set_outputs({"key": "\udc80"})
    assert (tmp_path / "output").read_text() == "key=\\udc80\n"


def test_a_summary_is_a_table_whose_cells_hold_no_markup(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    file.write_text("earlier\n")
    Github(GithubChoice.ON, {"GITHUB_STEP_SUMMARY": str(file)}).summarize("t", ("a", "b"), [("x|y\nz", "<b>`1`")])
    assert file.read_text().splitlines() == [
        "earlier",
        "### t",
        "",
        "| a | b |",
        "| --- | --- |",
        r"| x\|y z | \<b\>\`1\` |",
        "",
    ]


COMMANDS = [
    "::error::x",
    " \t::add-mask::x",
    "a\n::error::x",
    "a\r::error::x",
    "plain ##[add-mask]x",
    "\u2003::debug::x",
]


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_inside_an_answer_is_fenced_by_a_token_of_its_own(text: str) -> None:
    github = Github(GithubChoice.ON, {})
    first, second = github.fenced(text), github.fenced(text)
    assert first != second
    assert text in first
    assert outside_fences(f"a\n{first}\nb") == ["a", "b"]
    assert Github(GithubChoice.OFF, {}).fenced(text) == text


@pytest.mark.parametrize("text", ["", "def f(x):", "a::b", "x = y[::2]", "## [x]", "+::error::x"])
def test_an_answer_without_a_command_is_left_alone(text: str) -> None:
    assert Github(GithubChoice.ON, {}).fenced(text) == text


@pytest.mark.parametrize("form", list(Format))
def test_what_programs_read_holds_no_fence(form: Format) -> None:
    stdout = io.StringIO()
    out = Output(stdout, io.StringIO(), format=form, github=Github(GithubChoice.ON, {}))
    out.text("::error::x")
    out.result({"code": "::error::x"}, ["::error::x"])
    out.finish(0)
    assert ("::stop-commands::" in stdout.getvalue()) is (form is Format.HUMAN)


@pytest.mark.parametrize("form", list(Format))
def test_only_people_get_annotations(form: Format) -> None:
    stderr = io.StringIO()
    out = Output(io.StringIO(), stderr, format=form, github=Github(GithubChoice.ON, {}))
    out.warning("key.noise", "careful", hint="look")
    out.error(Remark("store.corrupt", "Bad", "bytes\ndiffer", "Run again"))
    out.annotate(Annotation.NOTICE, "hit", "fine")
    wanted = [
        "::warning title=precast key.noise::careful%0Alook",
        "::error title=precast store.corrupt::Bad%0Abytes differ%0ARun again",
        "::notice title=precast hit::fine",
    ]
    found = [line for line in stderr.getvalue().splitlines() if line.startswith("::")]
    assert found == (wanted if form is Format.HUMAN else [])


def test_precompile_tells_the_job_key_hit_and_seconds(run: Run, library: Library, root: Path, job: Path) -> None:
    library("precompile", FakeResult("up_to_date", root, saved_seconds=19.94))
    ran = run("precompile", "m.py:f")
    assert "::notice title=precast precompile::tiny-decoder: up to date, 7f3c91d2a604, 19.9 s" in ran.err
    assert "::" not in ran.out
    assert (job / "output").read_text().splitlines() == [
        f"key={FakeResult('', root).key}",
        "hit=true",
        "seconds-saved=19.9",
    ]
    assert "| result | up to date |" in (job / "summary").read_text()


@pytest.mark.parametrize("status", ["compiled", "planned"])
def test_what_was_compiled_is_no_hit(run: Run, library: Library, root: Path, job: Path, status: str) -> None:
    library("precompile", FakeResult(status, root))
    run("precompile", "m.py:f", "--json")
    assert "hit=false\nseconds-saved=0.0\n" in (job / "output").read_text()


def test_json_on_a_job_is_still_one_document(run: Run, library: Library, root: Path, job: Path) -> None:
    library("precompile", CompileError("Piece 3 failed"))
    ran = run("precompile", "m.py:f", "--json")
    assert ran.json()["exit_code"] == 7
    assert "::" not in ran.err
    assert "| compile.failed | Piece 3 failed |" in (job / "summary").read_text()
    assert not (job / "output").exists()


@pytest.mark.parametrize("words", [["--github", "off"], ["--github=off"]])
def test_a_job_can_be_left_alone(run: Run, library: Library, root: Path, job: Path, words: list[str]) -> None:
    library("precompile", FakeResult("compiled", root))
    assert "::" not in run("precompile", "m.py:f", *words).err
    assert "::" not in run("precompile", "--bogus", *words).err
    assert not (job / "output").exists()
    assert not (job / "summary").exists()


def test_nobody_outside_a_job_is_told(run: Run, library: Library, root: Path) -> None:
    library("precompile", CompileError("Failed"))
    assert "::" not in run("precompile", "m.py:f").err
    assert "::error title=precast compile.failed::Failed" in run("precompile", "m.py:f", "--github", "on").err


def test_a_wrong_command_line_is_annotated_too(run: Run, job: Path) -> None:
    assert "::error title=precast usage::No such option" in run("verify", "--bogus").err


def test_a_summary_that_cannot_be_written_is_a_warning(
    run: Run, library: Library, root: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(job / "absent" / "summary"))
    library("precompile", FakeResult("compiled", root))
    ran = run("precompile", "m.py:f", "--json")
    assert ran.code == 0
    assert [warning["code"] for warning in ran.json()["warnings"]] == ["github.unwritable"]
    assert "hit=false" in (job / "output").read_text()


def test_verify_puts_its_stages_into_the_summary(run: Run, library: Library, root: Path, job: Path) -> None:
    stages = (FakeStage("files", "ok", 0.02, "4/4 objects match"), FakeStage("load", "failed", 0.5, "no | loader"))
    library("verify", FakeReport("ab" * 32, "load", stages, False, ExitCode.VERIFY_FAILED, (VerifyError("Traced"),)))
    assert run("verify", "abababab", "--json").code == 6
    summary = (job / "summary").read_text()
    assert "### precast verify: FAIL abababababab" in summary
    assert r"| load | failed | 0.50 s | no \| loader |" in summary
    assert "| verify.failed | Traced |" in summary
