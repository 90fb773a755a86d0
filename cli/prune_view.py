"""How `precast prune` answers: the plan before it is executed, and what came of it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from precast.cache.canonical import Json
from precast.cache.locks import Holder, OnWait
from precast.cache.plans import PruneItem, PrunePlan, PruneSummary, SkippedItem
from precast.cache.sizes import format_age, format_size
from precast.cli.output import Column, Output
from precast.cli.wording import counted, short, target_text

__all__ = ["prune_data", "show_done", "show_plan", "tell_kept", "waiting"]

_NOUNS = {
    "entry": ("entry", "entries"),
    "object": ("object that no entry refers to", "objects that no entry refers to"),
    "tag": ("tag", "tags"),
    "staging": ("unfinished piece of work", "unfinished pieces of work"),
    "quarantine": ("quarantined copy", "quarantined copies"),
    "leftover": ("leftover of what is gone", "leftovers of what is gone"),
}
_COLUMNS = [Column(name, name.upper()) for name in ("kind", "id", "bytes", "files", "reason")]
_NS = 10**9
_SHOWN = 20


def prune_data(plan: PrunePlan, done: PruneSummary | None) -> dict[str, Json]:
    """Give the `data` object: what went, or what would go when nothing was done yet."""
    removed = plan.remove if done is None else done.removed
    return {
        "dry_run": done is None,
        "root": str(plan.root),
        "removed": [_item(item) for item in removed],
        "skipped": [{**_item(each.item), "reason": each.reason} for each in (done.skipped if done else ())],
        "kept": [{"key": entry.key, "bytes": entry.bytes, "reason": entry.reason} for entry in plan.keep],
        "freed_bytes": sum(item.bytes for item in removed),
        "freed_files": sum(item.files for item in removed),
        "bytes_before": plan.bytes_before,
        "files_before": plan.files_before,
        "unmet": [unmet.message for unmet in plan.unmet],
        "foreign": [
            {"path": item.path, "bytes": item.bytes, "files": item.files, "layout": item.layout}
            for item in plan.foreign
        ],
        "loose_tags": list(plan.loose_tags),
    }


def show_plan(out: Output, plan: PrunePlan, *, dry_run: bool) -> None:
    """Show people what would go, entries one by one and everything else by kind, and which entries a rule spares."""
    out.records(_COLUMNS, [_item(item) for item in plan.remove])
    if not plan.remove:
        out.status("nothing to do", f"{format_size(plan.bytes_before)} in {counted(plan.files_before, 'file')}")
    label = "would remove" if dry_run else "remove"
    out.pairs((label, line) for line in (*_entry_lines(plan), *_other_lines(plan.remove)))
    spared = [f"{short(entry.key)} ({entry.reason})" for entry in plan.keep if entry.reason]
    if spared:
        more = [f"and {len(spared) - _SHOWN} more"] if len(spared) > _SHOWN else []
        out.pairs([("would keep  " if dry_run else "keep  ", ", ".join([*spared[:_SHOWN], *more]))])
    if dry_run and plan.remove:
        freed, before = format_size(plan.freed_bytes), format_size(plan.bytes_before)
        out.footer(f"Would free {freed} of {before}; nothing was changed")


def show_done(out: Output, plan: PrunePlan, done: PruneSummary) -> None:
    """Show people what went, and warn about what stayed after all."""
    if plan.remove:
        out.footer(f"Freed {format_size(done.freed_bytes)} of {format_size(plan.bytes_before)}")
    for (kind, reason), group in groupby(sorted(done.skipped, key=_alike), key=_alike):
        alike = list(group)
        named = f"{kind} {alike[0].item.id}" if len(alike) == 1 else counted(len(alike), *_NOUNS[kind])
        out.warning("prune.skipped", f"Not removed: {named}: {reason}")


def tell_kept(out: Output, plan: PrunePlan) -> None:
    """Warn where a limit does not hold, where an entry that was named stays, and of what only people can tidy."""
    for unmet in plan.unmet:
        out.warning("prune.limit_unmet", unmet.message, hint=unmet.hint)
    kept = {entry.key: entry for entry in plan.keep}
    for key in plan.rules.keys:
        if key in kept:
            out.warning("prune.entry_kept", f"Entry {short(key)} stays: {kept[key].reason}", entry=key)
    for item in plan.foreign:
        if item.layout:
            out.warning(
                "prune.other_layout",
                f"{item.path} holds {format_size(item.bytes)} of another version of precast",
                hint=f"Prune it with that version, or remove {plan.root / item.path}",
            )
    if plan.loose_tags:
        names = ", ".join(plan.loose_tags)
        out.warning(
            "prune.loose_tag",
            f"No entry is there for {counted(len(plan.loose_tags), 'tag')}: {names}",
            hint="Build the entry again, or remove the tag with --drop-tag",
        )
    rules = plan.rules
    if (rules.keep_last or rules.keep_tags) and not (rules.takes_entries or rules.selection):
        out.hint("--keep-last and --keep-tag only say what stays; add --max-age or a limit")


def waiting(out: Output) -> OnWait:
    """Return what says that another process is waited for."""

    def tell(holder: Holder | None) -> None:
        out.progress_line(f"{holder or 'another process'} works on the store; waiting for it")

    return tell


def _entry_lines(plan: PrunePlan) -> Iterator[str]:
    """Yield one line an entry: key, model and target, why it goes and when it was last used, size."""
    rows = [_cells(item, plan.made_ns) for item in plan.remove if item.kind == "entry"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, size in rows:
        texts = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        yield "  ".join([*texts, size.rjust(widths[-1])])


def _cells(item: PruneItem, now_ns: int) -> tuple[str, ...]:
    entry = item.entry
    model = f"{entry.model} {target_text(entry.target)}" if entry and entry.model else ""
    unused = _unused_seconds(item, now_ns)
    known = unused is None or item.reason.startswith("not used")
    return (
        short(item.id),
        model,
        item.reason if known else f"{item.reason}, used {format_age(unused or 0)} ago",
        format_size(item.bytes),
    )


def _other_lines(items: Sequence[PruneItem]) -> Iterable[str]:
    others = sorted((item for item in items if item.kind != "entry"), key=_kind)
    for kind, group in groupby(others, key=_kind):
        alike = list(group)
        names = f": {', '.join(item.id for item in alike[:_SHOWN])}" if kind == "tag" else ""
        yield f"{counted(len(alike), *_NOUNS[kind])}{names}  {format_size(sum(item.bytes for item in alike))}"


def _kind(item: PruneItem) -> str:
    return item.kind


def _alike(skipped: SkippedItem) -> tuple[str, str]:
    return skipped.item.kind, skipped.reason


def _unused_seconds(item: PruneItem, now_ns: int) -> int | None:
    used = None if item.entry is None else item.entry.last_used_ns
    return None if used is None else max(0, (now_ns - used) // _NS)


def _moment(ns: int | None) -> str | None:
    """Word a moment for programs, which unlike an age is the same in a dry run and in what follows."""
    return None if ns is None else datetime.fromtimestamp(ns // _NS, UTC).isoformat().replace("+00:00", "Z")


def _item(item: PruneItem) -> dict[str, Json]:
    entry: dict[str, Json] = {}
    if item.entry is not None:
        entry = {"model": item.entry.model, "last_used_at": _moment(item.entry.last_used_ns)}
    return {
        "kind": item.kind,
        "id": item.id,
        "bytes": item.bytes,
        "files": item.files,
        "reason": item.reason,
        **entry,
    }
