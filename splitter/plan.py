"""The split plan: which pieces and splitting ops run in which order, as plain data that needs no torch.

A value is named once and never rebound. Arguments of splitting ops and the module's result are templates: JSON in which
`{"$ref": name}` stands for a value, `{"$tuple": [...]}` and `{"$list": [...]}` for sequences, `{"$dict": [[k, v]...]}`
for a dict, `{"$dtype": name}` and `{"$device": type}` for torch's own constants, `{"$number": "inf"}` for
what JSON has no number for; all else is a literal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from precast.errors import CorruptError

__all__ = ["CallOp", "Compute", "GraphInput", "RunPiece", "SplitPlan", "Step", "Template", "references"]

Template: TypeAlias = Any

InputKind: TypeAlias = Literal["argument", "state", "size", "constant"]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A value that exists before the first step.

    Attributes:
        name: The value's name in the plan.
        kind: `argument` of forward, `state` of the module (parameter, buffer or attribute, by dotted path), `size` of
            an argument, or a baked tensor `constant`.
        source: The argument's name, the dotted path, or the constant's name.
        dim: The dim of the argument for `size`, else None.
        dtype: torch dtype's name, of a tensor.
        shape: Sizes of a tensor; None for a dynamic one.
        stride: Strides of a tensor of the module's state; compiled code relies on them.
    """

    name: str
    kind: InputKind
    source: str
    dim: int | None = None
    dtype: str = ""
    shape: tuple[int | None, ...] = ()
    stride: tuple[int, ...] = ()

    @property
    def layout(self) -> list[Any]:
        """The tensor's dtype, shape and stride as JSON; many inputs of a model share one."""
        return [self.dtype, list(self.shape), list(self.stride)]


@dataclass(frozen=True, slots=True)
class RunPiece:
    """Run one compiled piece: `key` names the unique piece, inputs and outputs name values."""

    key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallOp:
    """Call one splitting op, eagerly. `output` is None when its result is not used."""

    op: str
    overload: str
    args: tuple[Template, ...]
    kwargs: tuple[tuple[str, Template], ...]
    output: str | None


@dataclass(frozen=True, slots=True)
class Compute:
    """Python arithmetic, indexing or a tensor's size between splitting ops; `function` is one that `stitch` knows."""

    function: str
    args: tuple[Template, ...]
    output: str


Step: TypeAlias = RunPiece | CallOp | Compute


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The whole forward in straight-line form.

    Attributes:
        arguments: Names of forward's parameters, in order.
        inputs: Values that exist before the first step.
        steps: What runs, in order.
        result: Template of what forward returns.
        token_input: Name of the argument whose size is the token count, and the dim of it; None when nothing is
            dynamic.
    """

    arguments: tuple[str, ...]
    inputs: tuple[GraphInput, ...]
    steps: tuple[Step, ...]
    result: Template
    token_input: tuple[str, int] | None

    @property
    def pieces(self) -> tuple[RunPiece, ...]:
        """The compiled steps, in order."""
        return tuple(s for s in self.steps if isinstance(s, RunPiece))

    @property
    def unique_keys(self) -> tuple[str, ...]:
        """Keys of the unique pieces, in order of first use."""
        return tuple(dict.fromkeys(p.key for p in self.pieces))

    def uses(self, key: str) -> int:
        """Count how many pieces of the graph are the unique piece `key`."""
        return sum(p.key == key for p in self.pieces)

    def op_counts(self) -> dict[str, int]:
        """Count the calls of each splitting op."""
        counts: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, CallOp):
                counts[step.op] = counts.get(step.op, 0) + 1
        return dict(sorted(counts.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; keys of pieces and layouts of tensors stand there once."""
        keys = self.unique_keys
        layouts = list({repr(i.layout): i.layout for i in self.inputs}.values())
        return {
            "arguments": list(self.arguments),
            "pieces": list(keys),
            "layouts": layouts,
            "inputs": [[i.name, i.kind, i.source, i.dim, layouts.index(i.layout)] for i in self.inputs],
            "steps": [_step_json(s, keys) for s in self.steps],
            "result": self.result,
            "token_input": list(self.token_input) if self.token_input else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "SplitPlan":
        """Read a plan that `to_json` wrote.

        Raises:
            CorruptError: A field is missing or of the wrong type.
        """
        try:
            token, keys = data["token_input"], data["pieces"]
            return cls(
                arguments=tuple(data["arguments"]),
                inputs=tuple(_input_from(row, data["layouts"]) for row in data["inputs"]),
                steps=tuple(_step_from(row, keys) for row in data["steps"]),
                result=data["result"],
                token_input=(str(token[0]), int(token[1])) if token else None,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptError("the split plan cannot be read", str(error), "precompile the model again") from error


def references(template: Template) -> Iterator[str]:
    """Yield the names of the values that a template uses, in order."""
    if isinstance(template, dict):
        if "$ref" in template:
            yield template["$ref"]
        for tag in ("$tuple", "$list"):
            for item in template.get(tag, ()):
                yield from references(item)
        for _, value in template.get("$dict", ()):
            yield from references(value)


def _input_from(row: list[Any], layouts: list[Any]) -> GraphInput:
    name, kind, source, dim, layout = row
    dtype, shape, stride = layouts[layout]
    return GraphInput(name, kind, source, dim, dtype, tuple(shape), tuple(stride))


def _step_json(step: Step, keys: tuple[str, ...]) -> dict[str, Any]:
    match step:
        case RunPiece():
            return {"run": keys.index(step.key), "in": list(step.inputs), "out": list(step.outputs)}
        case CallOp():
            return {
                "call": step.op,
                "overload": step.overload,
                "args": list(step.args),
                "kwargs": [list(pair) for pair in step.kwargs],
                "out": step.output,
            }
        case Compute():
            return {"compute": step.function, "args": list(step.args), "out": step.output}


def _step_from(row: dict[str, Any], keys: list[str]) -> Step:
    if "run" in row:
        return RunPiece(keys[row["run"]], tuple(row["in"]), tuple(row["out"]))
    if "call" in row:
        kwargs = tuple((str(k), v) for k, v in row["kwargs"])
        return CallOp(row["call"], row["overload"], tuple(row["args"]), kwargs, row["out"])
    return Compute(row["compute"], tuple(row["args"]), row["out"])
