"""How `precast inspect coverage` answers."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.capture.holes import Hole, Span, holes_of, spans
from precast.capture.modes import CUDAGraphMode
from precast.capture.traffic import BatchKind
from precast.cli.output import Column, Format, Output
from precast.cli.terminal import DASH
from precast.cli.wording import counted, joined

if TYPE_CHECKING:
    from precast.aot.coverage_request import CoverageRequest
    from precast.capture.coverage import Coverage, Padding
    from precast.cli.coverage_traffic import Given

__all__ = ["coverage_data", "show_coverage"]

_SIZES_SHOWN = 16
_SPANS_SHOWN = 4
_WAYS = ((CUDAGraphMode.FULL, "FULL"), (CUDAGraphMode.PIECEWISE, "PIECEWISE"), (CUDAGraphMode.NONE, "no graph"))
_HOLES = (
    Column("kind", "KIND"),
    Column("requests", "REQUESTS", right=True),
    Column("tokens", "TOKENS", right=True),
    Column("runs", "RUNS"),
    Column("wanted", "WANTED"),
    Column("batches", "BATCHES", right=True),
    Column("why", "WHY"),
)
_FIELDS = ("kind", "requests", "tokens", "runs", "wanted", "batches", "count", "reason", "hidden", "barrier")
_RECORDS = tuple(Column(name, name) for name in _FIELDS)


def coverage_data(found: "Coverage", request: "CoverageRequest", given: "Given", model: str) -> dict[str, Json]:
    """Give the answer as data.

    Args:
        found: What was found.
        request: What it is about.
        given: The traffic.
        model: Name of the model, or empty.
    """
    limits, after = request.limits, found.after or found
    return {
        "model": model or None,
        "target": request.target,
        "gpu_known": request.gpu_known,
        "mode": request.mode.name,
        "asked_mode": request.asked.name,
        "lowered": [step.json() for step in request.lowered],
        "sizes": [*found.graphs.sizes],
        "size_notes": [{"rule": n.rule, "sizes": [*n.sizes], "reason": n.reason} for n in request.sizes.notes],
        "limits": {
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_num_seqs": limits.max_num_seqs,
            "drafts": limits.drafts,
            "draft_schedule": [[tier.max_reqs, tier.drafts] for tier in limits.draft_schedule],
            "adaptive_verification": limits.adaptive_verification,
            "max_loras": limits.lora.max_loras,
            "num_ubatches": limits.num_ubatches,
        },
        "traffic": {
            "source": given.source,
            "batches": len(found.batches),
            "count": sum(placed.count for placed in found.batches),
            "too_large": _span_data(spans(given.too_large)),
        },
        "runs": {kind.value: _runs_data(found, kind) for kind in BatchKind},
        "covered": found.is_full,
        "uncovered": len(found.holes),
        "holes": [_hole_data(hole, given) for hole in holes_of(found.batches)],
        "lost_graphs": [
            {"tokens": one.num_tokens, "requests": one.num_reqs, "query_len": one.uniform_token_count}
            for one in found.lost()
        ],
        "padding": _padding_data(found.padding),
        "extra_sizes": [*found.extra],
        "closes_all": found.closes_all,
        "after": {
            "uncovered": len(after.holes),
            "holes": [_hole_data(hole, given) for hole in holes_of(after.batches)],
            "padding": _padding_data(after.padding),
        },
    }


def show_coverage(out: Output, found: "Coverage", request: "CoverageRequest", given: "Given") -> None:
    """Show people what runs on graphs, each hole and what closes it, and programs the holes as rows."""
    out.pairs([*_setting(found, request), *(_runs(found, kind) for kind in BatchKind if _has(found, kind))])
    _show_holes(out, holes_of(found.batches), given)
    out.pairs([("padding", _padding_text(found.padding)), *_lost(found), *_closing(found)])
    if given.too_large:
        out.warning(
            "coverage.too_large",
            f"decode steps of {_text(spans(given.too_large))} requests have more tokens than a step may have",
            hint="raise --max-num-batched-tokens, or lower --max-num-seqs",
        )
    if found.extra:
        out.hint(f"--cudagraph-capture-sizes {','.join(map(str, sorted({*found.graphs.sizes, *found.extra})))}")


def _show_holes(out: Output, holes: Sequence[Hole], given: "Given") -> None:
    out.records(_RECORDS, [_record(hole, given) for hole in holes])
    rows = [_row(hole, given) for hole in holes]
    if rows and out.format is Format.HUMAN:
        out.table(_HOLES, rows)
    if rows:
        cells = [[str(row[column.key]) for column in _HOLES] for row in rows]
        out.summarize("precast inspect coverage", [column.title for column in _HOLES], cells)


def _setting(found: "Coverage", request: "CoverageRequest") -> list[tuple[str, str]]:
    sizes = found.graphs.sizes
    listed = ", ".join(map(str, sizes)) or "none"
    told = listed if len(sizes) <= _SIZES_SHOWN else f"{len(sizes)} from {sizes[0]} to {sizes[-1]}"
    unknown = "" if request.gpu_known else "those of a GPU that is no data-center Blackwell (--target)"
    return [
        ("mode", request.mode.name),
        *(("lowered", f"from {step.before} to {step.after}: {step.reason}") for step in request.lowered),
        ("sizes", joined([told, unknown])),
        *(("left out", f"{_text(spans(note.sizes))}: {note.reason}") for note in request.sizes.notes),
    ]


def _runs(found: "Coverage", kind: BatchKind) -> tuple[str, str]:
    batches = [placed for placed in found.batches if placed.kind is kind]
    total = sum(placed.count for placed in batches)
    parts = [counted(len(batches), "batch", "batches") + ("" if total == len(batches) else f", {_number(total)} runs")]
    for mode, word in _WAYS:
        count = sum(placed.count for placed in batches if placed.mode is mode)
        parts.append(f"{_number(count)} {word}" if count else "")
    return kind.value, joined(parts)


def _has(found: "Coverage", kind: BatchKind) -> bool:
    return any(placed.kind is kind for placed in found.batches)


def _row(hole: Hole, given: "Given") -> dict[str, Json]:
    """Return a hole as people read it."""
    return {
        "kind": hole.kind.value,
        "requests": _text(hole.requests) if _names_requests(hole, given) else "any",
        "tokens": _text(hole.tokens),
        "runs": hole.runs.name,
        "wanted": hole.wanted.name,
        "batches": hole.batches,
        "why": _why(hole),
    }


def _record(hole: Hole, given: "Given") -> dict[str, Json]:
    """Return a hole as programs read it: `12-48:4` is every fourth number; no requests are any number of them."""
    return {
        "kind": hole.kind.value,
        "requests": _plain(hole.requests) if _names_requests(hole, given) else "",
        "tokens": _plain(hole.tokens),
        "runs": hole.runs.name,
        "wanted": hole.wanted.name,
        "batches": hole.batches,
        "count": hole.count,
        "reason": hole.reason.name.lower() if hole.reason else "",
        "hidden": hole.hidden,
        "barrier": hole.barrier.name.lower() if hole.barrier else "",
    }


def _why(hole: Hole) -> str:
    """Say what is in the way: of a hole that sizes cannot close, what keeps them from it."""
    larger = "a larger graph would fit, and the next one hides it" if hole.hidden else ""
    reason = hole.reason.value if hole.reason else ""
    who = [f"{hole.num_ubatches} microbatches" if hole.num_ubatches > 1 else ""]
    who.append(counted(hole.num_active_loras, "adapter") if hole.num_active_loras else "")
    return joined([*who, larger or reason, f"no size closes it: {hole.barrier.value}" if hole.barrier else ""])


def _names_requests(hole: Hole, given: "Given") -> bool:
    """Tell whether the traffic says to how many requests the tokens of a hole belong."""
    return hole.kind is BatchKind.DECODE or given.source == "file"


def _lost(found: "Coverage") -> list[tuple[str, str]]:
    largest = found.graphs.sizes[-1] if found.graphs.sizes else 0
    return [
        ("lost", f"FULL of {one.num_tokens} tokens ({one.num_reqs} x {one.uniform_token_count}): above {largest}")
        for one in found.lost()
    ]


def _closing(found: "Coverage") -> list[tuple[str, str]]:
    if found.is_full:
        return [("covered", "every batch has the graph that its mode has for it")]
    if not found.extra:
        return [("close", "no capture size closes any of the holes")]
    after = found.after or found
    left = (
        "nothing is uncovered" if after.is_full else f"{counted(len(after.holes), 'batch', 'batches')} stay uncovered"
    )
    return [
        ("close", f"add {', '.join(map(str, found.extra))}"),
        ("", joined([f"then {left}", f"padding {_padding_text(after.padding)}"])),
    ]


def _padding_text(padding: "Padding") -> str:
    share = f"{100 * padding.share:.1f} %"
    return f"{_number(padding.padded)} of {_number(padding.computed)} computed tokens, {share}"


def _number(count: float) -> str:
    return str(int(count)) if count == int(count) else f"{count:.2f}"


def _text(found: Sequence[Span]) -> str:
    words = [_span(span) for span in found[:_SPANS_SHOWN]]
    more = len(found) - len(words)
    return ", ".join([*words, *([f"and {more} more"] if more else [])])


def _span(span: Span) -> str:
    if span.first == span.last:
        return str(span.first)
    return f"{span.first}{DASH}{span.last}" + (f" by {span.step}" if span.step > 1 else "")


def _plain(found: Sequence[Span]) -> str:
    words = []
    for span in found:
        step = f":{span.step}" if span.step > 1 else ""
        words.append(str(span.first) if span.first == span.last else f"{span.first}-{span.last}{step}")
    return ",".join(words)


def _runs_data(found: "Coverage", kind: BatchKind) -> dict[str, Json]:
    batches = [placed for placed in found.batches if placed.kind is kind]
    return {
        mode.name: {
            "batches": sum(1 for placed in batches if placed.mode is mode),
            "count": sum(placed.count for placed in batches if placed.mode is mode),
        }
        for mode, _ in _WAYS
    }


def _hole_data(hole: Hole, given: "Given") -> dict[str, Json]:
    return {
        "kind": hole.kind.value,
        "runs": hole.runs.name,
        "wanted": hole.wanted.name,
        "reason": {"code": hole.reason.name.lower(), "text": hole.reason.value} if hole.reason else None,
        "hidden": hole.hidden,
        "best": hole.best.name if hole.best else hole.wanted.name,
        "barrier": {"code": hole.barrier.name.lower(), "text": hole.barrier.value} if hole.barrier else None,
        "query_len": hole.query_len,
        "loras": hole.num_active_loras,
        "ubatches": hole.num_ubatches,
        "requests": _span_data(hole.requests) if _names_requests(hole, given) else [],
        "tokens": _span_data(hole.tokens),
        "batches": hole.batches,
        "count": hole.count,
    }


def _span_data(found: Iterable[Span]) -> list[Json]:
    return [{"first": span.first, "last": span.last, "step": span.step} for span in found]


def _padding_data(padding: "Padding") -> dict[str, Json]:
    return {
        "asked_tokens": padding.asked,
        "computed_tokens": padding.computed,
        "padded_tokens": padding.padded,
        "share": padding.share,
    }
