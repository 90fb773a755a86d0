"""`precast inspect ls`: list the entries of the store, or what a vLLM cache holds."""

import time
from pathlib import Path
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
    vllm: Annotated[
        list[Path] | None, typer.Option("--vllm", metavar="DIR", help="List this cache of vLLM instead; repeatable")
    ] = None,
) -> None:
    """List the entries of the store, or of caches of vLLM, which are only read."""
    from precast.cache.root import CacheRoot
    from precast.cache.vllm import is_vllm_root
    from precast.cli import listing
    from precast.cli.filters import parse_filter
    from precast.cli.place_view import place_data

    choice = listing.Choice(tuple(map(parse_filter, filter or ())), sort, limit)
    store, place = session.store(), place_data(session.root())
    root = store.root
    foreign = tuple(vllm or ()) or ((root,) if not CacheRoot(root).entries.is_dir() and is_vllm_root(root) else ())
    if foreign:
        listing.list_vllm(session.out, place, foreign, choice, time.time_ns(), long=long)
    else:
        listing.list_store(session.out, store, place, choice, time.time_ns(), long=long)
