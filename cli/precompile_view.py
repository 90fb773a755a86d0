"""How `precast precompile` answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cache.records import PayloadRecord
from precast.cache.sizes import format_size
from precast.cli.github import Annotation
from precast.cli.output import Output
from precast.cli.terminal import TIMES
from precast.cli.wording import counted, joined, range_text, short

if TYPE_CHECKING:
    from precast.aot.each_target import TargetOutcome
    from precast.aot.precompile import PrecompileResult
    from precast.cache.repair import Mended
    from precast.errors import ExitCode

__all__ = [
    "DRY",
    "payload_data",
    "precompile_data",
    "report_all_to_job",
    "report_to_job",
    "show_precompile",
    "targets_data",
]

DRY = ("planned", "pullable")
"""What a dry run answers where there is no entry here."""

_HITS = ("up_to_date", "repaired", "pulled", "pullable")


def precompile_data(result: "PrecompileResult") -> dict[str, Json]:
    """Give the `data` object of a precompile answer."""
    return {
        "status": result.status,
        "key": result.key,
        "model": result.model,
        "factor_digests": dict(result.factors_digests),
        "pieces": result.pieces,
        "unique": result.unique,
        "ranges": [list(ends) for ends in result.ranges],
        "splitting_ops": dict(result.splitting_ops),
        "payloads": [payload_data(payload) for payload in result.payloads],
        "mega_bytes": result.mega_bytes,
        "stored_bytes": result.stored_bytes,
        "seconds": result.seconds,
        "saved_seconds": result.saved_seconds,
        "signed_by": list(result.signed_by),
        "repaired": [_mended_data(item) for item in result.repaired],
        "remote": _remote_data(result),
        "root": str(result.root),
        "next_command": result.next_command,
    }


def targets_data(outcomes: "Sequence[TargetOutcome]", codes: "Sequence[ExitCode]") -> dict[str, Json]:
    """Give the `data` object of an answer for several targets."""
    return {
        "targets": [
            {
                "names": list(outcome.wanted.names),
                "target": outcome.wanted.target.to_json(),
                "exit_code": int(code),
                "error": None if outcome.error is None else outcome.error.code,
                "output": None if outcome.output is None or outcome.result is None else str(outcome.output),
                "result": None if outcome.result is None else precompile_data(outcome.result),
            }
            for outcome, code in zip(outcomes, codes, strict=True)
        ]
    }


def _mended_data(item: "Mended") -> Json:
    return {**item.damage.json(), "kept": None if item.kept is None else str(item.kept)}


def _remote_data(result: "PrecompileResult") -> Json:
    if not result.remote:
        return None
    return {"url": result.remote, "pulled_bytes": result.pulled_bytes, "pushed_bytes": result.pushed_bytes}


def payload_data(payload: PayloadRecord) -> dict[str, Json]:
    """Give one payload as data, times in seconds and sizes in bytes."""
    return {
        "name": payload.name,
        "kind": payload.kind,
        "object": payload.object,
        "bytes": payload.bytes,
        "stored_bytes": payload.stored_bytes,
        "seconds": payload.seconds,
        "range": list(payload.range),
        "used_by": payload.used_by,
    }


def payload_text(payload: PayloadRecord) -> str:
    """Word one payload for people."""
    name = short(payload.name.partition(":")[0])
    shared = f"{TIMES}{payload.used_by}" if payload.used_by > 1 else ""
    made = f"{payload.seconds:.1f} s   {format_size(payload.bytes)}"
    return f"{name} {shared:5} range {range_text(payload.range):8}  {made}"


def show_precompile(out: Output, result: "PrecompileResult", output: Path | None) -> None:
    """Show the answer to people."""
    saves = f"saves about {result.saved_seconds:.1f} s" if result.saved_seconds else ""
    if result.status == "up_to_date":
        out.status("up to date", f"{short(result.key)}  {joined([result.model, saves])}   ({result.seconds:.1f} s)")
    elif result.status == "repaired":
        out.status("repaired", f"  {short(result.key)}  {joined([result.model, saves])}   ({result.seconds:.1f} s)")
        out.pairs(("mended", str(item.damage)) for item in result.repaired)
        out.pairs(("bad copy", str(item.kept)) for item in result.repaired if item.kept is not None)
    elif result.status == "pulled":
        moved = f"{format_size(result.pulled_bytes)} from {result.remote}"
        told = joined([result.model, moved, saves])
        out.status("pulled", f"    {short(result.key)}  {told}   ({result.seconds:.1f} s)")
    elif result.status == "pullable":
        out.pairs([("key", short(result.key))])
        out.pairs([("dry run", f"{result.model} would be pulled from {result.remote}; nothing was changed")])
    else:
        _show_work(out, result)
    if result.signed_by:
        out.pairs([("signed", f"by {', '.join(result.signed_by)}")])
    if result.pushed_bytes:
        out.pairs([("pushed", f"{result.remote}   {format_size(result.pushed_bytes)}")])
    if output and result.status not in DRY:
        out.pairs([("written", str(output))])
    if result.next_command and result.status not in ("up_to_date", "pullable"):
        out.pairs([("next", result.next_command)])


def report_to_job(out: Output, model: str, result: "PrecompileResult") -> None:
    """Tell the job of GitHub Actions that runs us: a notice, a table, and outputs for later steps."""
    _report(out, model, result)
    _set_outputs(out, [result])


def report_all_to_job(out: Output, model: str, outcomes: "Sequence[TargetOutcome]") -> None:
    """Tell the same of several targets: a notice and a table each, and outputs for all; keys are between blanks."""
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    for result in results:
        _report(out, model, result)
    _set_outputs(out, results, complete=len(results) == len(outcomes))


def _set_outputs(out: Output, results: "Sequence[PrecompileResult]", *, complete: bool = True) -> None:
    hit = complete and all(result.status in _HITS for result in results)
    saved = sum(result.saved_seconds for result in results)
    keys = " ".join(result.key for result in results)
    out.set_outputs({"key": keys, "hit": str(hit).lower(), "seconds-saved": f"{saved:.1f}"})


def _report(out: Output, model: str, result: "PrecompileResult") -> None:
    word = result.status.replace("_", " ")
    seconds = f"{result.seconds:.1f} s"
    out.annotate(Annotation.NOTICE, "precompile", f"{result.model}: {word}, {short(result.key)}, {seconds}")
    rows = [
        ("model", model),
        ("result", word),
        ("key", result.key),
        ("pieces", f"{result.pieces}, {result.unique} distinct"),
        ("stored", format_size(result.stored_bytes)),
        ("seconds", seconds),
        ("seconds saved", f"{result.saved_seconds:.1f} s"),
        *_moved(result),
        *(("mended", str(item.damage)) for item in result.repaired),
    ]
    out.summarize("precast precompile", ("", result.model), rows)


def _moved(result: "PrecompileResult") -> list[tuple[str, str]]:
    moved = (("pulled", result.pulled_bytes, "from"), ("pushed", result.pushed_bytes, "to"))
    return [(word, f"{format_size(size)} {way} {result.remote}") for word, size, way in moved if size]


def _show_work(out: Output, result: "PrecompileResult") -> None:
    planned = result.status == "planned"
    digests = joined([f"{group} {short(digest, 4)}" for group, digest in result.factors_digests.items()])
    out.pairs([("key", f"{short(result.key)}  ({digests})"), ("plan", _plan(result))])
    if planned:
        out.pairs([("dry run", f"{result.model} would be compiled; nothing was changed")])
        return
    total = len(result.payloads)
    out.pairs(
        (f"piece {number}/{total}", payload_text(payload)) for number, payload in enumerate(result.payloads, start=1)
    )
    out.pairs(
        [
            ("mega", f"one artifact, {format_size(result.mega_bytes)}"),
            ("stored", f"{result.root}   {format_size(result.stored_bytes)}   {result.seconds:.1f} s"),
        ]
    )


def _plan(result: "PrecompileResult") -> str:
    ranges = ", ".join(range_text(ends) for ends in result.ranges)
    cuts = ", ".join(f"{op} {TIMES}{count}" for op, count in result.splitting_ops.items())
    return joined(
        [
            f"{counted(result.pieces, 'piece')} → {result.unique} distinct",
            f"{counted(len(result.ranges), 'range')} {ranges}",
            f"cut at {cuts}" if cuts else "no splitting ops",
        ]
    )
