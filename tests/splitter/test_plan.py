"""The plan as data: what goes out comes in again, and what is damaged is refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.errors import CorruptError
from precast.splitter.plan import CallOp, Compute, GraphInput, RunPiece, SplitPlan, Step, references

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
literals = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
templates = st.recursive(
    literals | st.builds(lambda n: {"$ref": n}, names) | st.just({"$dtype": "float32"}) | st.just({"$device": "cpu"}),
    lambda inner: (
        st.builds(lambda x: {"$tuple": x}, st.lists(inner, max_size=3))
        | st.builds(lambda x: {"$list": x}, st.lists(inner, max_size=3))
        | st.builds(lambda x: {"$dict": [list(p) for p in x]}, st.lists(st.tuples(st.text(), inner), max_size=3))
    ),
    max_leaves=6,
)
dims = st.none() | st.integers(1, 9)
inputs = st.builds(
    GraphInput,
    names,
    st.sampled_from(["argument", "state", "size", "constant"]),
    names,
    dims,
    st.sampled_from(["", "float32", "int64"]),
    st.lists(dims, max_size=3).map(tuple),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
steps = st.one_of(
    st.builds(RunPiece, names, st.lists(names, max_size=3).map(tuple), st.lists(names, max_size=3).map(tuple)),
    st.builds(
        CallOp,
        st.builds("{}::{}".format, names, names),
        names,
        st.lists(templates, max_size=3).map(tuple),
        st.lists(st.tuples(names, templates), max_size=2).map(tuple),
        st.none() | names,
    ),
    st.builds(Compute, names, st.lists(templates, max_size=2).map(tuple), names),
)
plans = st.builds(
    SplitPlan,
    st.lists(names, max_size=3, unique=True).map(tuple),
    st.lists(inputs, max_size=3).map(tuple),
    st.lists(steps, max_size=6).map(tuple),
    templates,
    st.none() | st.tuples(names, st.integers(0, 3)),
)


@given(plans)
def test_a_plan_survives_json(plan: SplitPlan) -> None:
    assert SplitPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def small_plan() -> SplitPlan:
    steps: tuple[Step, ...] = (
        RunPiece("a" * 64, ("x",), ("y", "z")),
        CallOp("ns::op", "default", ({"$ref": "y"},), (("scale", 2.0),), "w"),
        Compute("getitem", ({"$ref": "w"}, 0), "v"),
        RunPiece("b" * 64, ("v", "z"), ("r",)),
        RunPiece("a" * 64, ("r",), ("s", "t")),
    )
    return SplitPlan(("x",), (GraphInput("x", "argument", "x"),), steps, {"$ref": "t"}, ("x", 0))


@pytest.mark.parametrize("field", ["arguments", "inputs", "steps", "result", "token_input"])
def test_a_missing_field_is_corrupt(field: str) -> None:
    data = small_plan().to_json()
    del data[field]
    with pytest.raises(CorruptError):
        SplitPlan.from_json(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", None),
        ("inputs", [["x", "argument"]]),
        ("inputs", [7]),
        ("steps", [{"run": "a"}]),
        ("steps", [{"nothing": 1}]),
        ("steps", [3]),
        ("steps", [{"call": "ns::op", "overload": "default", "args": [], "kwargs": [["one"]], "out": None}]),
        ("steps", None),
        ("token_input", ["x"]),
        ("token_input", ["x", "zero"]),
    ],
)
def test_a_field_of_the_wrong_form_is_corrupt(field: str, value: Any) -> None:
    with pytest.raises(CorruptError):
        SplitPlan.from_json({**small_plan().to_json(), field: value})


@pytest.mark.parametrize("data", [None, [], "plan", 3])
def test_what_is_no_object_is_corrupt(data: Any) -> None:
    with pytest.raises(CorruptError):
        SplitPlan.from_json(data)


def test_unique_keys_come_in_order_of_first_use() -> None:
    plan = small_plan()
    assert plan.unique_keys == ("a" * 64, "b" * 64)
    assert [len(plan.pieces), plan.uses("a" * 64), plan.uses("b" * 64), plan.uses("c")] == [3, 2, 1, 0]


def test_op_counts_count_each_splitting_op() -> None:
    assert small_plan().op_counts() == {"ns::op": 1}


def test_references_finds_names_in_every_container() -> None:
    template = {"$tuple": [{"$ref": "a"}, {"$list": [1, {"$ref": "b"}]}, {"$dict": [["k", {"$ref": "c"}]]}, "d"]}
    assert list(references(template)) == ["a", "b", "c"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_argument_keeps_its_bits(value: float) -> None:
    plan = SplitPlan((), (), (CallOp("ns::op", "default", (value,), (), None),), None, None)
    (step,) = SplitPlan.from_json(json.loads(json.dumps(plan.to_json()))).steps
    assert isinstance(step, CallOp)
    assert math.copysign(1, step.args[0]) == math.copysign(1, value)
    assert step.args[0] == value
