"""One call of a forward, taken apart: its tensors are inputs of an artifact, and all else is baked into it.

From that two functions are generated. One is traced: it takes the tensors alone and calls forward with the rest as it
was. The other stands at run time where forward stood: it has forward's own signature, refuses another value where one
was baked, and hands the tensors on. So a call costs what Python's own binding of arguments costs.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from precast.aot.dynamic_dims import parameters_of
from precast.errors import UsageError

__all__ = ["ForwardCall"]

_LITERAL = (NoneType, bool, int, float, str)
_OPAQUE = (torch.dtype, torch.device, torch.memory_format, torch.layout, Enum)
_MODULE, _FORWARD, _RUN, _REFUSE = "_precast_module", "_precast_forward", "_precast_run", "_precast_refuse"
_EXACT = "_precast_exact"
_COUNT = itertools.count(1)
_NO_DEFAULT = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """A forward and one set of arguments.

    Attributes:
        forward: The function; its first parameter is the module.
        tensors: The arguments that are tensors, by parameter, in the order of the signature.
        constants: All other arguments, defaults included.
    """

    forward: Callable[..., Any]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, forward: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> "ForwardCall":
        """Take a call apart.

        Raises:
            TypeError: The arguments do not fit forward's signature.
            UsageError: An argument is neither a tensor nor a plain value that can be baked.
        """
        bound = inspect.signature(forward).bind(module, *args, **kwargs)
        bound.apply_defaults()
        tensors, constants = {}, {}
        for parameter in parameters_of(forward):
            value = bound.arguments[parameter.name]
            if isinstance(value, Tensor):
                tensors[parameter.name] = value
            elif _can_be_baked(value, parameter):
                constants[parameter.name] = value
            else:
                raise UsageError(
                    f"`{parameter.name}` is a {type(value).__name__}",
                    "an artifact takes tensors; numbers, texts, dtypes, None and tuples of them are baked into it",
                    "pass tensors one by one, or keep what the step needs in the module or in a forward context",
                )
        return cls(forward, tensors, constants)

    def traced_forward(self) -> Callable[..., Any]:
        """Return a function of the module and the tensors alone, for Dynamo.

        Its code has a file name of its own: Dynamo keeps what it learned about code by that name.
        """
        scope: dict[str, Any] = {_FORWARD: self.forward}
        given = []
        for parameter in parameters_of(self.forward):
            name = parameter.name
            if _is_variable(parameter):
                continue
            value = name if name in self.tensors else self._baked(name, scope)
            given.append(f"{name}={value}" if parameter.kind is parameter.KEYWORD_ONLY else value)
        head = ", ".join((_MODULE, *self.tensors))
        return _made(f"def forward({head}):\n    return {_FORWARD}({', '.join((_MODULE, *given))})\n", scope)

    def entrance(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with forward's signature that calls `run(module, *tensors)`.

        It raises `TypeError` or `ValueError` where an argument is not what was baked.

        Args:
            run: Takes the module and the tensors, in the order of the signature.
        """
        scope: dict[str, Any] = {_RUN: run, _REFUSE: _refuse, _EXACT: _exact}
        checks = []
        for name, value in self.constants.items():
            if value is None:
                differs = f"{name} is not None"
            else:
                scope[f"_precast_value_{name}"] = value
                differs = f"type({name}) is not type(_precast_value_{name}) or {name} != _precast_value_{name}"
                if type(value) is float or (type(value) is tuple and value):  # equal ones may compute something else
                    scope[f"_precast_exact_{name}"] = _exact(value)
                    differs += f" or {_EXACT}({name}) != _precast_exact_{name}"
            checks.append(f"    if {differs}:\n        {_REFUSE}({name!r}, {name}, {self._baked(name, scope)})\n")
        body = f"    return {_RUN}({', '.join((_MODULE, *self.tensors))})\n"
        return _made(f"def forward({self._signature(scope)}):\n{''.join(checks)}{body}", scope)

    def _baked(self, name: str, scope: dict[str, Any]) -> str:
        """Write a value as source: literals, so that Dynamo cannot take a number for an input."""
        value = self.constants[name]
        if type(value) in _LITERAL and not (isinstance(value, float) and not math.isfinite(value)):
            return repr(value)
        scope[f"_precast_value_{name}"] = value
        return f"_precast_value_{name}"

    def _signature(self, scope: dict[str, Any]) -> str:
        """Write forward's signature with the module first; defaults are the objects that they are in forward."""
        parts = [inspect.Parameter(_MODULE, inspect.Parameter.POSITIONAL_ONLY)]
        for parameter in parameters_of(self.forward):
            default = parameter.default
            if default is not _NO_DEFAULT:
                scope[f"_precast_default_{parameter.name}"] = default
                default = _Name(f"_precast_default_{parameter.name}")
            parts.append(parameter.replace(default=default, annotation=_NO_DEFAULT))
        return str(inspect.Signature(parts)).removeprefix("(").removesuffix(")")


class _Name(str):
    """Text that stands for itself where a signature is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _made(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    file = f"<precast call {next(_COUNT)}>"
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - generated here, of the names that forward's signature has
    function: Callable[..., Any] = scope["forward"]
    return function


def _is_variable(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _can_be_baked(value: Any, parameter: inspect.Parameter) -> bool:
    if _is_variable(parameter):
        return not value  # what is in them has no name that an artifact could take it by
    if type(value) is tuple:
        return all(_can_be_baked(item, _ITEM) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return False  # it is equal to nothing, so no later call could be told to be right
    return type(value) in _LITERAL or isinstance(value, _OPAQUE)


def _exact(value: Any) -> Any:
    """Return what tells a value from those that are equal to it: 0.0 from -0.0, and (1,) from (1.0,) and (True,)."""
    if type(value) is tuple:
        return tuple(map(_exact, value))
    return type(value), repr(value) if type(value) is float else value


_ITEM = inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)


def _refuse(name: str, value: Any, baked: Any) -> None:
    told = f"a {type(value).__name__}" if isinstance(value, Tensor) or not isinstance(value, _LITERAL) else repr(value)
    message = (
        f"`{name}` is {told}, and this artifact was compiled with {baked!r} there; arguments that are no tensors are "
        "baked in: keep to the first call's, or make another instance for other ones"
    )
    raise (ValueError if type(value) is type(baked) else TypeError)(message)
