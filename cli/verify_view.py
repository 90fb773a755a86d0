"""How `precast verify` answers."""

from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cli.errors import failure_of
from precast.cli.output import Output
from precast.cli.wording import short

if TYPE_CHECKING:
    from precast.aot.verify import VerifyReport

__all__ = ["show_verify", "verify_data"]

_WORDS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "degraded": "degraded"}


def verify_data(report: "VerifyReport") -> dict[str, Json]:
    """Give the `data` object of a verify answer."""
    return {
        "key": report.key,
        "level": report.level,
        "verified": report.ok,
        "stages": [
            {
                "name": stage.name,
                "status": stage.status,
                "seconds": stage.seconds,
                "summary": stage.summary,
                "facts": dict(stage.facts),
            }
            for stage in report.stages
        ],
    }


def show_verify(out: Output, report: "VerifyReport") -> None:
    """Show the stages and the verdict to people, and report every problem."""
    for stage in report.stages:
        word = _WORDS[stage.status]
        mark = out.mark(word) + " " * (8 - len(word))
        seconds = f"{stage.seconds:.2f} s" if stage.seconds else ""
        out.pairs([(stage.name, f"{mark}  {seconds:>8}  {stage.summary}".rstrip())])
        if stage.status == "degraded":
            out.warning("verify.degraded", f"{stage.name}: {stage.summary}", entry=report.key)
    total = sum(stage.seconds for stage in report.stages)
    verdict = "PASS" if report.ok else "FAIL"
    out.status(verdict, f"     {short(report.key)} at level {report.level}   {total:.2f} s")
    rows = [(stage.name, stage.status, f"{stage.seconds:.2f} s", stage.summary) for stage in report.stages]
    out.summarize(f"precast verify: {verdict} {short(report.key)}", ("stage", "status", "time", "summary"), rows)
    for problem in report.problems:
        out.error(failure_of(problem).remark)
