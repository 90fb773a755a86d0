"""What the splitter asks about a node."""

import operator
from typing import Any

import pytest
import torch
from tests.models import ATTEND
from torch import fx

from precast.splitter.nodes import example, is_allocation, is_getitem, is_size_like, op_name, op_overload, target_name


def node(target: Any, value: Any = None) -> fx.Node:
    graph = fx.Graph()
    made = graph.call_method(target) if isinstance(target, str) else graph.call_function(target)
    made.meta["example_value"] = value
    return made


@pytest.mark.parametrize(
    ("target", "name", "overload", "full"),
    [
        (torch.ops.precast_tests.attend, ATTEND, "default", f"{ATTEND}.default"),
        (torch.ops.precast_tests.attend.default, ATTEND, "default", f"{ATTEND}.default"),
        (torch.ops.aten.add.Tensor, "aten::add", "Tensor", "aten::add.Tensor"),
        (torch.ops.aten.sym_size.int, "aten::sym_size", "int", "aten::sym_size.int"),
    ],
)
def test_an_op_is_named_by_namespace_and_overload(target: Any, name: str, overload: str, full: str) -> None:
    made = node(target)
    assert (op_name(made), op_overload(made), target_name(made)) == (name, overload, full)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.relu, "torch.relu"),
        (torch.empty, "torch.empty"),
        (operator.add, "operator.add"),
        (torch.nn.functional.silu, "torch.nn.functional.silu"),
        ("view", "view"),
    ],
)
def test_a_function_is_named_by_module_and_name(target: Any, name: str) -> None:
    assert target_name(node(target)) == name
    assert op_name(node(target)) is None


@pytest.mark.parametrize(
    "target",
    [
        torch.empty, torch.empty_like, torch.empty_strided, torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default, "new_empty",
    ],
)  # fmt: skip
def test_an_allocation_is_recognized_in_each_form(target: Any) -> None:
    assert is_allocation(node(target))


@pytest.mark.parametrize("target", [torch.zeros, torch.relu, "new_zeros", torch.ops.aten.zeros.default])
def test_what_also_writes_is_no_allocation(target: Any) -> None:
    assert not is_allocation(node(target))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, True), (0.5, True), (True, True), ((1, 2), True), (torch.zeros(2), False), (None, False),
     ((torch.zeros(1), 2), False)],
)  # fmt: skip
def test_numbers_are_told_from_tensors(value: Any, expected: bool) -> None:
    assert is_size_like(node(torch.relu, value)) is expected


def test_an_item_is_recognized() -> None:
    assert is_getitem(node(operator.getitem))
    assert not is_getitem(node("__getitem__"))


def test_the_value_of_an_exported_node_counts_too() -> None:
    made = fx.Graph().call_function(torch.relu)
    made.meta["val"] = 3
    assert example(made) == 3
