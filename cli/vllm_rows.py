"""What vLLM's compile caches hold, as rows of a listing."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cache.sizes import format_age, format_size
from precast.cli.entry_rows import seconds_since
from precast.cli.output import Column
from precast.cli.wording import counted, joined, short

if TYPE_CHECKING:
    from precast.cache.vllm import VllmEntry

__all__ = ["vllm_columns", "vllm_row", "vllm_text"]

Row = dict[str, Json]


def vllm_row(root: Path, entry: "VllmEntry", now_ns: int) -> Row:
    """Describe one folder of a vLLM cache.

    Args:
        root: The cache that was named.
        entry: What lies there.
        now_ns: Nanoseconds since the epoch, to count ages from.
    """
    return {
        "key": entry.key,
        "kinds": [entry.kind],
        "ranks": list(entry.ranks),
        "prefixes": list(entry.prefixes),
        "artifacts": entry.artifacts,
        "bytes": entry.bytes,
        "age_seconds": seconds_since(entry.mtime_ns, now_ns),
        "factors": None if entry.factors is None else str(entry.factors),
        "root": str(root),
    }


def vllm_columns(*, long: bool) -> list[Column]:
    """Give the columns of the listing; the long one has full keys and the factor files, for `inspect diff`."""
    shown = [
        Column("key", "KEY", str if long else lambda key: short(str(key))),
        Column("kinds", "KIND", _words),
        Column("ranks", "RANKS", _words),
        Column("prefixes", "PREFIXES", _words),
        Column("artifacts", "ARTIFACTS", str, right=True),
        Column("bytes", "SIZE", lambda size: format_size(_number(size)), right=True),
        Column("age_seconds", "WRITTEN", lambda age: f"{format_age(_number(age))} ago"),
    ]
    return [*shown, Column("factors", "FACTORS", lambda path: str(path or ""))] if long else shown


def vllm_text(rows: Iterable[Row]) -> str:
    """Word the sum of the rows for people."""
    sizes = [_number(row["bytes"]) for row in rows]
    return joined([counted(len(sizes), "vLLM entry", "vLLM entries"), f"{format_size(sum(sizes))} stored", "read only"])


def _words(value: Json) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else ""


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0
