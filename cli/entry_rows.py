"""Entries as rows of a listing: what `inspect ls` filters, sorts and shows."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from precast.cache.canonical import Json
from precast.cache.entries import EntrySummary
from precast.cache.manifest import Manifest
from precast.cache.sizes import format_age, format_size
from precast.cache.store import Store
from precast.cli.output import Column
from precast.cli.wording import counted, joined, short, target_text

__all__ = ["columns", "entry_row", "listing", "totals", "totals_text"]

Row = dict[str, Json]
_NS = 1_000_000_000


def listing(store: Store, now_ns: int) -> tuple[list[Row], dict[str, int]]:
    """List a store's entries as rows, with the size of every object that they name.

    Args:
        store: The store.
        now_ns: Nanoseconds since the epoch, to count ages from.

    Returns:
        The rows sorted by key, and the stored bytes of each object by its name.
    """
    rows, objects = [], {}
    for summary in store.entries():
        rows.append(entry_row(summary, store.last_used(summary.key), now_ns))
        objects.update(_objects(summary.manifest))
    return rows, objects


def entry_row(summary: EntrySummary, last_used_ns: int | None, now_ns: int) -> Row:
    """Describe one entry; what cannot be known because its manifest is unreadable is null.

    `bytes` counts the entry's folder and every object that it names, also those that other entries share.
    """
    manifest = summary.manifest
    created = _created(manifest)
    return {
        "key": summary.key,
        "model": manifest.model.name if manifest else None,
        "target": target_text(manifest.target) if manifest else None,
        "torch": _torch(manifest),
        "pieces": len({payload.name.partition(":")[0] for payload in manifest.payloads}) if manifest else None,
        "payloads": len(manifest.payloads) if manifest else None,
        "mega": manifest is not None and manifest.mega is not None,
        "bytes": summary.bytes + sum(_objects(manifest).values()),
        "folder_bytes": summary.bytes,
        "objects": list(_objects(manifest)),
        "created_at": manifest.build.created_at if manifest else None,
        "age_seconds": max(0, now_ns // _NS - created) if created is not None else None,
        "unused_seconds": max(0, (now_ns - last_used_ns) // _NS) if last_used_ns is not None else None,
        "state": summary.state,
        "reason": summary.reason,
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
    ]
    return [*shown, Column("created_at", "BUILT", _text), Column("reason", "REASON", _text)] if long else shown


def totals(rows: Sequence[Row], objects: dict[str, int]) -> dict[str, Json]:
    """Count what the rows hold: `shared_bytes` counts an object once, however many entries name it."""
    named = {str(name) for row in rows for name in _list(row["objects"])}
    folders = sum(_number(row["folder_bytes"]) for row in rows)
    return {
        "count": len(rows),
        "bytes": sum(_number(row["bytes"]) for row in rows),
        "shared_bytes": folders + sum(objects[name] for name in named),
    }


def totals_text(counts: dict[str, Json]) -> str:
    """Word the totals for people."""
    size, shared = format_size(_number(counts["bytes"])), format_size(_number(counts["shared_bytes"]))
    entries = counted(_number(counts["count"]), "entry", "entries")
    return joined([entries, f"{size} stored", f"{shared} after sharing objects" if shared != size else ""])


def _objects(manifest: Manifest | None) -> dict[str, int]:
    return {payload.object: payload.stored_bytes for payload in manifest.payloads} if manifest else {}


def _torch(manifest: Manifest | None) -> str | None:
    stamps = manifest.stamps.values() if manifest else ()
    return next((stamp["torch"] for stamp in stamps if "torch" in stamp), None)


def _created(manifest: Manifest | None) -> int | None:
    if manifest is None:
        return None
    return int(datetime.fromisoformat(manifest.build.created_at).astimezone(UTC).timestamp())


def _text(value: Json) -> str:
    return "" if value is None else str(value)


def _ago(value: Json) -> str:
    return "" if value is None else f"{format_age(_number(value))} ago"


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _list(value: Json) -> Iterable[Json]:
    return value if isinstance(value, list) else ()
