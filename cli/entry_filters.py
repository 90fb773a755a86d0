"""Conditions of `--filter` on entries, for commands that act on entries rather than list them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precast.cli.entry_rows import entry_row
from precast.cli.filters import Filter, parse_filter

if TYPE_CHECKING:
    from precast.cache.index import SummaryRow

__all__ = ["EntryFilters"]


@dataclass(frozen=True, slots=True)
class EntryFilters:
    """Conditions that all must hold, as `inspect ls --filter` has them.

    Attributes:
        filters: The conditions.
    """

    filters: tuple[Filter, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "EntryFilters":
        """Read conditions.

        Raises:
            UsageError: If one is no condition, or names no field.
            ConfigValueError: If an operand is no size or age.
        """
        return cls(tuple(map(parse_filter, texts)))

    def matches(self, entry: "SummaryRow", now_ns: int) -> bool:
        """Tell whether an entry meets every condition; ages count from `now_ns`, in nanoseconds since the epoch."""
        row = entry_row(entry, now_ns)
        return all(condition.matches(row) for condition in self.filters)
