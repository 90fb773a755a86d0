"""The structural key: equal for pieces that compute the same thing, in every process and torch version.

It covers each node's target and arguments by position, every baked constant, and the dtype, shape, stride and device
type of the inputs, with symbols renumbered in order of appearance (torch-aot.md section 4).
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from precast.errors import UnsupportedOpError
from precast.splitter.nodes import example, target_name

__all__ = ["describe", "structural_key"]


def structural_key(module: fx.GraphModule) -> str:
    """Return the sha256 of a piece's description, in hex.

    Args:
        module: A piece; its placeholders carry `example_value`.

    Raises:
        UnsupportedOpError: An argument whose value has no stable form.
    """
    return hashlib.sha256("\n".join(describe(module)).encode()).hexdigest()


def describe(module: fx.GraphModule) -> list[str]:
    """Return one line a node; two pieces with the same lines compute the same thing."""
    symbols = _Symbols()
    names: dict[fx.Node, str] = {}
    lines = []
    for position, node in enumerate(module.graph.nodes):
        names[node] = f"%{position}"
        if node.op == "placeholder":
            lines.append(f"%{position} input {_tensor(example(node), symbols)}")
        else:
            args = _form(node.args, names, symbols)
            kwargs = _form(dict(sorted(node.kwargs.items())), names, symbols)
            target = "" if node.op == "output" else target_name(node)
            lines.append(f"%{position} {node.op} {target} {args} {kwargs}")
    return lines


class _Symbols:
    """Numbers symbolic sizes in order of appearance."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, size: Any) -> str:
        if isinstance(size, int):
            return str(size)
        expression = size.node.expr  # `2*u0` keeps its relation to `u0`
        for symbol in sorted(expression.free_symbols, key=str):
            self._names.setdefault(str(symbol), f"s{len(self._names)}")
        return re.sub(r"\w+", lambda word: self._names.get(word[0], word[0]), str(expression))


def _tensor(value: Any, symbols: _Symbols) -> str:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedOpError(
            f"a piece takes a {type(value).__name__} as input", "pieces take tensors only", "pass a tensor instead"
        )
    shape = ",".join(symbols.name(s) for s in value.shape)
    stride = ",".join(symbols.name(s) for s in value.stride())
    return f"{value.dtype} [{shape}] [{stride}] {value.device.type} {value.layout}"


def _form(value: Any, names: dict[fx.Node, str], symbols: _Symbols) -> str:
    match value:
        case fx.Node():
            return names[value]
        case torch.SymInt():
            return symbols.name(value)
        case torch.device():
            return str(value.type)
        case None | bool() | int() | float() | complex() | str() | bytes():
            return f"{type(value).__name__}({value!r})"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(value)
        case slice():
            return f"slice{_form((value.start, value.stop, value.step), names, symbols)}"
        case tuple() | list():
            return "(" + ", ".join(_form(v, names, symbols) for v in value) + ")"
        case dict():
            return "{" + ", ".join(f"{k}: {_form(v, names, symbols)}" for k, v in value.items()) + "}"
    return _other(value)


def _other(value: Any) -> str:
    if value is Ellipsis:
        return "..."
    if isinstance(value, (torch.Size, Sequence)):
        return str(tuple(value))
    raise UnsupportedOpError(
        f"the traced graph holds a {type(value).__name__} as a constant",
        "it has no form that is the same in every process, so a key could not cover it",
        "pass it as a number, a string or a tensor",
    )
