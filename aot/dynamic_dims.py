"""Which dims of forward's tensors are dynamic: dim 0 of what is annotated as a tensor, or what the user lists.

All dynamic dims are the token count, the one size that compile ranges know (seed step 2; vllm-behaviour.md step 2).
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, TypeAlias, Union

import torch
from torch import Tensor, nn

from precast.errors import ConfigValueError

__all__ = ["TOKENS", "DimsGiven", "DynamicDims", "explicit_dims", "inferred_dims", "parameters_of", "symbolic_shape"]

TOKENS = "tokens"  # as `aot.trace` has it, which is not imported where nothing is traced

DimsGiven: TypeAlias = Mapping[str, int | Sequence[int] | Mapping[int, str]]
DynamicDims: TypeAlias = Mapping[str, tuple[int, ...]]

# Old names of tensors of one dtype; they are no classes that a tensor is an instance of by inheritance.
_TYPED = tuple(
    found for name in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Char", "Byte", "Bool")
    if (found := getattr(torch, f"{name}Tensor", None)) is not None
)  # fmt: skip
# What model files import for type checkers only, so that forward's own globals lack it.
_USUAL = MappingProxyType(
    {
        "Annotated": Annotated,
        "Optional": typing.Optional,
        "Tensor": Tensor,
        "Union": Union,
        "nn": nn,
        "torch": torch,
        "typing": typing,
    }
)


def inferred_dims(forward: Callable[..., Any]) -> dict[str, tuple[int, ...]]:
    """Return dim 0 of each parameter that is annotated as a tensor or an optional one.

    Annotations may be text, as they all are under `from __future__ import annotations`. One that cannot be evaluated
    where forward was defined says nothing.

    Args:
        forward: The function, `self` included.
    """
    found: dict[str, tuple[int, ...]] = {}
    scope = {**_USUAL, **getattr(inspect.unwrap(forward), "__globals__", {})}
    for parameter in parameters_of(forward):
        if parameter.annotation is not parameter.empty and _is_tensor(_resolved(parameter.annotation, scope)):
            found[parameter.name] = (0,)
    return found


def explicit_dims(given: DimsGiven, forward: Callable[..., Any]) -> dict[str, tuple[int, ...]]:
    """Check what the user listed.

    Args:
        given: For each parameter a dim, several, or a mapping of dims to shape names; a dim from the end is negative.
            All names must be one, since the token count is the one dynamic size.
        forward: The function, `self` included.

    Raises:
        ConfigValueError: A parameter that forward does not have, dims that are no whole numbers, or two shape names.
    """
    known = [p.name for p in parameters_of(forward)]
    dims: dict[str, tuple[int, ...]] = {}
    shape_names: set[str] = set()
    for name, value in given.items():
        if name not in known:
            raise _bad(f"forward has no parameter `{name}`", f"its parameters: {', '.join(known) or 'none'}")
        listed = _listed(value)
        if not listed or not all(type(dim) is int for dim in listed):
            raise _bad(f"`{name}` has {value!r}", "give a dim, a list of dims, or a mapping of dims to one shape name")
        if isinstance(value, Mapping):
            shape_names |= {str(shape_name) for shape_name in value.values()}
        dims[name] = tuple(listed)
    if len(shape_names) > 1:
        why = f"shape names: {', '.join(sorted(shape_names))}"
        raise _bad(why, "the token count is the one dynamic size: give one name, and leave static dims out")
    return dims


def symbolic_shape(name: str, shape: Sequence[int], dims: Sequence[int]) -> tuple[int | str, ...]:
    """Return a shape in which the dynamic dims are the token count.

    Args:
        name: The parameter, for messages.
        shape: Sizes of the tensor that it was given.
        dims: Its dynamic dims.

    Raises:
        ConfigValueError: The tensor does not have such a dim.
    """
    rank = len(shape)
    outside = [dim for dim in dims if not -rank <= dim < rank]
    if outside:
        raise _bad(f"`{name}` has no dim {outside[0]}", f"it was given a tensor of shape {list(shape)}")
    dynamic = {dim % rank for dim in dims}
    return tuple(TOKENS if at in dynamic else int(size) for at, size in enumerate(shape))


def parameters_of(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return forward's parameters without the module itself, whatever that one is called (W40)."""
    return list(inspect.signature(forward).parameters.values())[1:]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list, Mapping)) else [value]


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, scope, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - evaluating text can raise anything, and then it names no tensor that we know
        return None


def _is_tensor(hint: Any) -> bool:
    hint = getattr(hint, "__value__", hint)  # `type Name = ...`, from Python 3.12
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _is_tensor(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
        return bool(parts) and all(map(_is_tensor, parts))
    return hint in _TYPED or (isinstance(hint, type) and issubclass(hint, Tensor))


def _bad(why: str, hint: str) -> ConfigValueError:
    return ConfigValueError("`dynamic_arg_dims` is wrong", why, hint)
