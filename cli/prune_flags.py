"""The rules of `precast prune` as options."""

from dataclasses import dataclass
from typing import Annotated

import typer

__all__ = ["PruneFlags"]

_LIMITS = "What must hold afterwards"
_CHOICE = "What goes"
_KEPT = "What stays"


@dataclass(frozen=True, slots=True)
class PruneFlags:
    """The rules as the user wrote them."""

    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            "--max-bytes",
            metavar="SIZE",
            help="Keep at most this much, such as 20GB, as du counts",
            rich_help_panel=_LIMITS,
        ),
    ] = None
    max_files: Annotated[
        int | None,
        typer.Option("--max-files", metavar="N", min=0, help="Keep at most so many files", rich_help_panel=_LIMITS),
    ] = None
    min_free: Annotated[
        str | None,
        typer.Option(
            "--min-free",
            metavar="SIZE",
            help="Leave this much free on the store's file system",
            rich_help_panel=_LIMITS,
        ),
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age", metavar="AGE", help="Remove what was not used for so long: 30d", rich_help_panel=_CHOICE
        ),
    ] = None
    current_version_only: Annotated[
        bool,
        typer.Option(
            "--current-version-only",
            help="Remove what another version of precast built, or what needs another torch than is installed here",
            rich_help_panel=_CHOICE,
        ),
    ] = False
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY|TAG", help="Remove this entry, tagged or not; repeatable", rich_help_panel=_CHOICE
        ),
    ] = None
    filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Remove what meets it, as of inspect ls; with a limit, age or version narrow that; repeatable",
            rich_help_panel=_CHOICE,
        ),
    ] = None
    broken: Annotated[
        bool,
        typer.Option(
            "--broken", help="Of what nobody needs only broken entries and leftovers", rich_help_panel=_CHOICE
        ),
    ] = False
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans",
            help="Of what nobody needs only objects and pointers without an entry",
            rich_help_panel=_CHOICE,
        ),
    ] = False
    drop_tag: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-tag",
            metavar="TAG",
            help="Remove this tag, so that its entry may go; repeatable",
            rich_help_panel=_CHOICE,
        ),
    ] = None
    keep_last: Annotated[
        int,
        typer.Option(
            "--keep-last",
            metavar="N",
            min=0,
            help="Keep the N entries used last, among those that --filter chooses",
            rich_help_panel=_KEPT,
        ),
    ] = 0
    keep_tag: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-tag",
            metavar="GLOB",
            help="Let only such tags protect an entry, not every tag; repeatable",
            rich_help_panel=_KEPT,
        ),
    ] = None
