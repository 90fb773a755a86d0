"""`precast inspect show`: show one entry."""

from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.session import Session

__all__ = ["inspect_show"]


@command("precast.inspect.show/1")
def inspect_show(
    session: Session,
    entry: Annotated[str, typer.Argument(metavar="KEY|FILE.mega", help="A key, at least 6 digits of it, or a file")],
    factors: Annotated[bool, typer.Option("--factors", help="Show every factor of the key")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show every compiled piece")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="Show every setting and its origin")] = False,
    code: Annotated[bool, typer.Option("--code", help="Show the code that stitches the pieces")] = False,
) -> None:
    """Show one entry: model, target, factors, pieces, sizes and times."""
    from precast.cli.entry_view import SECTIONS, find, show_entry, shown_data

    shown = find(session.root().path, entry)
    asked = zip(SECTIONS, (factors, pieces, settings, code), strict=True)
    show_entry(session.out, shown, [section for section, wanted in asked if wanted])
    session.out.result(shown_data(shown, code=code), [shown.manifest.key])
