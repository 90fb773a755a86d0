"""The generated code: it does what the plan says, frees what it no longer needs, and runs nothing else."""

import gc
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from precast.errors import CorruptError, UnsupportedOpError
from precast.splitter.plan import CallOp, Compute, GraphInput, RunPiece, SplitPlan, Step, Template
from precast.splitter.stitch import COMPUTE, Stitched, bind, stitch

ADD, MANY = "a" * 64, "b" * 64
ARGUMENTS = ("x", "y")
INPUTS = (GraphInput("x", "argument", "x"), GraphInput("y", "argument", "y"), GraphInput("w", "state", "w"))


def add_up(inputs: Sequence[Any]) -> tuple[Any]:
    return (sum(inputs, 1),)


def spread(inputs: Sequence[Any]) -> tuple[Any, Any]:
    total = sum(inputs, 2)
    return total * 2, total - 3


def op(*args: Any, **kwargs: Any) -> Any:
    return sum(flat(args), 5) * 3 + sum(flat(kwargs.values()))


def flat(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [n for item in value for n in flat(item)]


FUNCTIONS: dict[str, Callable[..., Any]] = {"add": operator.add, "mul": operator.mul, "neg": operator.neg}
PIECES: dict[str, Callable[[list[Any]], Sequence[Any]]] = {ADD: add_up, MANY: spread}


def run(plan: SplitPlan, *args: Any, **values: Any) -> Any:
    return bind(stitch(plan), PIECES, values, lambda name, overload: op)(*args)


def plan_of(*steps: Step, result: Template, arguments: tuple[str, ...] = ARGUMENTS) -> SplitPlan:
    return SplitPlan(arguments, INPUTS, steps, result, None)


def interpret(plan: SplitPlan, *args: int, **values: int) -> Any:
    """Run a plan step by step in the plainest way, as the reference."""
    env: dict[str, Any] = {**dict(zip(plan.arguments, args, strict=True)), **values}

    def value(template: Template) -> Any:
        if not isinstance(template, dict):
            return template
        tag, inner = next(iter(template.items()))
        if tag == "$ref":
            return env[inner]
        if tag == "$dict":
            return {k: value(v) for k, v in inner}
        return (tuple if tag == "$tuple" else list)(value(v) for v in inner)

    for step in plan.steps:
        match step:
            case RunPiece():
                env.update(zip(step.outputs, PIECES[step.key]([env[n] for n in step.inputs]), strict=False))
            case CallOp():
                out = op(*[value(a) for a in step.args], **{k: value(v) for k, v in step.kwargs})
                env |= {step.output: out} if step.output else {}
            case Compute():
                numbers = [value(a) for a in step.args]
                env[step.output] = FUNCTIONS[step.function](*numbers)
    return value(plan.result)


@st.composite
def random_plans(draw: st.DrawFn) -> SplitPlan:
    known = ["x", "y", "w"]
    ref = st.deferred(lambda: st.builds(lambda n: {"$ref": n}, st.sampled_from(list(known))))
    steps: list[Step] = []
    for number in range(draw(st.integers(0, 8))):
        leaf = ref | st.integers(-9, 9)
        nested = leaf | st.builds(lambda x: {"$list": x}, st.lists(leaf, max_size=2))
        made: tuple[str, ...] = (f"v{number}",)
        match draw(st.sampled_from(["add", "many", "op", "compute"])):
            case "add":
                steps.append(RunPiece(ADD, tuple(draw(st.lists(st.sampled_from(list(known)), max_size=3))), made))
            case "many":
                made = (f"v{number}", f"u{number}")
                steps.append(RunPiece(MANY, tuple(draw(st.lists(st.sampled_from(list(known)), max_size=3))), made))
            case "op":
                args = tuple(draw(st.lists(nested, max_size=3)))
                output = draw(st.sampled_from([made[0], None]))
                made = made if output else ()
                steps.append(CallOp("ns::op", "default", args, (("scale", draw(leaf)),), output))
            case "compute":
                function = draw(st.sampled_from(["add", "mul", "neg"]))
                steps.append(Compute(function, tuple(draw(leaf) for _ in range(COMPUTE[function].count("{"))), made[0]))
        known.extend(made)
    last = st.one_of(ref, st.integers(), st.none())
    pairs = st.lists(st.tuples(st.text(max_size=3), last), max_size=2, unique_by=lambda p: p[0])
    result = draw(
        last
        | st.builds(lambda x: {"$tuple": x}, st.lists(last, max_size=3))
        | st.builds(lambda x: {"$dict": [list(p) for p in x]}, pairs)
    )
    return plan_of(*steps, result=result)


@given(random_plans(), st.integers(-99, 99), st.integers(-99, 99), st.integers(-99, 99))
def test_generated_code_equals_the_plan_run_step_by_step(plan: SplitPlan, x: int, y: int, w: int) -> None:
    assert run(plan, x, y, w=w) == interpret(plan, x, y, w=w)


def test_the_source_is_straight_line_python() -> None:
    plan = plan_of(
        RunPiece(ADD, ("x", "w"), ("a",)),
        CallOp("ns::op", "default", ({"$ref": "a"}, 3), (("scale", 0.5),), "b"),
        RunPiece(MANY, ("b",), ("c", "d")),
        result={"$ref": "c"},
    )
    assert stitch(plan) == Stitched(
        "def forward(x, y):\n"
        "    a, = piece_0([x, w])\n"
        "    b = op_ns_op(a, 3, scale=0.5)\n"
        "    del a\n"
        "    c, d, = piece_1([b])\n"
        "    del b, d\n"
        "    return c\n",
        (("piece_0", ADD), ("piece_1", MANY)),
        (("op_ns_op", "ns::op", "default"),),
    )


def test_a_size_is_read_from_its_argument() -> None:
    inputs = (GraphInput("x", "argument", "x"), GraphInput("n", "size", "x", 1))
    plan = SplitPlan(("x",), inputs, (), {"$ref": "n"}, None)
    assert run(plan, torch.zeros(2, 7)) == 7


def test_two_ops_with_one_name_when_joined_stay_apart() -> None:
    steps = [CallOp(n, "default", (), (), f"r{i}") for i, n in enumerate(("a::b_c", "a_b::c"))]
    plan = plan_of(*steps, CallOp("a::b", "c", (), (), "r2"), result={"$tuple": [{"$ref": f"r{i}"} for i in range(3)]})
    forward = bind(stitch(plan), {}, {}, lambda name, overload: lambda: f"{name}.{overload}")
    assert forward(1, 2) == ("a::b_c.default", "a_b::c.default", "a::b.c")


def test_values_may_be_named_like_the_generated_names() -> None:
    plan = plan_of(
        RunPiece(ADD, ("x",), ("op_ns_op",)),
        CallOp("ns::op", "default", ({"$ref": "op_ns_op"},), (), "piece_0"),
        RunPiece(ADD, ("piece_0",), ("piece_1",)),
        result={"$ref": "piece_1"},
    )
    assert run(plan, 4, 0) == interpret(plan, 4, 0)


class Value:
    """Something that can be seen to die."""


def test_each_value_dies_right_after_its_last_use() -> None:
    alive: weakref.WeakSet[Value] = weakref.WeakSet()
    seen: list[int] = []

    def make(inputs: list[Any]) -> tuple[Value]:
        inputs.clear()
        gc.collect()
        seen.append(len(alive))
        value = Value()
        alive.add(value)
        return (value,)

    chain = [RunPiece(ADD, (f"v{n - 1}",) if n else ("x",), (f"v{n}",)) for n in range(6)]
    plan = plan_of(*chain, result={"$ref": "v5"})
    result = bind(stitch(plan), {ADD: make}, {}, lambda n, o: op)(1, 2)
    assert seen == [0, 1, 1, 1, 1, 1]
    assert list(alive) == [result]


def test_a_call_can_be_left_out_and_values_die_where_they_died_with_it() -> None:
    plan = plan_of(
        RunPiece(MANY, ("x",), ("a", "b")),
        CallOp("ns::op", "default", ({"$ref": "a"}, {"$ref": "b"}), (), None),
        RunPiece(ADD, ("b",), ("c",)),
        result={"$ref": "c"},
    )
    assert stitch(plan, {1}).source == stitch(plan).source.replace("    op_ns_op(a, b)\n", "")
    assert "    del a\n" in stitch(plan, {1}).source


def test_each_piece_is_wrapped_at_its_position() -> None:
    plan = plan_of(
        RunPiece(ADD, ("x",), ("a",)), RunPiece(MANY, ("a",), ("b", "c")), RunPiece(ADD, ("c",), ("d",)),
        result={"$ref": "d"},
    )  # fmt: skip
    wrapped: list[tuple[int, Any]] = []
    called: list[int] = []

    def wrap(position: int, piece: Any) -> Any:
        wrapped.append((position, piece))

        def call(inputs: list[Any]) -> Any:
            called.append(position)
            return piece(inputs)

        return call

    forward = bind(stitch(plan), PIECES, {"w": 0}, lambda n, o: op, wrap)
    assert forward(4, 0) == run(plan, 4, 0)
    assert wrapped == [(0, PIECES[ADD]), (1, PIECES[MANY]), (2, PIECES[ADD])]
    assert called == [0, 1, 2]


def test_an_unused_output_dies_at_once() -> None:
    alive: weakref.WeakSet[Value] = weakref.WeakSet()

    def make(inputs: list[Any]) -> tuple[Value, Value]:
        made = Value(), Value()
        alive.update(made)
        return made

    def count(*_: Any) -> int:
        gc.collect()
        return len(alive)

    steps = (RunPiece(MANY, ("x",), ("a", "b")), CallOp("ns::op", "default", (), (), "n"))
    plan = plan_of(*steps, result={"$tuple": [{"$ref": "n"}, {"$ref": "a"}]})
    assert bind(stitch(plan), {MANY: make}, {}, lambda n, o: count)(1, 2)[0] == 1


@pytest.mark.parametrize(
    "container", [lambda r: {"$tuple": [r]}, lambda r: {"$list": [r]}, lambda r: {"$dict": [["k", r]]}]
)
def test_a_value_of_the_result_is_never_deleted(container: Callable[[Template], Template]) -> None:
    plan = plan_of(RunPiece(ADD, ("x",), ("a",)), RunPiece(ADD, ("a",), ("b",)), result=container({"$ref": "a"}))
    assert run(plan, 1, 2) == interpret(plan, 1, 2)
    assert "del a" not in stitch(plan).source


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"$tuple": []}, ()),
        ({"$tuple": [{"$ref": "x"}]}, (1,)),
        ({"$list": [{"$ref": "x"}, {"$tuple": [{"$ref": "y"}, 3]}]}, [1, (2, 3)]),
        ({"$dict": [["a", {"$ref": "y"}], ["b's \"\n", None]]}, {"a": 2, "b's \"\n": None}),
        ({"$dtype": "bfloat16"}, torch.bfloat16),
        ({"$device": "cpu"}, torch.device("cpu")),
        ({"$number": "inf"}, float("inf")),
        ({"$number": "-inf"}, float("-inf")),
    ],
)
def test_results_take_every_form(result: Template, expected: Any) -> None:
    found = run(plan_of(result=result), 1, 2)
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_a_number() -> None:
    found = run(plan_of(result={"$number": "nan"}), 1, 2)
    assert found != found


@pytest.mark.parametrize(
    "name", ["__import__('os')", "lambda", "a b", "a;b", "", "__builtins__", "1a", "a\n", "x.y", 5]
)
@pytest.mark.parametrize("place", ["argument", "input", "output", "op", "overload", "keyword", "call", "compute"])
def test_a_name_that_is_no_identifier_is_refused(name: Any, place: str) -> None:
    x = GraphInput("x", "argument", "x")
    call = CallOp("ns::op", "default", (), (), "r")
    plan = {
        "argument": SplitPlan((name,), (x,), (), None, None),
        "input": SplitPlan(("x",), (x, GraphInput(name, "state", "w")), (), None, None),
        "output": plan_of(RunPiece(ADD, ("x",), (name,)), result=None),
        "op": plan_of(replace(call, op=f"ns::{name}"), result=None),
        "overload": plan_of(replace(call, overload=name), result=None),
        "keyword": plan_of(replace(call, kwargs=((name, 1),)), result=None),
        "call": plan_of(replace(call, output=name), result=None),
        "compute": plan_of(Compute("neg", (1,), name), result=None),
    }[place]
    with pytest.raises(CorruptError):
        stitch(plan)


@pytest.mark.parametrize("name", ["__import__('os').getcwd()", "().__class__", "absent", 5, None])
@pytest.mark.parametrize("place", ["result", "nested result", "piece", "op", "keyword", "compute"])
def test_a_use_of_something_that_does_not_exist_is_refused(name: Any, place: str) -> None:
    ref = {"$ref": name}
    plan = {
        "result": plan_of(result=ref),
        "nested result": plan_of(result={"$tuple": [{"$dict": [["k", ref]]}]}),
        "piece": plan_of(RunPiece(ADD, (name,), ("a",)), result=None),
        "op": plan_of(CallOp("ns::op", "default", ({"$list": [ref]},), (), None), result=None),
        "keyword": plan_of(CallOp("ns::op", "default", (), (("k", ref),), None), result=None),
        "compute": plan_of(Compute("neg", (ref,), "a"), result=None),
    }[place]
    with pytest.raises(CorruptError):
        stitch(plan)


def test_a_value_used_before_its_step_is_refused() -> None:
    plan = plan_of(RunPiece(ADD, ("b",), ("a",)), RunPiece(ADD, ("x",), ("b",)), result=None)
    with pytest.raises(CorruptError, match="`b` before it exists"):
        stitch(plan)


@pytest.mark.parametrize("name", ["x", "w", "a"])
def test_a_value_made_twice_is_refused(name: str) -> None:
    plan = plan_of(RunPiece(ADD, ("x",), ("a",)), RunPiece(ADD, ("x",), (name,)), result={"$ref": "x"})
    with pytest.raises(CorruptError, match="twice"):
        stitch(plan)


@pytest.mark.parametrize("dim", ["0] or evil[0", None, True])
def test_a_dim_that_is_no_number_is_refused(dim: Any) -> None:
    inputs = (GraphInput("x", "argument", "x"), GraphInput("n", "size", "x", dim))
    with pytest.raises(CorruptError):
        stitch(SplitPlan(("x",), inputs, (), {"$ref": "n"}, None))


def test_a_size_of_something_that_is_no_argument_is_refused() -> None:
    inputs = (GraphInput("x", "argument", "x"), GraphInput("n", "size", "x.__class__", 0))
    with pytest.raises(CorruptError):
        stitch(SplitPlan(("x",), inputs, (), {"$ref": "n"}, None))


@pytest.mark.parametrize(
    "template", [{"$evil": 1}, {}, {"$dtype": "x.y"}, {"$device": "a')"}, {"$dtype": 5}, {"$number": "x"}]
)
def test_an_unknown_form_is_refused(template: Template) -> None:
    with pytest.raises(CorruptError):
        stitch(plan_of(result=template))


@pytest.mark.parametrize("text", ["'); evil(", "\\", '"""', "\n    evil()", "{0}"])
def test_a_string_stays_a_string(text: str) -> None:
    assert run(plan_of(result={"$tuple": [text, {"$dict": [[text, text]]}]}), 1, 2) == (text, {text: text})


@pytest.mark.parametrize("function", ["pow", "__import__", "{0}.__class__", ""])
def test_an_unknown_function_is_refused(function: str) -> None:
    with pytest.raises(UnsupportedOpError):
        stitch(plan_of(Compute(function, (1, 2), "a"), result=None))


def test_a_function_with_too_few_arguments_is_refused() -> None:
    with pytest.raises(CorruptError):
        stitch(plan_of(Compute("add", (1,), "a"), result=None))


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        ("add", (7, -2), 5), ("sub", (7, -2), 9), ("mul", (7, -2), -14), ("floordiv", (-7, 2), -4),
        ("mod", (-7, 2), 1), ("neg", (-3,), 3), ("size", ({"$ref": "x"}, 1), 5), ("getitem", ({"$ref": "y"}, -1), 9),
    ],
)  # fmt: skip
def test_each_function_computes_what_its_name_says(function: str, args: tuple[Any, ...], expected: int) -> None:
    plan = plan_of(Compute(function, args, "a"), result={"$ref": "a"})
    assert run(plan, torch.zeros(2, 5), (8, 9)) == expected


def test_the_generated_code_has_no_builtins() -> None:
    forward = bind(stitch(plan_of(result=None)), {}, {}, lambda n, o: op)
    assert forward.__globals__["__builtins__"] == {}
    assert set(forward.__globals__) == {"__builtins__", "forward"}


def test_torch_is_in_scope_only_where_the_plan_names_its_constants() -> None:
    with_dtype = bind(stitch(plan_of(result={"$dtype": "int64"})), {}, {}, lambda n, o: op)
    assert "torch" in with_dtype.__globals__


def test_forward_takes_its_arguments_by_name() -> None:
    forward = bind(stitch(plan_of(result={"$tuple": [{"$ref": "x"}, {"$ref": "y"}]})), {}, {}, lambda n, o: op)
    assert forward(y=1, x=2) == (2, 1)


def test_pieces_get_a_list_that_they_may_empty() -> None:
    """AOTInductor's boxed calls empty their list, so that inputs can be freed early."""

    def boxed(inputs: list[Tensor]) -> list[Any]:
        taken = inputs.pop()
        assert not inputs
        return [taken]

    plan = plan_of(RunPiece(ADD, ("x",), ("a",)), RunPiece(ADD, ("x",), ("b",)), result={"$ref": "b"})
    assert bind(stitch(plan), {ADD: boxed}, {}, lambda n, o: op)(3, 4) == 3
