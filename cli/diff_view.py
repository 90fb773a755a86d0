"""How differences between two sides are worded and given as data, for `inspect diff` and `inspect explain`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cli.output import Column, Output
from precast.cli.values import printable, value_text
from precast.cli.wording import counted, joined, short

if TYPE_CHECKING:
    from precast.cache.diff import Change, Diff, LineChange
    from precast.cache.side import Side

__all__ = ["Group", "change_text", "diff_data", "only_groups", "patches", "show_changes", "show_diff", "summary_rows"]

_FULL_KEY = 64
_NAME_WIDTH = 40
_TEXT_WIDTH = 48
_COLUMNS = tuple(Column(key, key.upper()) for key in ("group", "factor", "kind", "a", "b", "severity", "reason"))


class Group(StrEnum):
    """Group of factors."""

    ENV = "env"
    CONFIG = "config"
    CODE = "code"
    COMPILER = "compiler"
    GRAPH = "graph"


def diff_data(diff: "Diff", *, patch: bool = False) -> dict[str, Json]:
    """Give a difference as data, with whole patches of the changed modules on request."""
    counts = Counter(change.severity for change in diff.changes)
    return {
        "a": _side(diff.a),
        "b": _side(diff.b),
        "changes": [_change(change) for change in diff.changes],
        "unchanged": dict(diff.unchanged),
        "untold": dict(diff.untold),
        "breaking": counts["breaking"],
        "noise": counts["noise"],
        "patches": {name: list(lines) for name, lines in patches(diff).items()} if patch else {},
    }


def show_diff(out: Output, diff: "Diff", groups: Sequence[str], *, patch: bool) -> None:
    """Show a whole difference: both sides, what changed by group, patches where wanted, and one closing sentence."""
    out.pairs([("key", f"{_name(diff.a)} → {_name(diff.b)}")])
    show_changes(out, diff, groups)
    if patch:
        for lines in patches(diff).values():
            out.lines("\t".join(map(printable, line.split("\t"))) for line in lines)
    out.footer(_verdict(diff))


def show_changes(out: Output, diff: "Diff", groups: Sequence[str] = ()) -> None:
    """Show the changed factors to people, and as rows to programs.

    Args:
        out: The sink.
        diff: What differs.
        groups: The groups of which people are told also that nothing changed in them.
    """
    widths = (
        min(max((len(change.factor) for change in diff.changes), default=0), _NAME_WIDTH),
        min(max((len(change_text(change)) for change in diff.changes), default=0), _TEXT_WIDTH),
    )
    for group in dict.fromkeys((*groups, *(change.group for change in diff.changes))):
        changes = [change for change in diff.changes if change.group == group]
        if changes:
            out.pairs(_change_lines(out, changes, widths))
        else:
            out.pairs(_no_change(diff, group))
    out.records(_COLUMNS, [_change(change) for change in diff.changes])


def patches(diff: "Diff") -> dict[str, tuple[str, ...]]:
    """Give a unified diff for each changed module of which both sides stored the text."""
    names = [change.factor.removeprefix("module:") for change in diff.changes if change.lines]
    return {name: diff.patch(name) for name in names}


def only_groups(diff: "Diff", groups: Sequence[str]) -> "Diff":
    """Give the part of a difference that lies in some groups."""
    return replace(
        diff,
        changes=tuple(change for change in diff.changes if change.group in groups),
        unchanged={group: count for group, count in diff.unchanged.items() if group in groups},
        untold={group: count for group, count in diff.untold.items() if group in groups},
    )


def change_text(change: "Change") -> str:
    """Word what happened to a factor: `4096 → 8192`, `added 1`, `removed 1`."""
    if change.kind == "added":
        return f"added {value_text(change.b)}"
    if change.kind == "removed":
        return f"removed {value_text(change.a)}"
    return f"{value_text(change.a)} → {value_text(change.b)}"


def summary_rows(diff: "Diff") -> list[tuple[str, str, str, str, str]]:
    """Give the rows of a table for the summary of a job: group, factor, both values, severity."""
    return [
        (change.group, change.factor, value_text(change.a), value_text(change.b), change.severity)
        for change in diff.changes
    ]


def _no_change(diff: "Diff", group: str) -> Iterator[tuple[str, str]]:
    unchanged, untold = diff.unchanged.get(group, 0), diff.untold.get(group, 0)
    same = f"no change ({counted(unchanged, 'factor')})" if unchanged else ""
    unknown = f"{counted(untold, 'factor')} that only a trace can tell" if untold else ""
    if same or unknown:
        yield group, joined([same, unknown])


def _change_lines(out: Output, changes: Sequence["Change"], widths: tuple[int, int]) -> Iterator[tuple[str, str]]:
    names, texts = widths
    for number, change in enumerate(changes):
        mark = out.mark(change.severity) + " " * (8 - len(change.severity))
        words = f"{change.factor:{names}}  {change_text(change):{texts}}  {mark}  {change.reason}"
        yield ("" if number else change.group), words
        for line in change.lines:
            yield "", f"  {line.module} {_place(line)}  {_brief(line)}"
        if change.rest:
            yield "", f"  and {counted(change.rest, 'line')} more"


def _brief(line: "LineChange") -> str:
    a, b = (None if text is None else printable(text.strip()) for text in (line.a, line.b))
    if a is None:
        return f"added {b}"
    return f"removed {a}" if b is None else f"{a} → {b}"


def _place(line: "LineChange") -> str:
    numbers = dict.fromkeys(number for number in (line.line_a, line.line_b) if number is not None)
    return f"line {' → '.join(map(str, numbers))}"


def _verdict(diff: "Diff") -> str:
    counts = Counter(change.severity for change in diff.changes)
    if not diff.changes:
        return "No difference"
    if not counts["breaking"]:
        return f"{counts['noise']} noise; the keys do not differ for it"
    return f"{counts['breaking']} breaking, {counts['noise']} noise"


def _name(side: "Side") -> str:
    if len(side.key) < _FULL_KEY:  # a live side or another tool's, whose label says more
        return side.label
    named = short(side.key)
    return named if side.label in (named, side.key) else f"{named} ({side.label})"


def _side(side: "Side") -> dict[str, Json]:
    return {"label": side.label, "key": side.key or None}


def _change(change: "Change") -> dict[str, Json]:
    return {
        "group": change.group,
        "factor": change.factor,
        "kind": change.kind,
        "a": change.a,
        "b": change.b,
        "severity": change.severity,
        "reason": change.reason,
        "lines": [
            {"module": line.module, "line_a": line.line_a, "line_b": line.line_b, "a": line.a, "b": line.b}
            for line in change.lines
        ],
        "more_lines": change.rest,
    }
