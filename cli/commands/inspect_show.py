"""`precast inspect show`: show one entry."""

from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.diff_view import Group
from precast.cli.session import Session

__all__ = ["inspect_show"]

_ENTRY = "A key, at least 6 digits of it, a tag, ROOT@KEY, a manifest, an entry's folder, or a .mega file"


@command("precast.inspect.show/1")
def inspect_show(
    session: Session,
    entry: Annotated[str, typer.Argument(metavar="KEY|FILE.mega", help=_ENTRY)],
    factors: Annotated[
        bool, typer.Option("--factors", help="Show every factor of the key; `--factors env` shows one group")
    ] = False,
    group: Annotated[list[Group] | None, typer.Option("--group", help="Only factors of this group; repeatable")] = None,
    ignored: Annotated[bool, typer.Option("--ignored", help="Show variables that were set and do not count")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show every compiled piece")] = False,
    settings: Annotated[bool, typer.Option("--settings", help="Show every setting and its origin")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the plan that the code was made of")] = False,
    code: Annotated[bool, typer.Option("--code", help="Show the code that stitches the pieces")] = False,
) -> None:
    """Show one entry: model, target, factors, pieces, sizes and times."""
    from precast.cli.entry_view import SECTIONS, find, show_entry, shown_data

    shown = find(lambda: session.root().path, entry)
    asked = (factors or bool(group), ignored, pieces, settings, plan, code)
    sections = [section for section, wanted in zip(SECTIONS, asked, strict=True) if wanted]
    show_entry(session.out, shown, sections, group or ())
    session.out.result(shown_data(shown, sections, group or ()), [shown.manifest.key])
