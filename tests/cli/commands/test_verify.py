"""`precast verify` hands on what was asked and words the stages."""

from collections.abc import Callable
from dataclasses import fields, replace
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
    words += ["--bench"]
    assert run("verify", "m.py:f", *words).code == 0
    assert fake.args == ("m.py:f",)
    assert fake.settings.optimization_level == 1
    asked = ("level", "strict", "token_counts", "overrides", "cache_dir", "model", "bench")
    assert {name: fake.kwargs[name] for name in asked} == {
        "bench": True,
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
    assert fake.kwargs["bench"] is False


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


_CAPTURED = replace(
    _GOOD,
    level="capture",
    stages=(
        *_GOOD.stages[:2],
        FakeStage(
            "capture",
            "ok",
            2.5,
            "FULL 4 graphs",
            {
                "lowered": [{"from": "FULL", "to": "PIECEWISE", "reason": "attention can be captured for nothing"}],
                "bench": {
                    "copy_bytes_per_second": 4_280_000_000_000,
                    "rows": [
                        {"batch": 1, "tokens": 1, "ms": {"full": 4.461, "none": 12.7, "eager": 20.0}, "floor_ms": 3.26},
                        {"batch": 256, "tokens": 256, "ms": {"none": 9.4, "eager": 21.0}, "floor_ms": 3.26},
                    ],
                },
            },
        ),
    ),
    phases={"import": 1.25, "load": 0.6, "capture FULL": 0.5, "other": 0.02},
)


def test_people_read_how_the_mode_was_lowered_what_steps_take_and_where_the_time_went(
    run: Run, library: Library, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("verify", _CAPTURED)
    monkeypatch.setattr("precast.cli.commands.verify.process_age", lambda: 0.4)
    assert run("verify", "7f3c91", "--bench").out.splitlines()[2:] == [
        "capture    ok          2.50 s  FULL 4 graphs",
        "           mode FULL -> PIECEWISE: attention can be captured for nothing",
        "batch  FULL, ms  no graph, ms  eager, ms  floor, ms  best / floor",
        "    1     4.461        12.700     20.000      3.260          1.37",
        "  256         –         9.400     21.000      3.260          2.88",  # noqa: RUF001
        "floor: weights read once, at 4.28 TB/s of measured copy bandwidth",
        "time       start 0.40 · import 1.25 · load 0.60 · capture FULL 0.50 · other 0.02 s",
        "PASS       7f3c91d2a604 at level capture   2.77 s",
    ]


def test_json_holds_every_phase_and_their_sum(
    run: Run, library: Library, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("verify", _CAPTURED)
    monkeypatch.setattr("precast.cli.commands.verify.process_age", lambda: 0.4)
    data = run("verify", "7f3c91", "--json").json()["data"]
    assert data["phases"] == {"start": 0.4, **_CAPTURED.phases}
    assert data["seconds"] == pytest.approx(2.77)
    monkeypatch.setattr("precast.cli.commands.verify.process_age", lambda: 0.0)
    assert "start" not in run("verify", "7f3c91", "--json").json()["data"]["phases"]


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
