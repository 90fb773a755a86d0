"""`precast inspect diff`: say what makes two keys differ."""

from typing import TYPE_CHECKING, Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.diff_view import Group
from precast.cli.session import Session
from precast.errors import ExitCode

if TYPE_CHECKING:
    from precast.cache.side import Side

__all__ = ["inspect_diff"]

_SIDE = (
    "A key or 6 digits of it, a tag, a manifest, an entry's folder, FILE.mega, ROOT@KEY, live, cache_key_factors.json"
)


@command("precast.inspect.diff/1")
@with_options(CompileFlags)
def inspect_diff(
    session: Session,
    flags: CompileFlags,
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other side, in the same forms")],
    group: Annotated[list[Group] | None, typer.Option("--group", help="Only this group; repeatable")] = None,
    patch: Annotated[bool, typer.Option("--patch", help="Show changed source lines as a patch")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 when there is a difference")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model of `live`, if not that of the other side")
    ] = None,
) -> ExitCode:
    """Say what makes two keys differ: changed factors only, by group, code down to file and line."""
    from precast.aot.settings import EXCLUDED
    from precast.cache.diff import diff_sides
    from precast.cache.side import open_side
    from precast.cache.store import Store
    from precast.cli.diff_view import diff_data, only_groups, show_diff, summary_rows
    from precast.cli.live_request import live_request, model_of

    root = session.root().path

    def live() -> "Side":
        named, values = (model, {}) if model else model_of(root, b if a == "live" else a)
        return live_request(session, named, flags, values)[0]

    store = Store(root, read_only=True)
    diff = diff_sides(open_side(a, store, live), open_side(b, store, live), EXCLUDED)
    if group:
        diff = only_groups(diff, group)
    show_diff(session.out, diff, group or tuple(Group), patch=patch)
    if diff.changes:
        session.out.summarize(f"precast inspect diff {a} {b}", ("group", "factor", "a", "b", ""), summary_rows(diff))
    session.out.result(diff_data(diff, patch=patch), (f"{change.group}/{change.factor}" for change in diff.changes))
    return ExitCode.DIFFERS if exit_code and diff.changes else ExitCode.OK
