"""How `precast inspect ls` answers: rows chosen, sorted and shown, from our store or from caches of vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.cache.canonical import Json
from precast.cache.index import summaries
from precast.cache.store import Store
from precast.cache.vllm import vllm_entries
from precast.cli import entry_rows, vllm_rows
from precast.cli.filters import Filter, keep, sort_rows
from precast.cli.output import Output

__all__ = ["Choice", "list_store", "list_vllm"]

Row = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are wanted, and in which order.

    Attributes:
        filters: Conditions that all must hold.
        sort: A field, with a direction where one was given.
        limit: How many rows at most.
    """

    filters: tuple[Filter, ...]
    sort: str
    limit: int | None

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Choose and sort.

        Raises:
            UsageError: If there is no such field or direction.
        """
        return sort_rows(keep(rows, self.filters), self.sort)[: self.limit]


def list_store(
    out: Output, store: Store, place: Mapping[str, Json], choice: Choice, now_ns: int, *, long: bool
) -> None:
    """List the entries of our own store.

    Args:
        out: The sink.
        store: The store.
        place: Where it is, as data.
        choice: Which rows are wanted.
        now_ns: Nanoseconds since the epoch, to count ages from.
        long: Whether people want full keys and reasons.
    """
    entries = summaries(store)
    chosen = choice.of([entry_rows.entry_row(entry, now_ns) for entry in entries])
    counts = entry_rows.totals(chosen, entries)
    if chosen or not entries:
        out.table(entry_rows.columns(long=long), chosen)
    out.footer(entry_rows.totals_text(counts) if entries else f"No entries in {store.root}")
    out.result({**place, "entries": [*chosen], "vllm": [], **counts}, (str(row["key"]) for row in chosen))


def list_vllm(
    out: Output, place: Mapping[str, Json], folders: Sequence[Path], choice: Choice, now_ns: int, *, long: bool
) -> None:
    """List what caches of vLLM hold.

    Args:
        out: The sink.
        place: Where our own store is, as data; it is not read.
        folders: The caches.
        choice: Which rows are wanted; fields that vLLM's entries lack are unknown.
        now_ns: Nanoseconds since the epoch, to count ages from.
        long: Whether people want full keys and the factor files.
    """
    rows = [vllm_rows.vllm_row(folder, entry, now_ns) for folder in folders for entry in vllm_entries(folder)]
    chosen = choice.of(rows)
    if chosen or not rows:
        out.table(vllm_rows.vllm_columns(long=long), chosen)
    out.footer(vllm_rows.vllm_text(chosen))
    total = sum(entry for row in chosen if isinstance(entry := row["bytes"], int))
    counts: Row = {"count": len(chosen), "bytes": total, "shared_bytes": total}
    out.result({**place, "entries": [], "vllm": [*chosen], **counts}, (str(row["key"]) for row in chosen))
