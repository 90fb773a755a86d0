"""How `precast inspect stats` answers."""

from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cli.output import Column, Output

if TYPE_CHECKING:
    from precast.cache.counters import LookupStats

__all__ = ["show_stats", "stats_data"]


def stats_data(stats: "LookupStats", *, since_ns: int, zeroed: bool) -> dict[str, Json]:
    """Give the counts as data, misses by reason code."""
    return {
        "since_ns": since_ns,
        "hits": stats.hits,
        "misses": dict(stats.misses),
        "miss_count": sum(stats.misses.values()),
        "hit_rate": _rate(stats),
        "seconds_saved": stats.seconds_saved,
        "zeroed": zeroed,
    }


def show_stats(out: Output, stats: "LookupStats", *, since: str | None, zeroed: bool) -> None:
    """Show the counts to people, and as rows to programs."""
    rate = _rate(stats)
    told = "no lookup was counted" if rate is None else f"{100 * rate:.0f} %"
    out.pairs(
        [
            ("counted", f"the last {since}" if since else "everything since the counters were zeroed"),
            ("hits", str(stats.hits)),
            ("misses", str(sum(stats.misses.values()))),
            *(("", f"{count}  {reason}") for reason, count in sorted(stats.misses.items())),
            ("hit rate", told),
            ("saved", f"{stats.seconds_saved:.1f} s"),
        ]
    )
    if zeroed:
        out.footer("The counters begin again at zero")
    rows: list[dict[str, Json]] = [{"outcome": "hit", "reason": "", "count": stats.hits}]
    rows += [{"outcome": "miss", "reason": reason, "count": count} for reason, count in sorted(stats.misses.items())]
    out.records([Column("outcome", "OUTCOME"), Column("reason", "REASON"), Column("count", "COUNT")], rows)


def _rate(stats: "LookupStats") -> float | None:
    total = stats.hits + sum(stats.misses.values())
    return stats.hits / total if total else None
