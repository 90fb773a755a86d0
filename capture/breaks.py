"""Breaks: ops between the recorded segments of a breakable graph, with the arguments that they are called with."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from precast.errors import CaptureError

__all__ = ["Break", "check_result"]


@dataclass(frozen=True, slots=True)
class Break:
    """One call of an op.

    Attributes:
        name: The op.
        run: Calls it again; what it returns is dropped.
    """

    name: str
    run: Callable[[], None]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weak: Callable[[torch.Tensor], torch.Tensor],
    ) -> "Break":
        """Keep a call without keeping the memory of its tensors, which later segments use too.

        Tensors inside tuples, lists, dicts and frozen dataclasses are arguments like others. Any other object is passed
        as it is, and so are tensors that the op reaches by itself, as a closure or a bound method does: it keeps them.

        Args:
            function: The op.
            args: Positional arguments.
            kwargs: Named arguments.
            weak: Returns an equal tensor that does not keep its memory.
        """
        seen: dict[int, torch.Tensor] = {}

        def once(tensor: torch.Tensor) -> torch.Tensor:
            """Keep one tensor for one tensor: an op may ask whether two arguments are the same."""
            if id(tensor) not in seen:
                seen[id(tensor)] = weak(tensor)
            return seen[id(tensor)]

        kept_args, kept_kwargs = _mapped(once, args), _mapped(once, kwargs)

        def run() -> None:
            function(*kept_args, **kept_kwargs)

        def run_on_copies() -> None:
            """Call the op with containers of its own: it may empty a list that it is given."""
            function(*_mapped(_same, kept_args), **_mapped(_same, kept_kwargs))

        return cls(_op_name(function), run_on_copies if _may_change((*args, *kwargs.values())) else run)


def _op_name(function: Callable[..., Any]) -> str:
    """Name an op in errors and reports."""
    return str(getattr(function, "__qualname__", None) or getattr(function, "name", None) or repr(function))


def check_result(name: str, result: Any, given: Any) -> None:
    """Refuse a result that a replay could not hand on.

    Args:
        name: The op.
        result: What it returned.
        given: What it was called with.

    Raises:
        CaptureError: It returned something else than None and tensors that lie where those lie that it was given.
    """
    places = {_place(leaf) for leaf in _leaves(given) if isinstance(leaf, torch.Tensor)}
    for leaf in _leaves(result):
        if leaf is None or (isinstance(leaf, torch.Tensor) and _place(leaf) in places):
            continue
        what = "a tensor" if isinstance(leaf, torch.Tensor) else f"a value (`{type(leaf).__name__}`)"
        raise CaptureError(
            f"`{name}` returned {what} of its own, which a replay cannot hand on",
            "the segments after it read only the memory that they were recorded with",
            "let it write into a tensor that its caller passes",
        )


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_frozen(value: Any) -> bool:
    """Tell whether a value is a dataclass that nobody fills anew from step to step."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and _parameters(value).frozen


def _parameters(value: Any) -> Any:
    return type(value).__dataclass_params__


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name)]


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Return a tree in which each tensor is replaced; lists and dicts are new ones, other values stay the same."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, list):
        return [_mapped(function, value) for value in tree]
    if isinstance(tree, dict):
        return {key: _mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        values = [_mapped(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if _is_frozen(tree):
        clone = copy.copy(tree)
        for name, value in _fields(tree):
            object.__setattr__(clone, name, _mapped(function, value))
        return clone
    return tree


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield what is in a tree and is no container."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    elif _is_frozen(tree):
        tree = tuple(value for _, value in _fields(tree))
    if not isinstance(tree, list | tuple):
        yield tree
        return
    for value in tree:
        yield from _leaves(value)


def _may_change(tree: Any) -> bool:
    """Tell whether an op could change a container that it is given."""
    if isinstance(tree, list | dict):
        return True
    if _is_frozen(tree):
        return any(_may_change(value) for _, value in _fields(tree))
    return isinstance(tree, tuple) and any(_may_change(value) for value in tree)
