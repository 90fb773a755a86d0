"""Stitch a split plan into straight-line Python: splitting ops inline, each value deleted after its last use.

The text is what runs, and it is readable: it is generated from the plan at load, so nothing stored is executed as code.
The call of a piece costs one list and one call, with no `nn.Module.__call__` on the way (seed step 4, codegen).
"""

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precast.errors import CorruptError, UnsupportedOpError
from precast.splitter.plan import CallOp, Compute, RunPiece, SplitPlan, Step, Template, references

__all__ = ["COMPUTE", "PieceCallable", "Stitched", "bind", "stitch"]

PieceCallable = Callable[[list[Any]], Sequence[Any]]

# What may stand between splitting ops without a piece of its own: the function's name, and its Python form.
COMPUTE: Mapping[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "neg": "-{0}",
    "getitem": "{0}[{1}]",
    "size": "{0}.shape[{1}]",
}


@dataclass(frozen=True, slots=True)
class Stitched:
    """The generated source, and the names it expects in its globals.

    Attributes:
        source: Text that defines `forward`.
        pieces: Global name of each piece call, in order, with the key of its unique piece.
        ops: Global name of each splitting op, with its qualified name and overload.
    """

    source: str
    pieces: tuple[tuple[str, str], ...]
    ops: tuple[tuple[str, str, str], ...]


def stitch(plan: SplitPlan) -> Stitched:
    """Generate the forward function of a plan.

    Args:
        plan: A plan; its value names must be Python identifiers.

    Raises:
        CorruptError: A name in the plan is not an identifier, or a value is used before it exists.
    """
    _check(plan)
    ops = {name: f"op_{name.replace('::', '_')}" for name in plan.op_counts()}
    variants = _op_names(plan, ops)
    lines = [f"def forward({', '.join(plan.arguments)}):"]
    lines += [f"    {i.name} = {i.source}.shape[{i.dim}]" for i in plan.inputs if i.kind == "size"]
    pieces: list[tuple[str, str]] = []
    dying = _deaths(plan)
    for index, step in enumerate(plan.steps):
        lines.append("    " + _statement(step, pieces, variants))
        if dying[index]:
            lines.append(f"    del {', '.join(dying[index])}")
    lines.append(f"    return {_expression(plan.result)}")
    source = "\n".join(lines) + "\n"
    return Stitched(source, tuple(pieces), tuple((g, op, ov) for (op, ov), g in variants.items()))


def bind(
    stitched: Stitched,
    pieces: Mapping[str, PieceCallable],
    values: Mapping[str, Any],
    resolve_op: Callable[[str, str], Any],
) -> Callable[..., Any]:
    """Compile the generated source and bind it to loaded pieces, module state and ops.

    Args:
        stitched: What `stitch` made.
        pieces: Callable of each unique piece, by key: takes a list of tensors, returns a sequence of tensors.
        values: State and constants by plan name.
        resolve_op: Returns the callable of (qualified name, overload).

    Returns:
        The stitched forward, with the signature of the plan's arguments.
    """
    scope: dict[str, Any] = {"__builtins__": {}, **values}
    scope.update({name: pieces[key] for name, key in stitched.pieces})
    scope.update({name: resolve_op(op, overload) for name, op, overload in stitched.ops})
    if "torch." in stitched.source:
        import torch

        scope["torch"] = torch
    exec(compile(stitched.source, "<precast forward>", "exec"), scope)  # noqa: S102 - generated here from checked names
    forward: Callable[..., Any] = scope["forward"]
    return forward


def _op_names(plan: SplitPlan, ops: Mapping[str, str]) -> dict[tuple[str, str], str]:
    pairs = {(s.op, s.overload): ops[s.op] for s in plan.steps if isinstance(s, CallOp)}
    return {(op, ov): name if ov == "default" else f"{name}_{ov}" for (op, ov), name in sorted(pairs.items())}


def _statement(step: Step, pieces: list[tuple[str, str]], ops: Mapping[tuple[str, str], str]) -> str:
    match step:
        case RunPiece():
            name = f"piece_{len(pieces)}"
            pieces.append((name, step.key))
            call = f"{name}([{', '.join(step.inputs)}])"
            return f"{', '.join(step.outputs)}, = {call}" if step.outputs else call
        case CallOp():
            args = [_expression(a) for a in step.args] + [f"{k}={_expression(v)}" for k, v in step.kwargs]
            call = f"{ops[step.op, step.overload]}({', '.join(args)})"
            return f"{step.output} = {call}" if step.output else call
        case Compute():
            form = COMPUTE.get(step.function)
            if form is None:
                raise UnsupportedOpError(
                    f"`{step.function}` cannot run between splitting ops",
                    f"known there: {', '.join(COMPUTE)}",
                    "move the computation before the first or after the last of the consecutive splitting ops",
                )
            return f"{step.output} = {form.format(*[_expression(a) for a in step.args])}"


def _expression(template: Template) -> str:
    if not isinstance(template, dict):
        return repr(template)
    if "$ref" in template:
        return str(template["$ref"])
    if "$tuple" in template:
        return "(" + "".join(_expression(x) + ", " for x in template["$tuple"]) + ")"
    if "$list" in template:
        return "[" + ", ".join(_expression(x) for x in template["$list"]) + "]"
    if "$dict" in template:
        return "{" + ", ".join(f"{k!r}: {_expression(v)}" for k, v in template["$dict"]) + "}"
    if "$dtype" in template and str(template["$dtype"]).isidentifier():
        return f"torch.{template['$dtype']}"
    if "$device" in template and str(template["$device"]).isidentifier():
        return f"torch.device({template['$device']!r})"
    raise CorruptError(f"the split plan holds an unknown form: {template}", "", "precompile the model again")


def _used(step: Step) -> list[str]:
    match step:
        case RunPiece():
            return list(step.inputs)
        case CallOp():
            return [n for a in (*step.args, *(v for _, v in step.kwargs)) for n in references(a)]
        case Compute():
            return [n for a in step.args for n in references(a)]


def _made(step: Step) -> tuple[str, ...]:
    if isinstance(step, RunPiece):
        return step.outputs
    return (step.output,) if step.output else ()


def _made_locally(plan: SplitPlan) -> frozenset[str]:
    return frozenset(name for step in plan.steps for name in _made(step))


def _deaths(plan: SplitPlan) -> list[list[str]]:
    """Return, for each step, the values made on the way that nothing uses after it; the result's values never die."""
    last: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        for name in (*_made(step), *_used(step)):
            last[name] = index
    local = _made_locally(plan) - frozenset(references(plan.result))
    dying: list[list[str]] = [[] for _ in plan.steps]
    for name in sorted(local):
        dying[last[name]].append(name)
    return dying


def _check(plan: SplitPlan) -> None:
    """Refuse names that are not identifiers, before any text is generated: the plan may come from a file."""
    known: set[str] = set(plan.arguments) | {i.name for i in plan.inputs}
    names = known | {i.source for i in plan.inputs if i.kind == "size"} | set(_made_locally(plan))
    names |= {s.overload for s in plan.steps if isinstance(s, CallOp)}
    names |= {p for s in plan.steps if isinstance(s, CallOp) for p in s.op.split("::")}
    names |= {k for s in plan.steps if isinstance(s, CallOp) for k, _ in s.kwargs}
    bad = sorted(n for n in names if not n.isidentifier() or keyword.iskeyword(n) or n.startswith("__"))
    if bad:
        raise CorruptError(f"the split plan holds the name {bad[0]!r}", "it is not an identifier", "precompile again")
    for step in plan.steps:
        missing = [n for n in _used(step) if n not in known]
        if missing:
            raise CorruptError(f"the split plan uses `{missing[0]}` before it exists", "", "precompile the model again")
        known.update(_made(step))
