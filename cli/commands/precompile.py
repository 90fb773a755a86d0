"""`precast precompile`: compile a model ahead of time into the store."""

from pathlib import Path
from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.session import Session
from precast.cli.store_flags import StoreFlags
from precast.errors import ExitCode, UsageError

__all__ = ["precompile"]


@command("precast.precompile/1")
@with_options(CompileFlags, StoreFlags)
def precompile(
    session: Session,
    flags: CompileFlags,
    store_flags: StoreFlags,
    model: Annotated[
        str | None, typer.Argument(help="file.py:factory, package.module:factory, or a Hugging Face config folder")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 3 if it would compile; change nothing")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be compiled")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compile although the entry is present")] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME", help="Name the entry; repeatable, and moves; may hold {target}"),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEYFILE", help="Sign the entry with this ed25519 key (PRECAST_SIGNING_KEY)"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE.mega", help="Also write it there as one file to ship; may hold {target}"
        ),
    ] = None,
    describe_target: Annotated[
        bool, typer.Option("--describe-target", help="Print the description of the GPU here, for --target FILE.json")
    ] = False,
) -> ExitCode:
    """Compile a model ahead of time into the store; nothing is done when the entry is there already."""
    from precast.cli.options import exclusive
    from precast.cli.precompile_run import precompile_one, precompile_several
    from precast.cli.target_view import describe_gpu

    if describe_target:
        exclusive({"--describe-target": True, "MODEL": model is not None})
        return describe_gpu(session)
    if model is None:
        raise UsageError("Missing argument 'MODEL'", hint="See `precast precompile --help`")
    exclusive({"--check": check, "--dry-run": dry_run, "--force": force})
    found = session.settings_by_target(flags)
    run = precompile_one if len(found) == 1 else precompile_several
    return run(
        session,
        model,
        found,
        overrides=flags.model_overrides(),
        tags=tag or (),
        output=output,
        check=check,
        force=force,
        dry_run=check or dry_run,
        sign=sign,
        options=session.store_options(store_flags),
    )
