"""Check what tracing assumed about sizes, before the assertions that say so are dropped from the graph.

Dynamo writes each assumption into the graph as a run-time assertion. An artifact has none, so each must hold for
every token count that it may be called with; one that does not is an error here, never a wrong number later.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from precast.errors import GraphBreakError
from precast.splitter.nodes import ARITHMETIC, example, op_name, target_name

__all__ = ["check_assumptions"]

_ASSERTIONS = frozenset({"aten::_assert_scalar", "aten::_assert_async"})
_CHECKS = frozenset({"torch._check", "torch._check_is_size"})
_SIGNS: Mapping[str, str] = MappingProxyType({
    "eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!=", "mod": "%", "mul": "*", "add": "+", "sub":
    "-",
})  # fmt: skip


def check_assumptions(graph: fx.Graph, ranges: Iterable[tuple[int, int]]) -> None:
    """Evaluate every assertion of a traced graph at each token count of the ranges.

    Args:
        graph: A graph as Dynamo made it; nodes carry `example_value`.
        ranges: Compile ranges, inclusive.

    Raises:
        GraphBreakError: An assumption does not hold, or cannot be checked.
    """
    conditions = [n.args[0] for n in graph.nodes if op_name(n) in _ASSERTIONS or target_name(n) in _CHECKS]
    symbolic = [c for c in conditions if isinstance(c, fx.Node)]
    counts = sorted({n for low, high in ranges for n in range(low, high + 1)}) if symbolic else []
    for condition in symbolic:
        failing = next((count for count in counts if not _value(condition, count)), None)
        if failing is not None:
            raise GraphBreakError(
                f"forward does not work for {failing} tokens: it assumes {_text(condition)}",
                "tracing found a comparison of the token count with a number",
                "derive every shape in forward from the inputs' shapes, or lower max_num_batched_tokens",
            )


def _value(node: Any, count: int) -> Any:
    """Compute a number of the graph for a token count."""
    if not isinstance(node, fx.Node):
        return node
    if node.op == "placeholder":
        return count
    if op_name(node) == "aten::sym_size":
        tensor, dim = node.args
        size = example(tensor).shape[dim]
        return _substituted(size, count) if isinstance(size, torch.SymInt) else size
    if node.target in ARITHMETIC:
        return node.target(*(_value(a, count) for a in node.args))
    raise GraphBreakError(
        f"tracing assumes something about `{node.name}` that cannot be checked",
        "the assumption depends on a value, not on a size",
        "move the check out of forward",
    )


def _substituted(size: torch.SymInt, count: int) -> int:
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, count)))


def _text(node: Any) -> str:
    if not isinstance(node, fx.Node):
        return str(node)
    if node.op == "placeholder" or op_name(node) == "aten::sym_size":
        return "tokens"
    name = getattr(node.target, "__name__", str(node.target))
    parts = [_text(a) for a in node.args]
    return f"{parts[0]} {_SIGNS.get(name, name)} {parts[1]}" if len(parts) == 2 else f"{name}({', '.join(parts)})"
