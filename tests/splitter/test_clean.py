"""Cleaning a graph: sizes become numbers, assertions and pure leftovers go, effects stay."""

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.splitter.clean import clean


class Builder:
    """Builds a Dynamo-like graph by hand: nodes carry `example_value`."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        with self.mode:
            tokens = self.mode.shape_env.create_unbacked_symint()
            self.x = self.graph.placeholder("x")
            self.x.meta["example_value"] = torch.empty(tokens, 4)
        self.tokens = tokens

    def call(self, target: Any, *args: Any, example: Any = None, **kwargs: Any) -> fx.Node:
        make = self.graph.call_method if isinstance(target, str) else self.graph.call_function
        node = make(target, args, kwargs)
        node.meta["example_value"] = example
        return node

    def tensor(self, *shape: Any) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape)

    def finish(self, *outputs: fx.Node) -> list[fx.Node]:
        self.graph.output(outputs)
        clean(self.graph)
        return list(self.graph.nodes)


def targets(nodes: list[fx.Node]) -> list[str]:
    return [str(n.target) for n in nodes if n.op not in ("placeholder", "output")]


def only(nodes: list[fx.Node], target: str) -> fx.Node:
    (found,) = [n for n in nodes if str(n.target) == target]
    return found


@pytest.fixture
def b() -> Builder:
    return Builder()


def whole_size(b: Builder, form: str) -> fx.Node:
    example = (b.tokens, 4)
    return b.call("size", b.x, example=example) if form == "size()" else b.call(getattr, b.x, "shape", example=example)


@pytest.mark.parametrize("form", ["size()", "shape"])
def test_a_whole_size_becomes_one_value_a_dim(b: Builder, form: str) -> None:
    size = whole_size(b, form)
    nodes = b.finish(b.call("view", b.x, size, example=b.tensor(b.tokens, 4)))
    first, second = only(nodes, "view").args[1]
    assert str(first.target) == "aten.sym_size.int"
    assert first.args == (b.x, 0)
    assert second == 4
    assert not {"size", "<built-in function getattr>"} & set(targets(nodes))


@pytest.mark.parametrize(("index", "expected"), [(1, 4), (-1, 4), (slice(1, None), (4,)), (slice(0, 0), ())])
def test_an_item_of_a_size_becomes_that_dim(b: Builder, index: Any, expected: Any) -> None:
    item = b.call(operator.getitem, b.call("size", b.x, example=(b.tokens, 4)), index)
    nodes = b.finish(b.call("reshape", b.x, -1, item, example=b.tensor(b.tokens, 4)))
    assert only(nodes, "reshape").args[2] == expected
    assert targets(nodes) == ["reshape"]


def test_a_negative_index_finds_the_dynamic_dim(b: Builder) -> None:
    item = b.call(operator.getitem, b.call("size", b.x, example=(b.tokens, 4)), -2, example=b.tokens)
    nodes = b.finish(b.call("view", b.x, item, 2, 2, example=b.tensor(b.tokens, 2, 2)))
    assert only(nodes, "aten.sym_size.int").args == (b.x, 0)


@pytest.mark.parametrize("dim", [-2, 0])
def test_a_size_of_one_dim_has_a_positive_dim(b: Builder, dim: int) -> None:
    nodes = b.finish(b.call("view", b.x, b.call("size", b.x, dim, example=b.tokens), 4, example=b.tensor(b.tokens, 4)))
    assert only(nodes, "aten.sym_size.int").args == (b.x, 0)


def test_a_size_of_one_static_dim_becomes_a_literal(b: Builder) -> None:
    nodes = b.finish(b.call("view", b.x, -1, b.call("size", b.x, -1, example=4), example=b.tensor(b.tokens, 4)))
    assert only(nodes, "view").args == (b.x, -1, 4)


def test_a_size_is_found_inside_keywords_and_nested_lists(b: Builder) -> None:
    size = b.call("size", b.x, example=(b.tokens, 4))
    value = b.tensor(b.tokens, 4)
    nodes = b.finish(
        b.call(torch.zeros, example=value, size=size),
        b.call(torch.full, [size, [size]], 1.0, example=value),
    )
    made = only(nodes, "aten.sym_size.int")
    assert only(nodes, str(torch.zeros)).kwargs == {"size": (made, 4)}
    assert only(nodes, str(torch.full)).args[0] == [(made, 4), [(made, 4)]]


def test_a_size_of_a_value_stands_right_after_it(b: Builder) -> None:
    """So that it falls into the piece that makes the value, not between two splitting ops."""
    y = b.call(torch.relu, b.x, example=b.tensor(b.tokens, 4))
    z = b.call(torch.neg, y, example=b.tensor(b.tokens, 4))
    nodes = b.finish(b.call("view", z, b.call("size", y, example=(b.tokens, 4)), example=b.tensor(b.tokens, 4)))
    assert nodes.index(only(nodes, "aten.sym_size.int")) == nodes.index(y) + 1


@pytest.mark.parametrize(
    "target",
    [
        torch._check,
        torch.ops.aten._assert_scalar.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch._C._log_api_usage_once,
    ],
)
def test_an_assertion_is_dropped_with_what_it_asked(b: Builder, target: Any) -> None:
    condition = b.call(operator.ge, b.call("size", b.x, 0, example=b.tokens), 1, example=True)
    b.call(target, condition)
    nodes = b.finish(b.call(torch.relu, b.x, example=b.tensor(b.tokens, 4)))
    assert targets(nodes) == [str(torch.relu)]


@pytest.mark.parametrize("method", ["add_", "copy_", "index_put_", "zero_"])
def test_an_in_place_method_without_users_stays(b: Builder, method: str) -> None:
    b.call(method, b.x, example=b.tensor(b.tokens, 4))
    assert targets(b.finish(b.x)) == [method]


@pytest.mark.parametrize("target", [operator.iadd, operator.setitem, torch.relu_, torch.ops.aten.add_.Tensor])
def test_an_in_place_function_without_users_stays(b: Builder, target: Any) -> None:
    b.call(target, b.x, 0, example=b.tensor(b.tokens, 4))
    assert len(targets(b.finish(b.x))) == 1


def test_an_operator_on_tensors_is_not_called_pure_arithmetic(b: Builder) -> None:
    """Only numbers are known to be pure; a tensor's `__mul__` may be anything."""
    b.call(operator.mul, b.x, 2, example=b.tensor(b.tokens, 4))
    assert targets(b.finish(b.x)) == [str(operator.mul)]


def test_dead_arithmetic_on_sizes_goes_all_the_way_up(b: Builder) -> None:
    tokens = b.call("size", b.x, 0, example=b.tokens)
    b.call(operator.add, b.call(operator.mul, tokens, 2, example=2 * b.tokens), 1, example=2 * b.tokens + 1)
    assert targets(b.finish(b.x)) == []
