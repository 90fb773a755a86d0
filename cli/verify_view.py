"""How `precast verify` answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from precast.cache.canonical import Json
from precast.cli.errors import failure_of
from precast.cli.output import Column, Output
from precast.cli.wording import short

if TYPE_CHECKING:
    from precast.aot.verify import VerifyReport

__all__ = ["show_verify", "verify_data"]

_WORDS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "degraded": "degraded"}
_WAYS = (("full", "FULL"), ("piecewise", "PIECEWISE"), ("none", "no graph"), ("eager", "eager"))


def verify_data(report: "VerifyReport", started: float = 0.0) -> dict[str, Json]:
    """Give the `data` object of a verify answer.

    Args:
        report: What was found.
        started: Seconds of the process before the verify began.
    """
    phases = _phases(report, started)
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
        "seconds": sum(phases.values()),
        "phases": dict(phases),
    }


def show_verify(out: Output, report: "VerifyReport", started: float = 0.0) -> None:
    """Show the stages, the times and the verdict to people, and report every problem."""
    for stage in report.stages:
        word = _WORDS[stage.status]
        mark = out.mark(word) + " " * (8 - len(word))
        seconds = f"{stage.seconds:.2f} s" if stage.seconds else ""
        out.pairs([(stage.name, f"{mark}  {seconds:>8}  {stage.summary}".rstrip())])
        _show_graphs(out, stage.facts)
        if stage.status == "degraded":
            out.warning("verify.degraded", f"{stage.name}: {stage.summary}", entry=report.key)
    phases = _phases(report, started)
    if phases:
        out.pairs([("time", " · ".join(f"{name} {spent:.2f}" for name, spent in phases.items()) + " s")])
    total = sum(phases.values()) if phases else sum(stage.seconds for stage in report.stages)
    verdict = "PASS" if report.ok else "FAIL"
    out.status(verdict, f"     {short(report.key)} at level {report.level}   {total:.2f} s")
    rows = [(stage.name, stage.status, f"{stage.seconds:.2f} s", stage.summary) for stage in report.stages]
    out.summarize(f"precast verify: {verdict} {short(report.key)}", ("stage", "status", "time", "summary"), rows)
    for problem in report.problems:
        out.error(failure_of(problem).remark)


def _phases(report: "VerifyReport", started: float) -> dict[str, float]:
    if not report.phases:
        return {}
    return {"start": started, **report.phases} if started else dict(report.phases)


def _show_graphs(out: Output, facts: Mapping[str, Any]) -> None:
    """Show how the mode was lowered, and what decode steps take."""
    for lowered in facts.get("lowered", ()):
        out.pairs([("", f"mode {lowered['from']} -> {lowered['to']}: {lowered['reason']}")])
    bench = facts.get("bench")
    if bench is None:
        return
    ways = [way for way in _WAYS if any(way[0] in row["ms"] for row in bench["rows"])]
    columns = [Column("batch", "batch", right=True)]
    columns += [Column(key, f"{title}, ms", right=True) for key, title in ways]
    columns += [Column("floor", "floor, ms", right=True), Column("times", "best / floor", right=True)]
    out.table(columns, [_bench_row(row, [key for key, _ in ways]) for row in bench["rows"]])
    out.footer(
        f"floor: weights read once, at {bench['copy_bytes_per_second'] / 1e12:.2f} TB/s of measured copy bandwidth"
    )


def _bench_row(row: Mapping[str, Any], ways: list[str]) -> dict[str, Json]:
    ms = row["ms"]
    shown: dict[str, Json] = {way: f"{ms[way]:.3f}" if way in ms else "" for way in ways}
    ratio = min(ms.values()) / row["floor_ms"] if row["floor_ms"] else None
    times = "" if ratio is None else f"{ratio:.2f}"
    return {"batch": row["batch"], **shown, "floor": f"{row['floor_ms']:.3f}", "times": times}
