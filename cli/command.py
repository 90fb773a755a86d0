"""Functions made commands: each gets a session, and the shared options are added to its own."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec

import typer

from precast.cli.options import Shared
from precast.cli.session import Session, open_session
from precast.errors import ExitCode

__all__ = ["command", "with_options"]

P = ParamSpec("P")


def command(
    schema: str,
) -> Callable[[Callable[Concatenate[Session, P], ExitCode | None]], Callable[..., ExitCode]]:
    """Make a function a command: it gets a session first, and the shared options are added to its own.

    Args:
        schema: Name and version of the shape of the command's `data`.
    """

    def decorate(function: Callable[Concatenate[Session, P], ExitCode | None]) -> Callable[..., ExitCode]:
        def run(ctx: typer.Context, **values: Any) -> ExitCode:
            shared = Shared(**{name: values.pop(name) for name in _parameters(Shared)})
            with open_session(ctx.obj, schema, shared) as session:
                return function(session, **values) or ExitCode.OK  # type: ignore[call-arg]

        run.__name__ = function.__name__
        run.__doc__ = function.__doc__
        run.__signature__ = _signature(run, function)  # type: ignore[attr-defined]
        return run

    return decorate


def with_options(
    *groups: type[Any],
) -> Callable[[Callable[..., ExitCode | None]], Callable[Concatenate[Session, ...], ExitCode | None]]:
    """Give a command the options of some groups: it gets each group as one value, and Typer sees its fields.

    Args:
        groups: Dataclasses whose fields are annotated as options, in the order of the command's parameters after
            the session.
    """

    def decorate(
        function: Callable[..., ExitCode | None],
    ) -> Callable[Concatenate[Session, ...], ExitCode | None]:
        def run(session: Session, **values: Any) -> ExitCode | None:
            flags = [group(**{name: values.pop(name) for name in _parameters(group)}) for group in groups]
            return function(session, *flags, **values)

        first, *rest = _parameters(function).values()
        fields = [field for group in groups for field in _parameters(group).values()]
        run.__name__ = function.__name__
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [first, *_by_name([*rest[len(groups) :], *fields])]
        )
        return run

    return decorate


def _by_name(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _signature(run: Callable[..., Any], function: Callable[..., Any]) -> inspect.Signature:
    """Join the context, the command's own parameters and the shared options, all by name."""
    context = _parameters(run)["ctx"]
    own = list(_parameters(function).values())[1:]
    return inspect.Signature([context, *_by_name([*own, *_parameters(Shared).values()])])
