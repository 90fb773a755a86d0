"""`precast inspect ls`: list the entries of the store."""

import time
from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.session import Session

__all__ = ["inspect_ls"]


@command("precast.inspect.ls/1")
def inspect_ls(
    session: Session,
    filter: Annotated[  # noqa: A002 - the flag's own name
        list[str] | None,
        typer.Option("--filter", metavar="EXPR", help="Such as 'size>1GB', 'used>30d' or 'model=llama*'; repeatable"),
    ] = None,
    sort: Annotated[str, typer.Option("--sort", metavar="KEY:DIR", help="Field to sort by, and asc or desc")] = "key",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Show the first N only")] = None,
    long: Annotated[bool, typer.Option("--long", help="Show full keys, ages and reasons")] = False,
) -> None:
    """List the entries of the store."""
    from precast.cache.store import Store
    from precast.cli import entry_rows
    from precast.cli.filters import keep, parse_filter, sort_rows

    filters = [parse_filter(text) for text in filter or ()]
    root = session.root()
    rows, objects = entry_rows.listing(Store(root.path, read_only=True), time.time_ns())
    chosen = sort_rows(keep(rows, filters), sort)[:limit]
    counts = entry_rows.totals(chosen, objects)
    if chosen or not rows:
        session.out.table(entry_rows.columns(long=long), chosen)
    session.out.footer(entry_rows.totals_text(counts) if rows else f"No entries in {root.path}")
    session.out.result({"root": str(root.path), "entries": [*chosen], **counts}, (str(row["key"]) for row in chosen))
