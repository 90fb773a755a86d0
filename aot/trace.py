"""The one trace: a spec becomes a graph with a symbolic token count, its inputs named by what they are at load.

Guards are dropped; what they assumed about constants is in the graph, and so in the key. The structure of forward's
result is found by running Dynamo's own bytecode on marked outputs, so nothing about it is guessed.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor

from precast.aot.constants import constant_form
from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.torch_seams.capture import (
    Capture,
    CaptureError,
    capture_graph,
    mark_dynamic_dim,
    placeholder_source,
    stores_outside,
)
from precast.aot.torch_seams.described_facts import Questions, were_traced
from precast.aot.torch_seams.parameters import fake_on, parameters_diverted
from precast.cache.canonical import Json
from precast.errors import ConfigValueError, FactoryError, GraphBreakError, PrecastError, UnsupportedOpError
from precast.splitter.nodes import is_symbolic
from precast.splitter.plan import GraphInput, Template

__all__ = ["TOKENS", "TracedGraph", "build_for_tracing", "trace"]

TOKENS = "tokens"  # the dynamic dim that compile ranges and capture sizes speak of
_HINT = 7  # any size but 0 and 1; the dim is unbacked, so the value is never read
_STEP = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]|\.(\w+)|\['([^']+)'\]|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A traced model.

    Attributes:
        graph_module: Dynamo's graph; nodes carry `example_value`.
        inputs: What each placeholder is, by node name.
        arguments: Names of forward's parameters, in order.
        result: Template of forward's result.
        traced_files: Source file of each function that was traced, torch's own included.
        environment_strings: Strings among which are the variables that traced functions read.
        constants: Form of each buffer and plain tensor of the module that the graph uses, by dotted path.
        asks_device: Whether the graph may depend on which GPU it is for, because the model asked about it.
    """

    graph_module: fx.GraphModule
    inputs: Mapping[str, GraphInput]
    arguments: tuple[str, ...]
    result: Template
    traced_files: frozenset[Path]
    environment_strings: frozenset[str]
    constants: Mapping[str, Json]
    asks_device: bool = False


def build_for_tracing(spec: ModelSpec) -> nn.Module:
    """Build a spec's module on the CPU, whatever the target, with parameters that take no memory.

    So the numbers that a constructor computes are the same on a machine without a GPU and on one that has it.

    Args:
        spec: The model.

    Raises:
        FactoryError: The constructor raised.
    """
    try:
        with parameters_diverted(), torch.device("cpu"):
            return spec.build().eval().requires_grad_(False)
    except PrecastError:
        raise
    except Exception as error:
        raise FactoryError(
            f"the model `{spec.name}` could not be built",
            f"{type(error).__name__}: {error}",
            "its constructor must run on torch's default device and must not read parameter values",
        ) from error


def trace(spec: ModelSpec, module: nn.Module, device: str) -> TracedGraph:
    """Trace a module once.

    Args:
        spec: The model.
        module: What `build_for_tracing` made.
        device: torch device type of the inputs.

    Raises:
        GraphBreakError: The model cannot be traced as one graph; the error names the source line.
        UnsupportedOpError: An op, an input or a result that an artifact cannot hold.
    """
    with _standing_on(module, device) as mode:
        with mode:
            args = tuple(_example(given, device) for given in spec.inputs)
        try:
            with Questions() as asked:
                captured = capture_graph(module, args)
        except CaptureError as failure:
            raise _trace_error(failure) from failure
        _refuse_side_effects(captured)
        inputs = _inputs(captured.graph_module, spec, module)
        _rename_clashes(captured.graph_module.graph, inputs)
        _check_dynamic(captured.graph_module, inputs, spec)
        result = _result(captured, inputs, spec, module, args)
    files = frozenset(Path(f) for f in captured.traced_files if not f.startswith("<"))
    return TracedGraph(
        graph_module=captured.graph_module,
        inputs=inputs,
        arguments=tuple(i.name for i in spec.inputs),
        result=result,
        traced_files=files,
        environment_strings=captured.environment_strings,
        constants=_constants(inputs, module),
        asks_device=bool(asked.names) or were_traced(files),
    )


def _standing_on(module: nn.Module, device: str) -> AbstractContextManager[AbstractContextManager[Any]]:
    return nullcontext(nullcontext()) if device == "cpu" else fake_on(module, device)


def _example(given: TensorInput, device: str) -> Tensor:
    names = {s for s in given.shape if isinstance(s, str)}
    if names - {TOKENS}:
        raise ConfigValueError(
            f"input `{given.name}` has the dynamic dim `{min(names - {TOKENS})}`",
            f"`{TOKENS}` is the one dynamic dim that compile ranges know",
            f"make the size a number, or name it `{TOKENS}`",
        )
    shape = [_HINT if isinstance(s, str) else s for s in given.shape]
    tensor = torch.zeros(shape, dtype=getattr(torch, given.dtype), device=device)
    for dim, size in enumerate(given.shape):
        if isinstance(size, str):
            mark_dynamic_dim(tensor, dim, size)
    return tensor


def _trace_error(failure: CaptureError) -> PrecastError:
    where = f"at {failure.location}: `{failure.line}`" if failure.location else "Dynamo names no line"
    if "fake tensors" in failure.title or "meta" in failure.title.lower().split():
        return UnsupportedOpError(
            f"the model uses an op that cannot be traced, {where}",
            failure.reason,
            "register a fake (Meta) implementation for the op",
        )
    return GraphBreakError(
        f"the model cannot be traced as one graph, {where}",
        failure.reason,
        "move the line out of forward, or put it behind a custom op",
    )


def _refuse_side_effects(captured: Capture) -> None:
    stored = stores_outside(captured.bytecode)
    if stored:
        raise UnsupportedOpError(
            f"forward assigns `{stored[0]}`",
            "an artifact runs the graph alone, so the assignment would be lost without a word",
            "return the value, or write into a buffer in place",
        )


def _inputs(graph_module: fx.GraphModule, spec: ModelSpec, module: nn.Module) -> dict[str, GraphInput]:
    arguments = {i.name for i in spec.inputs}
    taken = set(arguments)
    found: dict[str, GraphInput] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            found[node.name] = _input(node, arguments, taken, module)
        elif node.op == "get_attr":
            raise _unsupported_source(f"constant `{node.target}`")
    used = {i.source for i in found.values()}
    for given in spec.inputs:  # Dynamo lifts only what forward uses; the loaded callable takes and checks them all
        if given.name not in used:
            shape = tuple(None if isinstance(s, str) else s for s in given.shape)
            found[f"unused {given.name}"] = GraphInput(given.name, "argument", given.name, None, given.dtype, shape)
    return found


def _input(node: fx.Node, arguments: set[str], taken: set[str], module: nn.Module) -> GraphInput:
    source = placeholder_source(node)
    root = re.match(r"L\['(\w+)'\]", source)
    if root is None:
        raise _unsupported_source(source)
    rest = source[root.end() :]
    if root[1] in arguments:
        size = re.search(r"(?:size\(\)|shape)\[(\d+)\]$", rest)
        if size is not None:
            return GraphInput(node.name, "size", root[1], int(size[1]))
        if rest:
            raise _unsupported_source(source)
        return GraphInput(root[1], "argument", root[1], **_layout(node, strides=False))
    path = ".".join(next(g for g in m.groups() if g is not None) for m in _STEP.finditer(rest))
    if not isinstance(_attribute(module, path), Tensor):
        raise _unsupported_source(source)
    return GraphInput(_identifier(path, taken), "state", path, **_layout(node, strides=True))


def _rename_clashes(graph: fx.Graph, inputs: Mapping[str, GraphInput]) -> None:
    """Rename values that have an input's name: Dynamo names values after forward's locals, which `x = f(x)` reuses."""
    taken = {i.name for i in inputs.values()}
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        name = node.name.lstrip("_") or "value"
        if node.name in taken or node.name.startswith("__"):
            while name in taken:
                name += "_new"
            node._rename(name)


def _constants(inputs: Mapping[str, GraphInput], module: nn.Module) -> dict[str, Json]:
    """Digest the tensors of the module that are no parameters, bit by bit.

    They are bound again at load, so a loaded artifact is right whatever they hold; but what a trace saw is the key's.
    """
    found: dict[str, Json] = {}
    for given in inputs.values():
        tensor = _attribute(module, given.source) if given.kind == "state" else None
        if isinstance(tensor, Tensor) and not isinstance(tensor, (nn.Parameter, FakeTensor)):
            found[given.source] = constant_form(tensor, given.dtype, given.shape)
    return found


def _layout(node: fx.Node, *, strides: bool) -> dict[str, Any]:
    value = node.meta["example_value"]
    shape = tuple(None if isinstance(s, torch.SymInt) else int(s) for s in value.shape)
    stride = tuple(int(s) for s in value.stride()) if strides else ()
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape, "stride": stride}


def _attribute(module: nn.Module, path: str) -> Any:
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError:
        return None


def _identifier(path: str, taken: set[str]) -> str:
    name = "w_" + re.sub(r"\W", "_", path)
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _unsupported_source(source: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"forward uses the tensor or number `{source}`",
        "it is neither an argument of the spec nor a parameter, buffer or attribute of the module",
        "register it as a buffer, or list it in the spec's inputs",
    )


def _check_dynamic(graph_module: fx.GraphModule, inputs: Mapping[str, GraphInput], spec: ModelSpec) -> None:
    """Refuse a graph in which a dynamic dim has become a number: its answers at other sizes would be wrong."""
    wanted = {i.name: i.shape for i in spec.inputs}
    for node in graph_module.graph.nodes:
        given = inputs.get(node.name)
        if node.op != "placeholder" or given is None or given.kind != "argument":
            continue
        for dim, size in enumerate(wanted[given.name]):
            if isinstance(size, str) and not is_symbolic(node.meta["example_value"].shape[dim]):
                raise GraphBreakError(
                    f"tracing fixed dim {dim} of `{given.name}` to {node.meta['example_value'].shape[dim]}",
                    "forward compares the size with a number, or reshapes with a literal",
                    "derive every shape in forward from the inputs' shapes",
                )


def _result(
    captured: Capture, inputs: Mapping[str, GraphInput], spec: ModelSpec, module: nn.Module, args: tuple[Tensor, ...]
) -> Template:
    """Run Dynamo's bytecode on marked tensors, and see where each of them ends up."""
    outputs = next(n for n in captured.graph_module.graph.nodes if n.op == "output").args[0]
    marks = [torch.empty(0) if isinstance(o, fx.Node) else o for o in outputs]
    names = {
        id(mark): inputs[node.name].name if node.name in inputs else node.name
        for mark, node in zip(marks, outputs, strict=True)
        if isinstance(node, fx.Node)
    }
    names |= {id(a): given.name for a, given in zip(args, spec.inputs, strict=True)}
    return _template(captured.rebuild(marks, module, *args), names)


def _template(value: Any, names: Mapping[int, str]) -> Template:
    if isinstance(value, Tensor):
        if id(value) not in names:
            raise UnsupportedOpError(
                "forward returns a tensor that the graph does not make", "", "compute it in forward"
            )
        return {"$ref": names[id(value)]}
    if type(value) is tuple:
        return {"$tuple": [_template(v, names) for v in value]}
    if type(value) is list:
        return {"$list": [_template(v, names) for v in value]}
    if type(value) is dict:
        return {"$dict": [[k, _template(v, names)] for k, v in value.items()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedOpError(
        f"forward returns a {type(value).__name__}",
        "an artifact can return tensors, numbers and strings in tuples, lists and dicts",
        "return one of these, and build the object outside",
    )
