"""Stitch a split plan into straight-line Python: splitting ops inline, each value deleted after its last use.

The text is what runs, and it is readable: it is generated from the plan at load, so nothing stored is executed as code.
The call of a piece costs one list and one call, with no `nn.Module.__call__` on the way (seed step 4, codegen).
"""

import keyword
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
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
_NUMBERS: Mapping[str, str] = {"inf": "1e999", "-inf": "-1e999", "nan": "(1e999 - 1e999)"}  # there are no builtins
_RESERVED = frozenset({"torch", "forward"})
_AGAIN = "precompile the model again"


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


def stitch(plan: SplitPlan, omitted: Collection[int] = ()) -> Stitched:
    """Generate the forward function of a plan.

    Args:
        plan: A plan; its value names must be Python identifiers.
        omitted: Calls of splitting ops to leave out, by index of the step; none whose result is used. Values die where
            they die with those calls, so that what is allocated in between lies where it does without the omission.

    Raises:
        CorruptError: A name in the plan is not an identifier, or a value is used before it exists.
    """
    _check(plan)
    taken = {*plan.arguments, *(i.name for i in plan.inputs), *_made_locally(plan)}
    variants = _op_names(plan, taken)
    lines = [f"def forward({', '.join(plan.arguments)}):"]
    lines += [f"    {i.name} = {i.source}.shape[{i.dim}]" for i in plan.inputs if i.kind == "size"]
    pieces: list[tuple[str, str]] = []
    dying = _deaths(plan)
    for index, step in enumerate(plan.steps):
        if index not in omitted:
            lines.append("    " + _statement(step, pieces, variants, taken))
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
    wrap: Callable[[int, PieceCallable], PieceCallable] | None = None,
) -> Callable[..., Any]:
    """Compile the generated source and bind it to loaded pieces, module state and ops.

    Args:
        stitched: What `stitch` made.
        pieces: Callable of each unique piece, by key: takes a list of tensors, returns a sequence of tensors.
        values: State and constants by plan name.
        resolve_op: Returns the callable of (qualified name, overload).
        wrap: Returns what to call in place of a piece, from its position and the piece; None for the piece itself.

    Returns:
        The stitched forward, with the signature of the plan's arguments.
    """
    scope: dict[str, Any] = {"__builtins__": {}, **values}
    for at, (name, key) in enumerate(stitched.pieces):
        scope[name] = pieces[key] if wrap is None else wrap(at, pieces[key])
    scope.update({name: resolve_op(op, overload) for name, op, overload in stitched.ops})
    if "torch." in stitched.source:
        import torch

        scope["torch"] = torch
    exec(compile(stitched.source, "<precast forward>", "exec"), scope)  # noqa: S102 - generated here from checked names
    forward: Callable[..., Any] = scope["forward"]
    return forward


def _op_names(plan: SplitPlan, taken: set[str]) -> dict[tuple[str, str], str]:
    """Name the ops: no two alike (`a::b_c` and `a_b::c`), and none like a value, which would hide it."""
    names = {}
    for op, overload in sorted({(s.op, s.overload) for s in plan.steps if isinstance(s, CallOp)}):
        name = f"op_{op.replace('::', '_')}" + (f"_{overload}" if overload != "default" else "")
        names[op, overload] = _fresh(name, taken)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _statement(step: Step, pieces: list[tuple[str, str]], ops: Mapping[tuple[str, str], str], taken: set[str]) -> str:
    match step:
        case RunPiece():
            name = _fresh(f"piece_{len(pieces)}", taken)
            pieces.append((name, step.key))
            call = f"{name}([{', '.join(step.inputs)}])"
            return f"{', '.join(step.outputs)}, = {call}" if step.outputs else call
        case CallOp():
            args = [_expression(a) for a in step.args] + [f"{k}={_expression(v)}" for k, v in step.kwargs]
            call = f"{ops[step.op, step.overload]}({', '.join(args)})"
            return call if step.output is None else f"{step.output} = {call}"
        case Compute():
            form = COMPUTE.get(step.function)
            if form is None:
                raise UnsupportedOpError(
                    f"`{step.function}` cannot run between splitting ops",
                    f"known there: {', '.join(COMPUTE)}",
                    "move the computation before the first or after the last of the consecutive splitting ops",
                )
            if len(step.args) != form.count("{"):
                raise CorruptError(f"`{step.function}` in the split plan has {len(step.args)} arguments", "", _AGAIN)
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
    if template.get("$number") in _NUMBERS:
        return _NUMBERS[template["$number"]]
    if "$dtype" in template and str(template["$dtype"]).isidentifier():
        return f"torch.{template['$dtype']}"
    if "$device" in template and str(template["$device"]).isidentifier():
        return f"torch.device({template['$device']!r})"
    raise CorruptError(f"the split plan holds an unknown form: {template}", "", _AGAIN)


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
    return () if step.output is None else (step.output,)


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
    """Refuse a plan whose names are not identifiers, each made once and before its use: it may come from a file."""
    for name in _names(plan):
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
            raise CorruptError(f"the split plan holds the name {name!r}", "it is not an identifier", _AGAIN)
    sizes = [i for i in plan.inputs if i.kind == "size"]
    if any(type(i.dim) is not int for i in sizes):
        raise CorruptError("the split plan holds a dim that is no number", "", _AGAIN)
    known = {*plan.arguments, *(i.name for i in plan.inputs)}
    _require([i.source for i in sizes], set(plan.arguments))
    for step in plan.steps:
        _require(_used(step), known)
        twice = [n for n in _made(step) if n in known or n in _RESERVED]
        if twice:
            raise CorruptError(f"the split plan makes `{twice[0]}` twice", "a value is named once", _AGAIN)
        known.update(_made(step))
    _require(list(references(plan.result)), known)


def _names(plan: SplitPlan) -> Iterator[Any]:
    yield from plan.arguments
    yield from (i.name for i in plan.inputs)
    for step in plan.steps:
        yield from _made(step)
        if isinstance(step, CallOp):
            yield from (step.overload, *str(step.op).split("::"), *(k for k, _ in step.kwargs))


def _require(used: Sequence[Any], known: Set[str]) -> None:
    for name in used:
        if not isinstance(name, str) or name not in known:
            raise CorruptError(f"the split plan uses `{name}` before it exists", "", _AGAIN)
