"""`precast schema`: print the JSON Schema of a command's answer."""

import json
from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.output import Column
from precast.cli.session import Session

__all__ = ["schema"]


@command("precast.schema/1")
def schema(
    session: Session,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as precompile or inspect ls"),
    ] = None,
) -> None:
    """Print the JSON Schema of a command's answer, or list the commands that have one."""
    from precast.cli.documents import document, names

    if not name:
        session.out.table([Column("name", "COMMAND")], [{"name": each} for each in names()])
        session.out.result({"names": list(names()), "document": None}, names())
        return
    found = document(".".join(name))
    session.out.text(json.dumps(found, indent=2))
    session.out.result({"names": [".".join(name)], "document": found})
