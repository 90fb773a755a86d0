"""`precast verify` hands on what was asked and words the stages."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.support import FakeLibrary, FakeReport, FakeStage, Ran, publish

from precast.errors import ExitCode, IncompatibleError, VerifyError

Run = Callable[..., Ran]
Library = Callable[[str, object], FakeLibrary]

_KEY = "7f3c91d2a604" + "0" * 52
_GOOD = FakeReport(
    _KEY,
    "load",
    (
        FakeStage("files", "ok", 0.02, "4/4 objects match"),
        FakeStage("load", "ok", 0.61, "33 calls", {"dynamo_frames": 0}),
        FakeStage("numerics", "skipped", 0.0, ""),
    ),
    True,
    ExitCode.OK,
)


def test_everything_that_was_asked_reaches_the_library(run: Run, library: Library, root: Path) -> None:
    fake = library("verify", _GOOD)
    words = ["--level", "load", "--sizes", "1,4", "--no-strict", "--set", "layers=4", "-O1", "--model", "other.py:g"]
    assert run("verify", "m.py:f", *words).code == 0
    assert fake.args == ("m.py:f",)
    assert fake.settings.optimization_level == 1
    told = {name: fake.kwargs[name] for name in ("level", "strict", "token_counts", "overrides", "cache_dir", "model")}
    assert told == {
        "model": "other.py:g",
        "level": "load",
        "strict": False,
        "token_counts": (1, 4),
        "overrides": {"layers": 4},
        "cache_dir": root,
    }


def test_defaults_are_strict_and_automatic(run: Run, library: Library, root: Path) -> None:
    fake = library("verify", _GOOD)
    run("verify", "7f3c91")
    assert (fake.kwargs["level"], fake.kwargs["strict"], fake.kwargs["token_counts"]) == ("auto", True, None)


def test_people_read_stages_and_a_verdict(run: Run, library: Library, root: Path) -> None:
    library("verify", _GOOD)
    assert run("verify", "7f3c91").out.splitlines() == [
        "files      ok          0.02 s  4/4 objects match",
        "load       ok          0.61 s  33 calls",
        "numerics   skipped",
        "PASS       7f3c91d2a604 at level load   0.63 s",
    ]


def test_json_holds_stages_and_facts(run: Run, library: Library, root: Path) -> None:
    library("verify", _GOOD)
    data = run("verify", "7f3c91", "--json").json()["data"]
    assert (data["key"], data["verified"]) == (_KEY, True)
    assert data["stages"][1]["facts"] == {"dynamo_frames": 0}


@pytest.mark.parametrize(
    "problem", [IncompatibleError("Other node", "sm90 is not sm80", "Compile again"), VerifyError("Wrong numbers")]
)
def test_problems_are_told_and_decide_the_status(
    run: Run, library: Library, root: Path, problem: IncompatibleError | VerifyError
) -> None:
    stage = FakeStage("env", "failed", 0.1, "entry sm90, node sm80")
    library("verify", FakeReport(_KEY, "env", (stage,), False, problem.exit_code, (problem,)))
    ran = run("verify", "7f3c91", "--json")
    assert ran.code == problem.exit_code
    assert ran.json()["errors"][0]["code"] == problem.code
    assert f"error: {problem.what}" in ran.err
    human = run("verify", "7f3c91")
    assert "FAILED" in human.out
    assert "FAIL " in human.out
    assert run("verify", "7f3c91", "-q").out == ""


def test_a_degraded_stage_is_a_warning(run: Run, library: Library, root: Path) -> None:
    stage = FakeStage("load", "degraded", 0.1, "1 piece missing")
    library("verify", FakeReport(_KEY, "load", (stage,), True, ExitCode.OK))
    ran = run("verify", "7f3c91", "--no-strict", "--json")
    assert ran.json()["warnings"] == [{"code": "verify.degraded", "message": "load: 1 piece missing", "entry": _KEY}]


def test_the_only_entry_is_meant_when_none_is_named(run: Run, library: Library, root: Path) -> None:
    fake = library("verify", _GOOD)
    assert run("verify", "--json").code == ExitCode.NO_ENTRY
    key = publish(root, "tiny")
    assert run("verify").code == 0
    assert fake.args == (key,)
    publish(root, "large")
    assert run("verify", "--json").code == ExitCode.USAGE


def test_the_stand_ins_have_the_fields_of_the_real_report() -> None:
    from precast.aot.verify import Stage, VerifyReport

    assert {f.name for f in fields(FakeStage)} == {f.name for f in fields(Stage)}
    assert all(hasattr(VerifyReport, f.name) for f in fields(FakeReport))
