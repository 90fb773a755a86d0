"""`precast inspect explain`: say whether a model hits, and if not, what changed and how to get back to a hit."""

from typing import Annotated

import typer

from precast.cache.canonical import Json
from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.session import Session
from precast.cli.store_flags import StoreFlags
from precast.errors import ExitCode

__all__ = ["inspect_explain"]


@command("precast.inspect.explain/1")
@with_options(CompileFlags, StoreFlags)
def inspect_explain(
    session: Session,
    flags: CompileFlags,
    store_flags: StoreFlags,
    model: Annotated[
        str, typer.Argument(help="file.py:factory, package.module:factory, or a Hugging Face config folder")
    ],
    against: Annotated[
        str | None, typer.Option("--against", metavar="KEY", help="Compare with this entry, not with the nearest")
    ] = None,
) -> ExitCode:
    """Say whether a model is a hit (exit 0) or a miss (exit 3), what changed, and how to get back to a hit."""
    from precast.aot.reference import parse_reference
    from precast.aot.settings import EXCLUDED
    from precast.aot.stamps import stamp_misses
    from precast.cache.explain import explain
    from precast.cache.remotes import open_tier
    from precast.cache.tags import all_tags
    from precast.cli.explain_view import explain_data, report_to_job, show_explanation
    from precast.cli.live_request import live_request

    store = session.store()
    tier = open_tier(store, session.store_options(store_flags), session.out.warn, stamp_misses)
    side, found = live_request(session, model, flags, tier=tier)
    behind = tier is not None and found.hit is not None and not store.layout.entry(found.hit.key).is_dir()
    explanation = explain(store, side, found, against=against, model=parse_reference(model).text, exclusions=EXCLUDED)
    tags = all_tags(store)
    show_explanation(session.out, explanation, found.hit, tags, tier.url if behind and tier else "")
    data = explain_data(explanation, found.hit, tags)
    report_to_job(session.out, model, explanation, data)
    remote: Json = None if tier is None else {"url": tier.url, "pullable": behind, "reachable": not tier.unreachable}
    hit = explanation.status == "hit"
    session.out.result({"root": str(store.root), **data, "remote": remote}, [explanation.key] if hit else [])
    return ExitCode.OK if hit else ExitCode.DIFFERS
