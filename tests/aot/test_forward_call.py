"""A call taken apart: tensors go in, all else is baked; the generated functions bind as forward itself does."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from precast.aot.forward_call import ForwardCall
from precast.errors import UsageError

MODULE = nn.Module()


class Tag(str):
    __slots__ = ()


def forward(
    this: Any, x: Tensor, /, y: Any = None, n: int = 3, *more: Any, scale: float = 0.5, z: Any = None, **rest: Any
) -> tuple[Any, ...]:
    return this, x, y, n, more, scale, z, rest


def call(*args: Any, **kwargs: Any) -> ForwardCall:
    return ForwardCall.of(forward, MODULE, *args, **kwargs)


def test_a_call_is_taken_apart() -> None:
    x, z = torch.zeros(2), torch.ones(2)
    made = call(x, None, z=z)
    assert made.tensors == {"x": x, "z": z}
    assert made.constants == {"y": None, "n": 3, "more": (), "scale": 0.5, "rest": {}}


def test_what_is_traced_takes_the_tensors_alone() -> None:
    x, z = torch.zeros(2), torch.ones(2)
    traced = call(x, None, 4, scale=float("inf"), z=z).traced_forward()
    assert traced(MODULE, x, z) == (MODULE, x, None, 4, (), float("inf"), z, {})
    assert traced.__code__.co_varnames[:3] == ("_precast_module", "x", "z")
    assert traced.__code__.co_filename != call(x).traced_forward().__code__.co_filename


@pytest.mark.parametrize("value", [1, -0.5, True, None, "a'b\n", torch.float32, (1, "a", torch.int8), float("-inf")])
def test_baked_values_reach_forward_and_no_other_value_is_taken(value: Any) -> None:
    x = torch.zeros(2)
    made = call(x, value)
    assert made.traced_forward()(MODULE, x)[2] == value
    entrance = made.entrance(lambda module, *tensors: tensors)
    assert entrance(MODULE, x, value) == (x,)
    for other in (2, 0.25, False, "b", torch.float16, (1,), x):
        with pytest.raises((TypeError, ValueError), match="`y` is"):
            entrance(MODULE, x, other)


@pytest.mark.parametrize(
    ("value", "equal"), [(0.0, -0.0), ((1, (0.0,)), (1, (-0.0,))), ((1,), (1.0,)), ((1,), (True,))]
)
def test_values_that_are_equal_and_compute_something_else_are_told_apart(value: Any, equal: Any) -> None:
    x = torch.zeros(2)
    for baked, other in ((value, equal), (equal, value)):
        entrance = call(x, baked).entrance(lambda module, *tensors: tensors)
        assert entrance(MODULE, x, baked) == (x,)
        with pytest.raises(ValueError, match="`y` is"):
            entrance(MODULE, x, other)


def test_a_number_of_another_type_is_another_value() -> None:
    entrance = call(torch.zeros(2), n=1).entrance(lambda module, x: x)
    for other in (True, 1.0):
        with pytest.raises(TypeError, match="compiled with 1"):
            entrance(MODULE, torch.zeros(2), n=other)


@pytest.mark.parametrize("value", [[torch.zeros(1)], {"a": 1}, object(), float("nan"), (1, [2])])
def test_what_can_neither_go_in_nor_be_baked_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="`y` is a"):
        call(torch.zeros(2), value)


def test_what_a_signature_collects_must_be_empty() -> None:
    with pytest.raises(UsageError, match="`more`"):
        call(torch.zeros(2), None, 3, 4)
    with pytest.raises(UsageError, match="`rest`"):
        call(torch.zeros(2), other=1)
    entrance = call(torch.zeros(2)).entrance(lambda module, x: x)
    with pytest.raises(ValueError, match="`rest`"):
        entrance(MODULE, torch.zeros(2), other=1)


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_arguments_are_bound_as_forward_binds_them(named: bool, with_n: bool, with_scale: bool, with_z: bool) -> None:
    x, y, z = torch.zeros(2), torch.ones(2), torch.ones(3)
    args = (x,) if named else (x, y)
    kwargs: dict[str, Any] = {"y": y} if named else {}
    kwargs |= ({"n": 3} if with_n else {}) | ({"scale": 0.5} if with_scale else {}) | ({"z": z} if with_z else {})
    made = call(x, y, z=z if with_z else None)
    got = made.entrance(lambda module, *tensors: tensors)(MODULE, *args, **kwargs)
    assert [id(t) for t in got] == [id(t) for t in (x, y, *((z,) if with_z else ()))]


def test_a_call_that_does_not_fit_the_signature_is_python_s_own_error() -> None:
    entrance = call(torch.zeros(2)).entrance(lambda module, x: x)
    with pytest.raises(TypeError, match="missing 1 required"):
        entrance(MODULE)
    with pytest.raises(TypeError):
        entrance(MODULE, x=torch.zeros(2))  # it is positional only
    with pytest.raises(TypeError, match="missing"):
        call()


def test_a_text_of_another_class_is_no_literal() -> None:
    with pytest.raises(UsageError):
        call(torch.zeros(2), Tag("a"))
