"""What the splitter asks about a node of a Dynamo graph: its op, its value, whether it is a size or an allocation."""

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

__all__ = [
    "ARITHMETIC",
    "example",
    "is_allocation",
    "is_getitem",
    "is_size_like",
    "is_symbolic",
    "op_name",
    "op_overload",
    "target_name",
]

# Pure functions of numbers: what Dynamo computes sizes and conditions on sizes with.
ARITHMETIC: frozenset[Callable[..., Any]] = frozenset({
    operator.add, operator.and_, operator.eq, operator.floordiv, operator.ge, operator.gt, operator.le, operator.lt,
    operator.mod, operator.mul, operator.ne, operator.neg, operator.not_, operator.or_, operator.sub, torch.sym_not,
})  # fmt: skip
_ALLOCATIONS = frozenset({"torch.empty", "torch.empty_like", "torch.empty_strided"})
_ALLOCATION_OPS = ("aten::empty", "aten::new_empty")

# Classes that hold torch's C functions; pybind11's is named after the compiler that built torch.
_HOLDERS = re.compile(r"^(_VariableFunctionsClass|pybind11_detail_\w+)\.")


def example(node: fx.Node) -> Any:
    """Return the fake value that the trace left on a node, or None."""
    return node.meta.get("example_value", node.meta.get("val"))


def op_name(node: fx.Node) -> str | None:
    """Return the qualified name `ns::op` of a call of a registered op, else None."""
    if node.op != "call_function":
        return None
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name)
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return str(node.target._qualified_op_name)
    return None


def op_overload(node: fx.Node) -> str:
    """Return the overload that a call of a registered op means; a packet means `default`, or its only overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._overloadname)
    names = [str(n) for n in target.overloads()] if isinstance(target, torch._ops.OpOverloadPacket) else []
    return "default" if "default" in names or not names else names[0]


def target_name(node: fx.Node) -> str:
    """Return a name of the node's target that is the same in every process."""
    target = node.target
    if isinstance(target, str):
        return target
    name = op_name(node)
    if name is not None:
        return f"{name}.{op_overload(node)}"
    return _function_name(target)


def is_getitem(node: fx.Node) -> bool:
    """Tell whether a node indexes another node's result."""
    return node.op == "call_function" and node.target is operator.getitem


def is_allocation(node: fx.Node) -> bool:
    """Tell whether a node only allocates memory (the seed's empty-only pieces, step 4)."""
    if node.op == "call_method":
        return bool(node.target == "new_empty")
    if node.op != "call_function":
        return False
    name = op_name(node)
    if name is not None:
        return name.startswith(_ALLOCATION_OPS)
    return _function_name(node.target) in _ALLOCATIONS


def is_size_like(node: fx.Node) -> bool:
    """Tell whether a node's value is a number or a tuple of numbers rather than a tensor."""
    value = example(node)
    if isinstance(value, (list, tuple)):
        return all(isinstance(v, (int, torch.SymInt)) for v in value)
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymBool, torch.SymFloat))


def is_symbolic(size: Any) -> bool:
    """Tell whether a size is dynamic; a SymInt that tracing has fixed to a number is not."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def _function_name(function: Callable[..., Any] | Any) -> str:
    module = getattr(function, "__module__", None) or "torch"
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or str(function)
    return f"{module.removeprefix('_')}.{_HOLDERS.sub('', name)}"
