"""`precast prune`: bound what the store holds."""

import time
from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.prune_flags import PruneFlags
from precast.cli.session import Session
from precast.cli.store_flags import StoreFlags
from precast.errors import StoreAccessError

__all__ = ["prune"]


@command("precast.prune/1")
@with_options(PruneFlags)
def prune(
    session: Session,
    flags: PruneFlags,
    lock_timeout: Annotated[
        float | None,
        typer.Option(
            "--lock-timeout", metavar="SECONDS", min=0, help="Wait so long for another prune (PRECAST_LOCK_TIMEOUT)"
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
) -> None:
    """Remove entries by size, age, version, filter or key; with no rule only what is broken, orphaned or stale."""
    from precast.cache.prune import execute, plan_prune
    from precast.cache.store import Store
    from precast.cli import prune_view as view
    from precast.cli.prune_rules import prune_rules

    if not dry_run:
        session.require_consent("prune", yes=yes)
    options = session.store_options(StoreFlags(lock_timeout=lock_timeout))
    store = Store(session.root().path, read_only=options.read_only)
    if options.read_only and not dry_run:
        raise StoreAccessError(
            f"The cache at {store.root} is not pruned",
            "it was opened read-only",
            "Look with --dry-run, or leave out --read-only",
            path=str(store.root),
        )
    plan = plan_prune(store, prune_rules(store, flags), time.time_ns())
    view.show_plan(session.out, plan, dry_run=dry_run)
    view.tell_kept(session.out, plan)
    done = None
    if not dry_run:
        if plan.remove:
            session.ask("Remove this?", yes=yes)
        done = execute(plan, lock_timeout_s=options.lock_timeout_s, on_wait=view.waiting(session.out))
        view.show_done(session.out, plan, done)
    session.out.result(view.prune_data(plan, done), (item.id for item in (done.removed if done else plan.remove)))
