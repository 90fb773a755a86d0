"""Seam to torch.export: a piece of a Dynamo graph as an exported program with tensor inputs only.

Tried on torch 2.11.0 and 2.13.0.
"""

import io
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

__all__ = ["export_piece", "program_bytes", "program_from"]


def export_piece(module: fx.GraphModule, low: int, high: int) -> Any:
    """Export a piece for one compile range.

    Args:
        module: A piece whose placeholders carry `example_value`; one symbol, the token count, is dynamic.
        low: Smallest token count, at least 1.
        high: Largest token count; equal to `low` makes the piece static.

    Returns:
        A `torch.export.ExportedProgram`.
    """
    examples = [n.meta["example_value"] for n in module.graph.nodes if n.op == "placeholder"]
    hint = low if low == high else _hint(low, high)
    dim = torch.export.Dim("tokens", min=low, max=high) if low < high else None
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = tuple(_concrete(e, hint) for e in examples)
    shapes = None if dim is None else tuple(_dynamic(e, dim) for e in examples)
    bare = _without_examples(module)
    with torch.no_grad():
        return torch.export.export(bare, args, dynamic_shapes=shapes, strict=False)


def program_bytes(program: Any) -> bytes:
    """Serialise an exported program without its example inputs, which are fake tensors."""
    program._example_inputs = None
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def program_from(data: bytes) -> Any:
    """Read an exported program that this very run serialised, with fake example inputs of some size in its range."""
    program = torch.export.load(io.BytesIO(data))
    bounds = next(iter(program.range_constraints.values()), None)
    hint = _hint(int(bounds.lower), int(bounds.upper)) if bounds is not None else 0
    values = [n.meta["val"] for n in program.graph_module.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode(allow_non_fake_inputs=True):
        program._example_inputs = (tuple(_concrete(v, hint) for v in values), {})
    return program


def _hint(low: int, high: int) -> int:
    """Return a size inside the range that is no special case: torch specialises on 0 and 1."""
    return min(max(low, 7), high)


def _concrete(example: Tensor, tokens: int) -> Tensor:
    shape = [tokens if isinstance(s, torch.SymInt) else s for s in example.shape]
    stride = _stride(example, tokens)
    return torch.empty_strided(shape, stride, dtype=example.dtype, device=example.device)


def _stride(example: Tensor, tokens: int) -> list[int]:
    """Concretise a stride; a symbolic one is the product of the token count and the inner sizes."""
    inner: list[int] = []
    for s in example.stride():
        if isinstance(s, torch.SymInt):
            inner.append(int(s.node.expr.subs(dict.fromkeys(s.node.expr.free_symbols, tokens))))
        else:
            inner.append(int(s))
    return inner


def _dynamic(example: Tensor, dim: Any) -> dict[int, Any] | None:
    marks = {i: dim for i, s in enumerate(example.shape) if isinstance(s, torch.SymInt)}
    return marks or None


def _without_examples(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a piece without Dynamo's fake values: export brings its own fake mode."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    for node in graph.nodes:
        node.meta = {}
    return fx.GraphModule(module, graph)
