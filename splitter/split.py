"""Split a traced graph into a plan and its unique pieces."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from precast.errors import UnsupportedOpError
from precast.splitter.clean import clean
from precast.splitter.nodes import example, is_getitem, is_size_like, op_name, op_overload, target_name
from precast.splitter.partition import Group, partition
from precast.splitter.pieces import RawPiece, lift
from precast.splitter.plan import CallOp, Compute, GraphInput, RunPiece, SplitPlan, Step, Template, references
from precast.splitter.stitch import stitch
from precast.splitter.structure import structural_key

__all__ = ["Piece", "Split", "split"]

_COMPUTE_NAMES = {
    "operator.add": "add",
    "operator.sub": "sub",
    "operator.mul": "mul",
    "operator.floordiv": "floordiv",
    "operator.mod": "mod",
    "operator.neg": "neg",
    "operator.getitem": "getitem",
    "aten::sym_size.int": "size",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One unique piece.

    Attributes:
        key: Its structural key.
        graph_module: Tensors in, one tuple of tensors out.
        label: What people see, such as `piece 2 (x6)`.
    """

    key: str
    graph_module: fx.GraphModule
    label: str


@dataclass(frozen=True, slots=True)
class Split:
    """The plan, and each unique piece once, in order of first use."""

    plan: SplitPlan
    pieces: tuple[Piece, ...]


def split(
    graph_module: fx.GraphModule,
    inputs: Mapping[str, GraphInput],
    arguments: Sequence[str],
    result: Template,
    splitting_ops: Collection[str],
) -> Split:
    """Split a Dynamo graph at the splitting ops. The graph is rewritten in place.

    Args:
        graph_module: The traced graph; nodes carry `example_value`.
        inputs: What each placeholder is, by node name.
        arguments: Names of forward's parameters, in order.
        result: Template of forward's result over node names of the graph's outputs.
        splitting_ops: Names such as `precast::paged_attention`; empty makes one piece of the whole graph.

    Raises:
        SplittingOpError: A splitting op never occurs.
        UnsupportedOpError: Something that neither a piece nor the plan can hold.
    """
    clean(graph_module.graph)
    groups = partition(graph_module.graph, splitting_ops)
    builder = _PlanBuilder(graph_module.graph, inputs)
    for group in groups:
        if group.splitting:
            builder.add_ops(group)
        else:
            builder.add_piece(group)
    token = _token_input(graph_module.graph, inputs)
    plan = SplitPlan(tuple(arguments), builder.used_inputs(result), tuple(builder.steps), result, token)
    stitch(plan)  # what cannot be stitched is refused here, before a minute of compiling
    pieces = tuple(
        Piece(key, module, _label(number, plan.uses(key)))
        for number, (key, module) in enumerate(builder.unique.items())
    )
    return Split(plan, pieces)


def _label(number: int, uses: int) -> str:
    return f"piece {number}" + (f" (x{uses})" if uses > 1 else "")


def _token_input(graph: fx.Graph, inputs: Mapping[str, GraphInput]) -> tuple[str, int] | None:
    """Find the first dynamic dim of an argument: all dynamic dims of a step are the token count."""
    for node in graph.nodes:
        given = inputs.get(node.name)
        if node.op != "placeholder" or given is None or given.kind != "argument":
            continue
        for dim, size in enumerate(example(node).shape):
            if isinstance(size, torch.SymInt):
                return given.name, dim
    return None


class _PlanBuilder:
    """Turns groups into steps, and keeps each unique piece once."""

    def __init__(self, graph: fx.Graph, inputs: Mapping[str, GraphInput]) -> None:
        self.steps: list[Step] = []
        self.unique: dict[str, fx.GraphModule] = {}
        self._inputs = inputs
        self._computed: set[fx.Node] = set()
        self._arguments = [
            n for n in graph.nodes if n.name in inputs and inputs[n.name].kind == "argument" and not is_size_like(n)
        ]

    def used_inputs(self, result: Template) -> tuple[GraphInput, ...]:
        """Return the graph inputs that a step or the result uses; arguments always."""
        used = set(references(result))
        for step in self.steps:
            match step:
                case RunPiece():
                    used.update(step.inputs)
                case CallOp():
                    used.update(n for a in (*step.args, *(v for _, v in step.kwargs)) for n in references(a))
                case Compute():
                    used.update(n for a in step.args for n in references(a))
        return tuple(i for i in self._inputs.values() if i.kind == "argument" or i.name in used)

    def add_piece(self, group: Group) -> None:
        """Add the step that runs a group as a piece."""
        raw = lift(group, self._arguments)
        if raw is None:
            return
        key = structural_key(raw.graph_module)
        self.unique.setdefault(key, raw.graph_module)
        self.steps.append(self._run(key, raw))

    def add_ops(self, group: Group) -> None:
        """Add the steps of a run of consecutive splitting ops."""
        for node in group.nodes:
            if is_getitem(node):
                self._compute(node)
                continue
            name = op_name(node)
            if name is None:
                raise UnsupportedOpError(f"`{target_name(node)}` stands among splitting ops", "", "")
            args = tuple(self._template(a) for a in node.args)
            kwargs = tuple((k, self._template(v)) for k, v in node.kwargs.items())
            self.steps.append(CallOp(name, op_overload(node), args, kwargs, node.name if node.users else None))

    def _run(self, key: str, raw: RawPiece) -> RunPiece:
        return RunPiece(key, tuple(self._name(n) for n in raw.inputs), tuple(n.name for n in raw.outputs))

    def _name(self, node: fx.Node) -> str:
        given = self._inputs.get(node.name)
        return given.name if given is not None else node.name

    def _template(self, value: Any) -> Template:
        match value:
            case fx.Node():
                if is_size_like(value) and value.op == "call_function":
                    self._compute(value)
                return {"$ref": self._name(value)}
            case float() if not math.isfinite(value):
                return {"$number": repr(value)}  # JSON has no such number
            case None | bool() | int() | float() | str():
                return value
            case torch.dtype():
                return {"$dtype": str(value).removeprefix("torch.")}
            case torch.device():
                return {"$device": value.type}
            case tuple():
                return {"$tuple": [self._template(v) for v in value]}
            case list():
                return {"$list": [self._template(v) for v in value]}
        if isinstance(value, Sequence):
            return {"$list": [self._template(v) for v in value]}
        raise UnsupportedOpError(
            f"a splitting op takes a {type(value).__name__}",
            "the plan holds tensors, numbers, strings, dtypes and lists of them",
            "pass a name or a number and look the object up inside the op",
        )

    def _compute(self, node: fx.Node) -> None:
        if node in self._computed:
            return
        self._computed.add(node)
        function = _COMPUTE_NAMES.get(target_name(node), target_name(node))
        args = tuple(self._template(a) for a in node.args)
        self.steps.append(Compute(function, args, node.name))
