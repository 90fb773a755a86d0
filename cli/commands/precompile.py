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
        list[str] | None, typer.Option("--tag", metavar="NAME", help="Name the entry; repeatable, and moves")
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEYFILE", help="Sign the entry with this ed25519 key (PRECAST_SIGNING_KEY)"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.mega", help="Also write it there as one file to ship")
    ] = None,
    describe_target: Annotated[
        bool, typer.Option("--describe-target", help="Print the description of the GPU here, for --target FILE.json")
    ] = False,
) -> ExitCode:
    """Compile a model ahead of time into the store; nothing is done when the entry is there already."""
    from precast.cache.mega_export import export_mega
    from precast.cache.store import Store
    from precast.cli.mega_file import check_output
    from precast.cli.options import exclusive
    from precast.cli.precompile_view import DRY, precompile_data, report_to_job, show_precompile
    from precast.cli.target_view import describe_gpu

    if describe_target:
        exclusive({"--describe-target": True, "MODEL": model is not None})
        return describe_gpu(session)
    if model is None:
        raise UsageError("Missing argument 'MODEL'", hint="See `precast precompile --help`")
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
            sign=sign,
            output=None if check or dry_run else output,
            options=session.store_options(store_flags),
            progress=progress,
        )
    if output and result.status not in DRY:
        export_mega(Store(root.path, read_only=True), result.key, output)
    show_precompile(session.out, result, output)
    report_to_job(session.out, model, result)
    session.out.result(precompile_data(result), [result.key])
    return ExitCode.DIFFERS if check and result.status == "planned" else ExitCode.OK
