"""`precast prune`: bound what the store holds."""

import time
from typing import Annotated

import typer

from precast.cli.command import command
from precast.cli.session import Session

__all__ = ["prune"]


@command("precast.prune/1")
def prune(
    session: Session,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Keep at most this much, such as 20GB")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="AGE", help="Remove what was not used for so long: 30d")
    ] = None,
    max_files: Annotated[
        int | None, typer.Option("--max-files", metavar="N", min=0, help="Keep at most so many files")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Remove this entry; repeatable")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
) -> None:
    """Remove entries by size, age or key; with no rule only what is broken, orphaned or stale."""
    from precast.cache.prune import execute, plan_prune
    from precast.cache.store import Store
    from precast.cli import prune_view as view

    if not dry_run:
        session.require_consent("prune", yes=yes)
    store = Store(session.root().path, read_only=True)
    rules = view.prune_rules(store, max_size=max_size, max_age=max_age, max_files=max_files, keys=key or ())
    plan = plan_prune(store, rules, time.time_ns())
    view.show_plan(session.out, plan, dry_run=dry_run)
    view.tell_kept(session.out, plan, rules.keys)
    done = None
    if not dry_run:
        if plan.remove:
            session.ask("Remove this?", yes=yes)
        done = execute(plan)
        if plan.remove:
            view.show_done(session.out, plan, done)
    session.out.result(view.prune_data(plan, done), (item.id for item in (done.removed if done else plan.remove)))
