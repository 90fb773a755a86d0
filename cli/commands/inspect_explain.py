"""`precast inspect explain`: say whether a model hits, and if not, what changed and how to get back to a hit."""

from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.session import Session
from precast.errors import ExitCode

__all__ = ["inspect_explain"]


@command("precast.inspect.explain/1")
@with_options(CompileFlags)
def inspect_explain(
    session: Session,
    flags: CompileFlags,
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
    from precast.cache.explain import explain
    from precast.cache.store import Store
    from precast.cache.tags import all_tags
    from precast.cli.explain_view import explain_data, report_to_job, show_explanation
    from precast.cli.live_request import live_request

    root = session.root().path
    store = Store(root)  # only the index of entries is brought up to date
    side, found = live_request(session, model, flags)
    explanation = explain(store, side, found, against=against, model=parse_reference(model).text, exclusions=EXCLUDED)
    tags = all_tags(store)
    show_explanation(session.out, explanation, found.hit, tags)
    data = explain_data(explanation, found.hit, tags)
    report_to_job(session.out, model, explanation, data)
    session.out.result({"root": str(root), **data}, [explanation.key] if explanation.status == "hit" else [])
    return ExitCode.OK if explanation.status == "hit" else ExitCode.DIFFERS
