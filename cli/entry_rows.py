"""Entries as rows of a listing: what `inspect ls` filters, sorts and shows."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cache.sizes import format_age, format_size
from precast.cli.output import Column
from precast.cli.wording import counted, joined, short, target_text

if TYPE_CHECKING:
    from precast.cache.index import SummaryRow

__all__ = ["columns", "entry_row", "seconds_since", "totals", "totals_text"]

Row = dict[str, Json]
_NS = 1_000_000_000


def entry_row(summary: "SummaryRow", now_ns: int) -> Row:
    """Describe one entry; what cannot be known because its manifest is unreadable is null.

    `bytes` counts the entry's folder and every object that it names, also those that other entries share.

    Args:
        summary: The entry as the index knows it.
        now_ns: Nanoseconds since the epoch, to count ages from.
    """
    known = summary.model is not None
    return {
        "key": summary.key,
        "model": summary.model,
        "target": target_text(summary.target) if known else None,
        "device": _word(summary.target.get("device")),
        "arch": _word(summary.target.get("arch", summary.target.get("isa"))),
        "torch": summary.torch,
        "precast": summary.precast,
        "kinds": list(summary.kinds),
        "pieces": summary.pieces if known else None,
        "payloads": summary.payloads if known else None,
        "mega": summary.mega,
        "bytes": summary.bytes,
        "folder_bytes": summary.folder_bytes,
        "objects": list(summary.objects),
        "created_at": summary.created_at,
        "age_seconds": seconds_since(_created_ns(summary.created_at), now_ns),
        "unused_seconds": seconds_since(summary.last_used_ns, now_ns),
        "state": summary.state,
        "reason": summary.reason,
        "tags": list(summary.tags),
    }


def columns(*, long: bool) -> list[Column]:
    """Give the columns of the listing; the long one has full keys, ages and reasons."""
    shown = [
        Column("key", "KEY", str if long else lambda key: short(str(key))),
        Column("model", "MODEL", _text),
        Column("target", "TARGET", _text),
        Column("torch", "TORCH", _text),
        Column("pieces", "PIECES", _text, right=True),
        Column("bytes", "SIZE", lambda size: format_size(_number(size)), right=True),
        Column("unused_seconds", "USED", _ago),
        Column("state", "STATE", str),
        Column("tags", "TAGS", _words),
    ]
    more = [Column("kinds", "KINDS", _words), Column("created_at", "BUILT", _text), Column("reason", "REASON", _text)]
    return [*shown, *more] if long else shown


def totals(rows: Sequence[Row], entries: Iterable["SummaryRow"]) -> dict[str, Json]:
    """Count what the rows hold: `shared_bytes` counts an object once, however many entries name it."""
    chosen = {row["key"] for row in rows}
    objects: dict[str, int] = {}
    for entry in entries:
        if entry.key in chosen:
            objects.update(entry.objects)
    return {
        "count": len(rows),
        "bytes": sum(_number(row["bytes"]) for row in rows),
        "shared_bytes": sum(_number(row["folder_bytes"]) for row in rows) + sum(objects.values()),
    }


def totals_text(counts: dict[str, Json]) -> str:
    """Word the totals for people."""
    size, shared = format_size(_number(counts["bytes"])), format_size(_number(counts["shared_bytes"]))
    entries = counted(_number(counts["count"]), "entry", "entries")
    return joined([entries, f"{size} stored", f"{shared} after sharing objects" if shared != size else ""])


def seconds_since(moment_ns: int | None, now_ns: int) -> int | None:
    """Give the whole seconds between two moments in nanoseconds since the epoch; never negative."""
    return None if moment_ns is None else max(0, (now_ns - moment_ns) // _NS)


def _created_ns(created_at: str | None) -> int | None:
    if created_at is None:
        return None
    return int(datetime.fromisoformat(created_at).astimezone(UTC).timestamp()) * _NS


def _word(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: Json) -> str:
    return "" if value is None else str(value)


def _words(value: Json) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else ""


def _ago(value: Json) -> str:
    return "" if value is None else f"{format_age(_number(value))} ago"


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0
