"""`precast precompile`: compile a model ahead of time into the store."""

from pathlib import Path
from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.session import Session
from precast.cli.store_flags import StoreFlags
from precast.errors import ExitCode

__all__ = ["precompile"]


@command("precast.precompile/1")
@with_options(CompileFlags, StoreFlags)
def precompile(
    session: Session,
    flags: CompileFlags,
    store_flags: StoreFlags,
    model: Annotated[
        str, typer.Argument(help="file.py:factory, package.module:factory, or a Hugging Face config folder")
    ],
    check: Annotated[bool, typer.Option("--check", help="Exit 3 if it would compile; compile nothing")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be compiled")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compile although the entry is present")] = False,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="NAME", help="Name the entry; repeatable, and moves")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.mega", help="Also copy the mega artifact there")
    ] = None,
) -> ExitCode:
    """Compile a model ahead of time into the store; nothing is done when the entry is there already."""
    from precast.cli.mega_file import check_output, copy_mega
    from precast.cli.options import exclusive
    from precast.cli.precompile_view import precompile_data, report_to_job, show_precompile

    exclusive({"--check": check, "--dry-run": dry_run, "--force": force})
    check_output(output)
    settings, overrides = session.settings(flags), flags.model_overrides()
    root = session.root()
    with session.working() as progress:
        from precast.aot.precompile import precompile as compile_model

        result = compile_model(
            model,
            settings,
            overrides=overrides,
            cache_dir=root.path,
            force=force,
            dry_run=check or dry_run,
            tags=tag or (),
            options=session.store_options(store_flags),
            progress=progress,
        )
    if output and result.status != "planned":
        copy_mega(root.path, result.key, output)
    show_precompile(session.out, result, output)
    report_to_job(session.out, model, result)
    session.out.result(precompile_data(result), [result.key])
    return ExitCode.DIFFERS if check and result.status == "planned" else ExitCode.OK
