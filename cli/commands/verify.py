"""`precast verify`: prove that an entry is sound, fits this node, loads and computes the right numbers."""

from pathlib import Path
from typing import Annotated

import typer

from precast.cli.command import command, with_options
from precast.cli.compile_flags import CompileFlags
from precast.cli.options import Level, integers
from precast.cli.process_age import process_age
from precast.cli.session import Session
from precast.cli.store_flags import StoreFlags
from precast.errors import ExitCode

__all__ = ["verify"]


@command("precast.verify/1")
@with_options(CompileFlags, StoreFlags)
def verify(
    session: Session,
    flags: CompileFlags,
    store_flags: StoreFlags,
    what: Annotated[
        str | None,
        typer.Argument(metavar="KEY|TAG|MODEL|FILE.mega", help="What to verify; the only entry if left out"),
    ] = None,
    level: Annotated[Level, typer.Option("--level", help="How far to go")] = Level.AUTO,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model of a key or file, to compare numbers with")
    ] = None,
    sizes: Annotated[str | None, typer.Option("--sizes", metavar="LIST", help="Token counts to run")] = None,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", help="Fail for a missing piece")] = True,
    bench: Annotated[
        bool, typer.Option("--bench", help="Time decode steps by batch size; goes to level capture")
    ] = False,
) -> ExitCode:
    """Prove that an entry is sound, fits this node, loads with nothing compiled, computes rightly and captures."""
    from precast.cli.selection import only_entry
    from precast.cli.verify_view import show_verify, verify_data

    settings, overrides = session.settings(flags), flags.model_overrides()
    token_counts = integers("--sizes", sizes)
    root = None if what and Path(what).is_file() else session.root().path  # a file needs no store, nor a home folder
    wanted = what or only_entry(session.root().path)
    with session.working() as progress:
        from precast.aot.verify import verify as verify_entry

        started = process_age()
        report = verify_entry(
            wanted,
            overrides=overrides,
            settings=settings,
            cache_dir=root,
            level=level.value,
            strict=strict,
            token_counts=token_counts,
            model=model,
            options=session.store_options(store_flags),
            bench=bench,
            progress=progress,
        )
    show_verify(session.out, report, started)
    session.out.result(verify_data(report, started), [report.key] if report.ok else [])
    return report.exit_code
