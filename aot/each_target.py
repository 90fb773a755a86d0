"""Precompile a model for several targets in one call: as many precompiles, which share one trace.

A target that fails does not keep the others from being made. What is wrong with the call or with the model itself fails
for all of them, and is raised.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.progress import Progress, Silent
from precast.aot.spec import Json, ModelSpec
from precast.aot.target_list import Wanted, with_target
from precast.aot.traces import Traces
from precast.errors import ExitCode, PrecastError, StoreAccessError, UntrustedError, UsageError

__all__ = ["TargetOutcome", "precompile_each", "worst"]

_OF_THE_CALL = (UsageError, StoreAccessError, UntrustedError)


@dataclass(frozen=True, slots=True)
class TargetOutcome:
    """What came of one target.

    Attributes:
        wanted: The target.
        result: What was done or would be done; None where it failed.
        error: Why it failed, or None.
        output: The file that this target's entry goes to, or None.
    """

    wanted: Wanted
    result: PrecompileResult | None
    error: PrecastError | None
    output: Path | None


def precompile_each(
    model: str | ModelSpec,
    targets: Sequence[Wanted],
    *,
    overrides: Mapping[str, Json] | None = None,
    tags: Sequence[str] = (),
    output: Path | None = None,
    progress: Progress | None = None,
    on_done: Callable[[TargetOutcome], None] = lambda _: None,
    **common: Any,
) -> tuple[TargetOutcome, ...]:
    """Compile a model for each target, unless the store has its entry already.

    Args:
        model: A spec, or MODEL as on the command line.
        targets: The targets, as `wanted_targets` returns them.
        overrides: Values for the model's config, for MODEL as text.
        tags: Names for the entries, with `{target}` in them.
        output: A file that the caller will write for each target, with `{target}` in its name.
        progress: Is told what goes on.
        on_done: Is told of each target as soon as it is done.
        common: What else `precompile` takes.

    Returns:
        One outcome a target, in order.

    Raises:
        UsageError: The call is wrong, or two targets would have one file or tag.
        PrecastError: The model cannot be imported, built or traced; or the store cannot be used.
    """
    progress = progress or Silent()
    traces = Traces()
    called = [wanted.names[0] for wanted in targets]
    names = [with_target("--tag", tag, called) for tag in tags]
    outputs = with_target("--output", os.fspath(output), called) if output is not None else None

    def outcomes() -> Iterator[TargetOutcome]:
        for at, wanted in enumerate(targets):
            file = Path(outputs[at]) if outputs else None
            if len(targets) > 1:
                progress.note(f"target {at + 1} of {len(targets)}: {wanted.names[0]}, {wanted.target}")
            result = error = None
            try:
                result = precompile(
                    model,
                    wanted.settings,
                    overrides=overrides,
                    tags=[name[at] for name in names],
                    output=file,
                    progress=progress,
                    traces=traces,
                    **common,
                )
            except _OF_THE_CALL:
                raise
            except PrecastError as caught:
                if traces.failure is not None:
                    raise
                error = caught
            outcome = TargetOutcome(wanted, result, error, file)
            on_done(outcome)
            yield outcome

    return tuple(outcomes())


def worst(codes: Sequence[ExitCode]) -> ExitCode:
    """Return the exit status of a call from those of its targets: a failure before what would be compiled before ok."""
    failed = [code for code in codes if code not in (ExitCode.OK, ExitCode.DIFFERS)]
    return max(failed, default=ExitCode.DIFFERS if ExitCode.DIFFERS in codes else ExitCode.OK)
