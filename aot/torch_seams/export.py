"""Seam to torch.export: a piece of a Dynamo graph as an exported program with tensor inputs only.

Tried on torch 2.11.0 and 2.13.0.
"""

import io
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

__all__ = ["concrete", "export_piece", "program_bytes", "program_from"]


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
    _require_one_symbol(examples)
    hint = low if low == high else _hint(low, high)
    dim = torch.export.Dim("tokens", min=low, max=high) if low < high else None
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = tuple(concrete(e, hint) for e in examples)
    shapes = None if dim is None else tuple(_dynamic(e, dim) for e in examples)
    bare = _without_examples(module)
    with torch.no_grad():
        return torch.export.export(bare, args, dynamic_shapes=shapes, strict=False)


def program_bytes(program: Any) -> bytes:
    """Serialise an exported program without its example inputs, which are fake tensors."""
    program._example_inputs = None
    # torch.export notes a range for `2*s0` too, and when it reads the program again takes that for a symbol.
    for expression in [e for e in program.range_constraints if not e.is_Symbol]:
        del program.range_constraints[expression]
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def program_from(data: bytes) -> Any:
    """Read an exported program that this very run serialized, with fake example inputs of some size in its range."""
    program = torch.export.load(io.BytesIO(data))
    given = set(program.graph_signature.user_inputs)  # a lifted constant is a placeholder too, and no input
    values = [n.meta["val"] for n in program.graph_module.graph.nodes if n.op == "placeholder" and n.name in given]
    bounds = [program.range_constraints[x] for x in _symbols(values) if x in program.range_constraints]
    hint = _hint(int(bounds[0].lower), int(bounds[0].upper)) if bounds else 0
    with FakeTensorMode(allow_non_fake_inputs=True):
        program._example_inputs = (tuple(concrete(v, hint) for v in values), {})
    return program


def _hint(low: int, high: int) -> int:
    """Return a size inside the range that is no special case: torch specializes on 0 and 1."""
    return min(max(low, 7), high)


def concrete(example: Tensor, tokens: int) -> Tensor:
    """Return a tensor like a symbolic one with the token count put in, in the fake mode that is active."""
    shape = [_number(s, tokens) for s in example.shape]
    stride = [_number(s, tokens) for s in example.stride()]
    return torch.empty_strided(shape, stride, dtype=example.dtype, device=example.device)


def _number(size: Any, tokens: int) -> int:
    """Concretise a size or stride; a symbolic one is an expression in the token count, such as `2*u0`."""
    if isinstance(size, torch.SymInt):
        return int(size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, tokens)))
    return int(size)


def _dynamic(example: Tensor, dim: Any) -> dict[int, Any] | None:
    marks = {i: _derived(s, dim) for i, s in enumerate(example.shape) if isinstance(s, torch.SymInt)}
    return marks or None


def _derived(size: torch.SymInt, dim: Any) -> Any:
    """Express a size by the token dim: export knows `a * dim + b` alone, and marking `2*u0` as the dim would lie."""
    low, high = (_number(size, n) for n in (0, 1))
    if _number(size, 1000) != low + 1000 * (high - low) or low < 0 or high <= low:
        raise ValueError(f"the size {size} is no multiple of the token count")
    scaled = dim if high - low == 1 else (high - low) * dim
    return scaled + low if low else scaled


def _symbols(examples: list[Tensor]) -> list[Any]:
    sizes = [s for e in examples for s in e.shape if isinstance(s, torch.SymInt)]
    return list(dict.fromkeys(x for s in sizes for x in s.node.expr.free_symbols))


def _require_one_symbol(examples: list[Tensor]) -> None:
    symbols = sorted(str(x) for x in _symbols(examples))
    if len(symbols) > 1:
        raise ValueError(f"a size there depends on data, not on the token count alone: {', '.join(symbols)}")


def _without_examples(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a piece without Dynamo's fake values: export brings its own fake mode."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    # torch.export cannot store a program without outputs; the caller of a piece that only writes ignores this one.
    graph.output(output or (next(iter(graph.nodes)),))
    for node in graph.nodes:
        node.meta = {}
    return fx.GraphModule(module, graph)
