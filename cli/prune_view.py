"""How `precast prune` answers: the plan before it is executed, and what came of it."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from precast.cache.canonical import Json
from precast.cache.plans import PruneItem, PrunePlan, PruneRules, PruneSummary
from precast.cache.sizes import format_size, parse_age, parse_size
from precast.cache.store import Store
from precast.cli.output import Output
from precast.cli.wording import counted, short

__all__ = ["prune_data", "prune_rules", "show_done", "show_plan", "tell_kept"]

_PLURALS = {"entry": "entries", "staging": "unfinished pieces of work", "quarantine": "quarantined entries"}
_NOUNS = {"staging": "unfinished piece of work", "quarantine": "quarantined entry"}


def prune_rules(
    store: Store, *, max_size: str | None, max_age: str | None, max_files: int | None, keys: Sequence[str]
) -> PruneRules:
    """Read the rules as the user wrote them.

    Raises:
        ConfigValueError: If a size or an age is none.
        NoEntryError: If a key is not in the store.
    """
    return PruneRules(
        max_size=None if max_size is None else parse_size(max_size),
        max_age_s=None if max_age is None else parse_age(max_age),
        max_files=max_files,
        keys=tuple(store.resolve_key(key) for key in keys),
    )


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
        "unmet": list(plan.unmet),
    }


def show_plan(out: Output, plan: PrunePlan, *, dry_run: bool) -> None:
    """Show people what would go; entries one by one, everything else by kind."""
    if not plan.remove:
        out.status("nothing to do", f"{format_size(plan.bytes_before)} in {counted(plan.files_before, 'file')}")
        return
    label = "would remove" if dry_run else "remove"
    out.pairs((label, line) for line in _lines(plan.remove))
    for entry in plan.keep:
        if entry.reason:
            out.pairs([("would keep" if dry_run else "keep", f"{short(entry.key)}  {entry.reason}")])
    if dry_run:
        freed, before = format_size(plan.freed_bytes), format_size(plan.bytes_before)
        out.footer(f"Would free {freed} of {before}; nothing was changed")


def show_done(out: Output, plan: PrunePlan, done: PruneSummary) -> None:
    """Show people what went, and warn about what stayed after all."""
    out.footer(f"Freed {format_size(done.freed_bytes)} of {format_size(plan.bytes_before)}")
    for skipped in done.skipped:
        out.warning("prune.skipped", f"{skipped.item.kind} {skipped.item.id} stays: {skipped.reason}")


def tell_kept(out: Output, plan: PrunePlan, keys: Iterable[str]) -> None:
    """Warn where a limit does not hold, and where an entry that was named stays."""
    for sentence in plan.unmet:
        out.warning("prune.limit_unmet", sentence)
    kept = {entry.key: entry for entry in plan.keep}
    for key in keys:
        if key in kept:
            out.warning("prune.entry_kept", f"Entry {short(key)} stays: {kept[key].reason}", entry=key)


def _lines(items: Sequence[PruneItem]) -> Iterable[str]:
    for item in items:
        if item.kind == "entry":
            yield f"{short(item.id)}  {item.reason}  {format_size(item.bytes)}"
    others = sorted((item for item in items if item.kind != "entry"), key=_kind)
    for kind, group in groupby(others, key=_kind):
        alike = list(group)
        noun = counted(len(alike), _NOUNS.get(kind, kind), _PLURALS.get(kind, ""))
        yield f"{noun}  {format_size(sum(item.bytes for item in alike))}"


def _kind(item: PruneItem) -> str:
    return item.kind


def _item(item: PruneItem) -> dict[str, Json]:
    return {
        "kind": item.kind,
        "id": item.id,
        "bytes": item.bytes,
        "files": item.files,
        "reason": item.reason,
    }
