"""Make a Dynamo graph fit for splitting: no run-time assertions, no `torch.Size` values, nothing dead that is pure.

`fx`'s own dead-code elimination drops in-place method calls on a Dynamo graph and so breaks models silently; only nodes
that this module knows to be pure are dropped here. The rule for sizes is the seed's `_decompose_size_nodes`, extended
to keyword arguments and nested containers.
"""

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from precast.splitter.nodes import ARITHMETIC, example, is_getitem, op_name, target_name

__all__ = ["clean"]

_ASSERTIONS = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_scalar",
        "aten::_assert_tensor_metadata",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)
_ASSERTION_FUNCTIONS = frozenset({"torch._check", "torch._check_is_size", "torch._C._log_api_usage_once"})


def clean(graph: fx.Graph) -> None:
    """Rewrite a graph in place so that it can be split.

    Args:
        graph: A Dynamo graph whose nodes carry `example_value`.
    """
    for node in list(graph.nodes):
        if _is_assertion(node) and not node.users:
            graph.erase_node(node)
    for node in list(graph.nodes):
        if _is_whole_size(node):
            _decompose(graph, node)
        elif node.op == "call_method" and node.target == "size" and len(node.args) == 2:
            _replace_by_dim(graph, node, node.args[0], node.args[1])
    _drop_dead(graph)
    graph.lint()


def _is_assertion(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return op_name(node) in _ASSERTIONS or target_name(node) in _ASSERTION_FUNCTIONS


def _is_whole_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "size" and len(node.args) == 1 and not node.kwargs
    return node.op == "call_function" and node.target is getattr and node.args[1:] == ("shape",)


def _decompose(graph: fx.Graph, node: fx.Node) -> None:
    """Replace a whole size by one value per dim: a literal where the size is static, else `sym_size`."""
    tensor = node.args[0]
    if not isinstance(tensor, fx.Node):
        return
    shape = example(tensor).shape
    with graph.inserting_after(tensor if tensor.op != "placeholder" else _last_placeholder(graph)):
        dims = tuple(_dim(graph, tensor, i, size) for i, size in enumerate(shape))
    for user in list(node.users):
        if is_getitem(user):
            index = user.args[1]
            picked = dims[index] if isinstance(index, (int, slice)) else None
            if picked is None:
                continue
            _substitute(user, picked)
            graph.erase_node(user)
    _substitute(node, dims)
    graph.erase_node(node)


def _replace_by_dim(graph: fx.Graph, node: fx.Node, tensor: Any, dim: Any) -> None:
    size = example(tensor).shape[dim]
    with graph.inserting_before(node):
        _substitute(node, _dim(graph, tensor, dim, size))
    graph.erase_node(node)


def _dim(graph: fx.Graph, tensor: fx.Node, dim: int, size: Any) -> Any:
    if not isinstance(size, torch.SymInt):
        return int(size)
    positive = dim % example(tensor).dim()
    node = graph.call_function(torch.ops.aten.sym_size.int, (tensor, positive))
    node.meta["example_value"] = size
    return node


def _substitute(old: fx.Node, new: Any) -> None:
    """Put `new` (a node, a number, or a tuple of them) where `old` stands, also inside containers and keywords."""

    def swap(value: Any) -> Any:
        return new if value is old else value

    for user in list(old.users):
        user.args = _map(user.args, swap)
        user.kwargs = _map(user.kwargs, swap)


def _map(value: Any, swap: Any) -> Any:
    return map_aggregate(value, swap)


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    return [n for n in graph.nodes if n.op == "placeholder"][-1]


def _drop_dead(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        sized = op_name(node) == "aten::sym_size"
        if sized or (node.op == "call_function" and node.target in ARITHMETIC and not _is_tensor(node)):
            graph.erase_node(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(example(node), torch.Tensor)
