"""`precast inspect coverage`: say which batches have no CUDA graph, what padding costs, and which sizes would help."""

from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.options import numbers
from precast.cli.session import Session
from precast.errors import ExitCode

__all__ = ["inspect_coverage"]

_PANEL = "Traffic"


@command("precast.inspect.coverage/1")
@with_options(CompileFlags)
def inspect_coverage(
    session: Session,
    flags: CompileFlags,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Its spec may lower the graph mode; without it any model will do"),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            "--traffic",
            metavar="FILE",
            help='Batches as JSON lines: {"requests": 8, "tokens": 8, "count": 100} or {"query_lens": [1, 30]}',
            rich_help_panel=_PANEL,
        ),
    ] = None,
    decode_batches: Annotated[
        str | None,
        typer.Option(
            "--decode-batches",
            metavar="LIST",
            help="Decode steps of so many requests, such as 1-12,16",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    mixed_tokens: Annotated[
        str | None,
        typer.Option(
            "--mixed-tokens",
            metavar="LIST",
            help="Batches with a prefill of so many tokens, such as 1-512",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    require_full: Annotated[
        bool, typer.Option("--require-full", help="Exit 3 when a batch has no graph, or a slower one than its mode has")
    ] = False,
) -> ExitCode:
    """Say which batches have no CUDA graph and why, what padding costs, and the fewest sizes that close the holes.

    Without traffic it is about every decode step and every token count that the limits allow. No GPU, no store.
    """
    from precast.aot.coverage_request import coverage_request, coverage_settings
    from precast.capture.coverage import coverage
    from precast.cli.coverage_traffic import traffic_of
    from precast.cli.coverage_view import coverage_data, show_coverage

    settings = coverage_settings(flags.settings(), session.environ, session.config.settings)
    spec = None
    if model is not None:
        from precast.aot.reference import parse_reference

        reference = parse_reference(model)
        with session.working():  # a model may print when it is imported
            spec = reference.spec(flags.model_overrides())
    request = coverage_request(settings, session.environ, spec)
    given = traffic_of(
        request.limits,
        file=traffic,
        decode=numbers("--decode-batches", decode_batches),
        mixed=numbers("--mixed-tokens", mixed_tokens),
    )
    found = coverage(request.mode, request.sizes.sizes, request.limits, given.batches, asked=request.asked)
    show_coverage(session.out, found, request, given)
    data = coverage_data(found, request, given, "" if spec is None else spec.name)
    session.out.result(data, map(str, found.extra))
    return ExitCode.DIFFERS if require_full and not found.is_full else ExitCode.OK
