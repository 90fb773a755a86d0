"""The report of a verify: what passes, what exit code it has, and how much of the time is accounted for."""

from dataclasses import replace

from precast.aot.report import Stage, VerifyReport, counted
from precast.errors import ExitCode, IncompatibleError, VerifyError

STAGE = Stage("files", "ok", 0.0, "")


def test_the_exit_code_is_that_of_the_first_problem() -> None:
    assert VerifyReport("k", "files", (STAGE,), ()).exit_code == ExitCode.OK
    problems = (IncompatibleError("a"), VerifyError("b"))
    assert VerifyReport("k", "files", (STAGE,), problems).exit_code == ExitCode.INCOMPATIBLE
    assert VerifyReport("k", "load", (replace(STAGE, status="degraded"),), ()).exit_code == ExitCode.PARTIAL


def test_what_was_left_out_passes() -> None:
    assert VerifyReport("k", "load", (STAGE, replace(STAGE, status="skipped")), ()).ok
    assert not VerifyReport("k", "load", (STAGE, replace(STAGE, status="failed")), ()).ok


def test_the_share_that_no_phase_accounts_for() -> None:
    report = VerifyReport("k", "load", (STAGE,), (), {"import": 6.0, "load": 1.0, "other": 1.0})
    assert report.unaccounted == 0.125
    assert VerifyReport("k", "load", (STAGE,), ()).unaccounted == 0


def test_zeros_are_told_too() -> None:
    assert counted({"dynamo_frames": 0, "triton_compiles": 2}) == "dynamo frames 0 · triton compiles 2"
