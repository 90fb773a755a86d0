"""Cut a graph's nodes into groups at the splitting ops (vllm-behaviour step 4, rules 2 to 4).

A splitting op is a group of its own, consecutive ones share a group, and everything between two of them is a piece.
Order is never changed, but for one allocation that would make a piece of its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from precast.errors import SplittingOpError
from precast.splitter.nodes import example, is_allocation, is_getitem, is_size_like, op_name, op_overload

__all__ = ["Group", "partition"]

_BUILT_IN = ("aten", "prim", "prims", "inductor", "higher_order", "_c10d_functional")


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run together: one piece, or one run of consecutive splitting ops."""

    splitting: bool
    nodes: tuple[fx.Node, ...]


def partition(graph: fx.Graph, splitting_ops: Collection[str]) -> tuple[Group, ...]:
    """Group the nodes of a cleaned graph.

    Args:
        graph: A graph that `clean` has seen.
        splitting_ops: Names such as `ns::op`, or `ns::op.overload` for one overload.

    Raises:
        SplittingOpError: A name that never occurs; the error lists the ops that do.
    """
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    _require_all(nodes, splitting_ops)
    groups: list[tuple[bool, list[fx.Node]]] = []
    home: dict[fx.Node, int] = {}
    for node in nodes:
        source = node.args[0] if is_getitem(node) else None
        if isinstance(source, fx.Node) and source in home and not isinstance(example(source), torch.Tensor):
            at = home[source]  # a tuple must not cross; indexing a tensor is an op like any other
        else:
            at = _place(groups, _splits(node, splitting_ops))
        groups[at][1].append(node)
        home[node] = at
    kept = _merge_allocations(groups, home)
    return tuple(Group(s, tuple(n)) for s, n in kept if n)


def _place(groups: list[tuple[bool, list[fx.Node]]], splitting: bool) -> int:
    if not groups or groups[-1][0] != splitting:
        groups.append((splitting, []))
    return len(groups) - 1


def _splits(node: fx.Node, splitting_ops: Collection[str]) -> bool:
    name = op_name(node)
    return name is not None and (name in splitting_ops or f"{name}.{op_overload(node)}" in splitting_ops)


def _require_all(nodes: Sequence[fx.Node], splitting_ops: Collection[str]) -> None:
    present = {n for node in nodes if (n := op_name(node)) is not None}
    present |= {f"{op_name(node)}.{op_overload(node)}" for node in nodes if op_name(node) is not None}
    absent = sorted(set(splitting_ops) - present)
    if not absent:
        return
    own = sorted(n for n in present if "." not in n and n.split("::")[0] not in _BUILT_IN)
    raise SplittingOpError(
        f"splitting op `{absent[0]}` never occurs in the traced graph",
        f"custom ops that occur: {', '.join(own) or 'none'}",
        "name one of these with --splitting-op, or correct the spec's splitting_ops",
    )


def _merge_allocations(
    groups: list[tuple[bool, list[fx.Node]]], home: dict[fx.Node, int]
) -> list[tuple[bool, list[fx.Node]]]:
    """Move a piece that is one allocation into the piece before it, to spare a graph of no work."""
    previous: int | None = None
    for at, (splitting, nodes) in enumerate(groups):
        if splitting:
            continue
        tensors = [n for n in nodes if not is_size_like(n)]
        alone = len(tensors) == 1 and is_allocation(tensors[0])
        if (
            alone
            and previous is not None
            and all(_known(i, home, previous, nodes) for n in nodes for i in n.all_input_nodes)
        ):
            groups[previous][1].extend(nodes)
            home.update(dict.fromkeys(nodes, previous))
            nodes.clear()
        else:
            previous = at
    return groups


def _known(node: fx.Node, home: dict[fx.Node, int], limit: int, own: Sequence[fx.Node]) -> bool:
    return node in own or node not in home or home[node] <= limit
