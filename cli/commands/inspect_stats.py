"""`precast inspect stats`: hits, misses by reason, and the seconds that hits saved."""

import time
from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.session import Session
from precast.errors import UsageError

__all__ = ["inspect_stats"]


@command("precast.inspect.stats/1")
def inspect_stats(
    session: Session,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Count only the last so long, such as 7d")
    ] = None,
    zero: Annotated[bool, typer.Option("--zero", help="Start counting again after this answer")] = False,
) -> None:
    """Count hits, and misses by reason; counters never influence what precast does."""
    from precast.cache.counters import lookup_stats, zero_stats
    from precast.cache.sizes import parse_age
    from precast.cache.store import Store
    from precast.cli.place_view import place_data, show_place
    from precast.cli.stats_view import show_stats, stats_data

    begin = 0 if since is None else time.time_ns() - parse_age(since) * 1_000_000_000
    if zero and session.read_only:
        raise UsageError("--zero removes the counts", "the store is opened read-only", "Leave out one of the two")
    root = session.root()
    store = Store(root.path, read_only=not zero)
    stats = lookup_stats(store, begin)
    if zero:
        zero_stats(store)
    show_place(session.out, root)
    show_stats(session.out, stats, since=since, zeroed=zero)
    session.out.result({**place_data(root), **stats_data(stats, since_ns=begin, zeroed=zero)})
