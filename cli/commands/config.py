"""`precast config`: show the merged configuration and where each value came from."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from precast.cli.command import command
from precast.cli.config import Value
from precast.cli.output import Column
from precast.cli.session import Session

if TYPE_CHECKING:
    from precast.cache.canonical import Json

__all__ = ["config"]

_XDG = {"xdg": "XDG_CACHE_HOME"}


@command("precast.config/1")
def config(
    session: Session,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value came from")] = False,
    env: Annotated[bool, typer.Option("--env", help="List the environment variables instead")] = False,
    places: Annotated[
        bool, typer.Option("--places", help="List the folders in use instead: the store and those of other libraries")
    ] = False,
) -> None:
    """Show the merged configuration: flag, environment, project file, user file, default."""
    from precast.cli.config_view import own_values, setting_values, variables
    from precast.cli.options import exclusive
    from precast.cli.place_view import PLACES, layer_rows

    exclusive({"--env": env, "--places": places})
    root = session.root()
    cache_dir = session.config.values["cache_dir"]
    values = [
        Value("cache_dir", str(root.path), cache_dir.origin, cache_dir.source or _XDG.get(root.origin, "")),
        *own_values(session.config),
        *setting_values(session.config, session.environ),
    ]
    rows: list[dict[str, Json]] = [asdict(value) for value in values]
    known = variables(session.environ)
    folders = layer_rows(root, session.environ)
    if places:
        session.out.table(PLACES, folders)
    elif env:
        session.out.table([Column("name", "VARIABLE"), Column("value", "VALUE"), Column("help", "MEANING")], known)
    else:
        shown = [Column("key", "KEY"), Column("value", "VALUE", _plain)]
        session.out.table([*shown, *([Column("origin", "ORIGIN"), Column("source", "SOURCE")] if origin else [])], rows)
    session.out.result(
        {
            "values": [*rows],
            "variables": [*known],
            "files": [str(path) for path in session.config.files],
            "places": [*folders],
        },
        (value.key for value in values),
    )


def _plain(value: "Json") -> str:
    return "" if value in (None, [], {}) else str(value)
