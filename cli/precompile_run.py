"""What `precast precompile` runs, for one target and for several: the work, the files to ship, the answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.cli.session import Session
from precast.errors import ExitCode

if TYPE_CHECKING:
    from precast.aot.each_target import TargetOutcome
    from precast.aot.settings import Settings

__all__ = ["precompile_one", "precompile_several"]


def precompile_one(
    session: Session,
    model: str,
    found: "Sequence[Settings]",
    *,
    tags: Sequence[str],
    output: Path | None,
    check: bool,
    dry_run: bool,
    **given: Any,
) -> ExitCode:
    """Compile a model for one target and show what came of it.

    Args:
        session: What the command works with.
        model: MODEL as on the command line.
        found: The settings, one.
        tags: Names for the entry; `{target}` stands for the target's name.
        output: File to ship, or None; `{target}` as above.
        check: Whether an entry that would be compiled is a difference.
        dry_run: Whether nothing is compiled or written.
        given: What else `precast.aot.precompile.precompile` takes.
    """
    from precast.aot.target_list import with_target
    from precast.cli.mega_file import check_output
    from precast.cli.precompile_view import precompile_data, report_to_job, show_precompile

    (settings,) = found
    name = [settings.target]
    file = Path(with_target("--output", str(output), name)[0]) if output else None
    check_output(file)
    root = session.root()
    with session.working() as progress:
        from precast.aot.precompile import precompile

        result = precompile(
            model,
            settings,
            cache_dir=root.path,
            dry_run=dry_run,
            tags=[with_target("--tag", tag, name)[0] for tag in tags],
            output=None if dry_run else file,
            progress=progress,
            **given,
        )
    _export(root.path, result, file)
    show_precompile(session.out, result, file)
    report_to_job(session.out, model, result)
    session.out.result(precompile_data(result), [result.key])
    return _exit_code(result, check=check)


def precompile_several(
    session: Session,
    model: str,
    found: "Sequence[Settings]",
    *,
    tags: Sequence[str],
    output: Path | None,
    check: bool,
    dry_run: bool,
    **given: Any,
) -> ExitCode:
    """Compile a model for several targets, each as `precompile_one` does, and show what came of all of them.

    Returns:
        The worst exit status of a target.
    """
    from precast.aot.each_target import precompile_each, worst
    from precast.aot.target_list import wanted_targets, with_target
    from precast.cli.errors import failure_of
    from precast.cli.mega_file import check_output
    from precast.cli.precompile_view import report_all_to_job, show_precompile, targets_data

    session.out.schema = "precast.precompile.targets/1"
    root = session.root()
    wanted = wanted_targets(found, session.environ)
    names = [target.names[0] for target in wanted]
    for file in with_target("--output", str(output), names) if output else ():
        check_output(Path(file))
    with session.working() as progress:
        outcomes = precompile_each(
            model,
            wanted,
            cache_dir=root.path,
            dry_run=dry_run,
            tags=tags,
            output=output,
            progress=progress,
            on_done=lambda outcome: _export(root.path, outcome.result, outcome.output),
            **given,
        )
    codes = [_code_of(outcome, check=check) for outcome in outcomes]
    for outcome in outcomes:
        session.out.pairs([("target", f"{', '.join(outcome.wanted.names)}   {outcome.wanted.target}")])
        if outcome.result is not None:
            show_precompile(session.out, outcome.result, outcome.output)
        elif outcome.error is not None:
            session.out.error(failure_of(outcome.error).remark)
    report_all_to_job(session.out, model, outcomes)
    keys = [outcome.result.key for outcome in outcomes if outcome.result is not None]
    session.out.result(targets_data(outcomes, codes), keys)
    return worst(codes)


def _export(root: Path, result: Any, output: Path | None) -> None:
    """Write an entry as one file to ship, where that is asked for and there is one."""
    from precast.cache.mega_export import export_mega
    from precast.cache.store import Store
    from precast.cli.precompile_view import DRY

    if output is not None and result is not None and result.status not in DRY:
        export_mega(Store(root, read_only=True), result.key, output)


def _exit_code(result: Any, *, check: bool) -> ExitCode:
    return ExitCode.DIFFERS if check and result.status == "planned" else ExitCode.OK


def _code_of(outcome: "TargetOutcome", *, check: bool) -> ExitCode:
    return outcome.error.exit_code if outcome.error is not None else _exit_code(outcome.result, check=check)
