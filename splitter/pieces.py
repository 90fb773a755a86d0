"""Lift a group of nodes out of the traced graph as a graph of its own, with tensors as its only inputs and outputs.

Numbers never cross from piece to piece: each is computed again inside the piece, from the size of one of its tensors.
Otherwise equal pieces would differ, and AOTInductor takes no symbolic numbers as inputs (tracing-traps, torch-aot 2).
"""

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.errors import UnsupportedOpError
from precast.splitter.nodes import example, is_size_like, op_overload, target_name
from precast.splitter.partition import Group

__all__ = ["RawPiece", "lift"]

_IN_PLACE_OPERATORS = frozenset({
    operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imod, operator.imul,
    operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor, operator.setitem,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawPiece:
    """One piece before it is compared with others.

    Attributes:
        graph_module: The piece; placeholders `i0, i1, ...`, one tuple of tensors as output.
        inputs: Nodes of the traced graph that feed the placeholders.
        outputs: Nodes of the traced graph that the output tuple stands for.
    """

    graph_module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def lift(group: Group, arguments: Sequence[fx.Node]) -> RawPiece | None:
    """Make a graph module of a group, or None when the group computes nothing that a later step uses.

    Args:
        group: A group that is not splitting.
        arguments: Placeholder nodes of the tensor arguments, as the last resort for a symbolic size.

    Raises:
        UnsupportedOpError: A number that cannot be computed inside the piece.
    """
    outputs = _outputs(group)
    if not outputs and not _writes(group):
        return None
    builder = _Builder(group, arguments)
    for node in group.nodes:
        if not is_size_like(node) or node.op != "call_function":
            builder.copy(node)
    builder.graph.output(tuple(builder.env[o] for o in outputs))
    if _writes(group):
        _require_apart(builder.inputs)
    module = fx.GraphModule({}, builder.graph)
    return RawPiece(module, tuple(builder.inputs), outputs)


def _outputs(group: Group) -> tuple[fx.Node, ...]:
    inside = set(group.nodes)
    return tuple(
        n for n in group.nodes if isinstance(example(n), torch.Tensor) and any(u not in inside for u in n.users)
    )


def _writes(group: Group) -> bool:
    """Tell whether a group may have an effect through an in-place op."""
    return any(_in_place(n) for n in group.nodes)


def _in_place(node: fx.Node) -> bool:
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True:
        return True
    overload = node.target
    if isinstance(overload, torch._ops.OpOverloadPacket):
        overload = getattr(overload, op_overload(node))
    if isinstance(overload, torch._ops.OpOverload):
        return bool(overload._schema.is_mutable)
    name = target_name(node).rsplit(".", 1)[-1]
    return (name.endswith("_") and not name.endswith("__")) or node.target in _IN_PLACE_OPERATORS


def _require_apart(inputs: Sequence[fx.Node]) -> None:
    """Refuse a write where two inputs share memory: a piece is compiled as if no input aliased another."""
    seen: dict[int, fx.Node] = {}
    for node in inputs:
        memory = example(node).untyped_storage()._cdata
        if memory in seen:
            raise UnsupportedOpError(
                f"`{seen[memory].name}` and `{node.name}` share memory, and a piece that takes both writes in place",
                "compiled code would not see the write through the other one",
                "write out of place, or make the view again after the splitting op",
            )
        seen[memory] = node


class _Builder:
    """Copies nodes into a new graph and grows its inputs on the way."""

    def __init__(self, group: Group, arguments: Sequence[fx.Node]) -> None:
        self.graph = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}
        self.inputs: list[fx.Node] = []
        self._inside = set(group.nodes)
        self._arguments = arguments
        self._sizes: dict[str, fx.Node] = {}
        for node in group.nodes:
            for source in node.all_input_nodes:
                if source not in self._inside and not is_size_like(source):
                    self.input(source)

    def input(self, source: fx.Node) -> fx.Node:
        """Return the placeholder that stands for a tensor made outside."""
        if source not in self.env:
            with self._after_placeholders():
                node = self.graph.placeholder(f"i{len(self.inputs)}")
            node.meta["example_value"] = example(source)
            self.inputs.append(source)
            self.env[source] = node
        return self.env[source]

    def _after_placeholders(self) -> AbstractContextManager[Any]:
        if not self.inputs:
            return nullcontext()
        place: AbstractContextManager[Any] = self.graph.inserting_after(self.env[self.inputs[-1]])
        return place

    def copy(self, node: fx.Node) -> fx.Node:
        """Copy one node with its arguments."""
        if node not in self.env:
            for source in node.all_input_nodes:
                self._value(source)
            new = self.graph.node_copy(node, lambda n: self.env[n])
            new.meta = {"example_value": example(node)}
            self.env[node] = new
        return self.env[node]

    def _value(self, node: fx.Node) -> fx.Node:
        if node in self.env:
            return self.env[node]
        if is_size_like(node):
            self.env[node] = self._number(node)
        elif node in self._inside:
            self.copy(node)
        else:
            self.input(node)
        return self.env[node]

    def _number(self, node: fx.Node) -> fx.Node:
        """Compute a number again: from an input's size, else as the traced graph did, else from an argument's size."""
        value = example(node)
        if isinstance(value, torch.SymInt):
            found = self._from_size(str(value), self.inputs)
            if found is not None:
                return found
        if node.op == "call_function":
            return self.copy(node)
        found = self._from_size(str(value), self._arguments)
        if found is None:
            raise UnsupportedOpError(
                f"the number `{node.name}` of the traced graph cannot be computed inside a piece",
                f"no tensor there has a dim of size {value}",
                "make the number a tensor, or derive it from the shape of an argument",
            )
        return found

    def _from_size(self, symbol: str, sources: Sequence[fx.Node]) -> fx.Node | None:
        for source in list(sources):
            for dim, size in enumerate(example(source).shape):
                if isinstance(size, torch.SymInt) and str(size) == symbol:
                    return self._size_node(symbol, source, dim, size)
        return None

    def _size_node(self, symbol: str, source: fx.Node, dim: int, size: torch.SymInt) -> fx.Node:
        if symbol not in self._sizes:
            tensor = self.input(source)
            with self._after_placeholders():
                node = self.graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
            node.meta["example_value"] = size
            self._sizes[symbol] = node
        return self._sizes[symbol]
