"""Cutting at the splitting ops."""

import operator
from typing import Any

import pytest
import torch
from tests.models import ATTEND, PAIR, WRITE
from torch import fx

from precast.errors import SplittingOpError
from precast.splitter.partition import Group, partition

OPS = torch.ops.precast_tests


class Builder:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self.graph.placeholder("x")
        self.x.meta["example_value"] = torch.zeros(2, 4)

    def __call__(self, target: Any, *args: Any, value: Any = "tensor") -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["example_value"] = torch.zeros(2, 4) if isinstance(value, str) else value
        return node

    def cut(self, *ops: str) -> list[tuple[bool, list[str]]]:
        self.graph.output(())
        return [(g.splitting, [n.name for n in g.nodes]) for g in partition(self.graph, ops)]


@pytest.fixture
def b() -> Builder:
    return Builder()


def test_each_splitting_op_divides_what_is_before_from_what_is_after(b: Builder) -> None:
    b(torch.neg, b(OPS.attend, b(torch.relu, b.x)))
    assert b.cut(ATTEND) == [(False, ["relu"]), (True, ["attend"]), (False, ["neg"])]


def test_without_splitting_ops_all_is_one_piece(b: Builder) -> None:
    b(torch.neg, b(OPS.attend, b.x))
    assert b.cut() == [(False, ["attend", "neg"])]


def test_consecutive_splitting_ops_share_a_group(b: Builder) -> None:
    b(OPS.attend, b.x)
    b(OPS.write, b.x, b.x, value=None)
    b(torch.relu, b.x)
    assert b.cut(ATTEND, WRITE) == [(True, ["attend", "write"]), (False, ["relu"])]


def test_splitting_ops_may_come_first_and_last(b: Builder) -> None:
    b(OPS.attend, b(torch.relu, b(OPS.attend, b.x)))
    assert [s for s, _ in b.cut(ATTEND)] == [True, False, True]


def test_the_items_of_a_tuple_stay_with_their_source(b: Builder) -> None:
    both = b(OPS.pair, b.x, value=(torch.zeros(2), torch.zeros(2)))
    relu = b(torch.relu, b.x)
    b(operator.getitem, both, 0)
    b(torch.add, relu, b(operator.getitem, both, 1))
    assert b.cut(PAIR) == [(True, ["pair", "getitem", "getitem_1"]), (False, ["relu", "add"])]


def test_the_items_of_a_piece_s_tuple_stay_in_the_piece(b: Builder) -> None:
    both = b(torch.split, b.x, 2, value=(torch.zeros(2), torch.zeros(2)))
    b(OPS.attend, b.x)
    b(operator.getitem, both, 1)
    assert b.cut(ATTEND) == [(False, ["split", "getitem"]), (True, ["attend"])]


def test_indexing_a_tensor_keeps_its_place(b: Builder) -> None:
    """It reads memory: done earlier, it would miss what a splitting op writes in between."""
    y = b(torch.relu, b.x)
    out = b(OPS.write, y, b.x, value=None)
    row = b(operator.getitem, y, 0)
    assert b.cut(WRITE) == [(False, ["relu"]), (True, [out.name]), (False, [row.name])]


def test_indexing_the_result_of_a_splitting_op_is_a_piece_of_its_own(b: Builder) -> None:
    b(operator.getitem, b(OPS.attend, b.x), slice(0, 1))
    assert b.cut(ATTEND) == [(True, ["attend"]), (False, ["getitem"])]


@pytest.mark.parametrize("target", [torch.empty, torch.empty_like, torch.ops.aten.empty.memory_format])
def test_a_piece_that_only_allocates_joins_the_piece_before(b: Builder, target: Any) -> None:
    b(OPS.attend, b(torch.relu, b.x))
    room = b(target, 2, 4)
    b(OPS.write, room, b.x, value=None)
    assert b.cut(ATTEND, WRITE) == [(False, ["relu", room.name]), (True, ["attend"]), (True, ["write"])]


def test_an_allocation_that_needs_a_later_value_stays(b: Builder) -> None:
    mixed = b(OPS.attend, b(torch.relu, b.x))
    b(OPS.attend, b(torch.empty_like, mixed))
    assert [s for s, _ in b.cut(ATTEND)] == [False, True, False, True]


def test_an_allocation_with_work_beside_it_stays(b: Builder) -> None:
    b(OPS.attend, b(torch.relu, b.x))
    b(torch.empty, 2)
    b(torch.neg, b.x)
    assert b.cut(ATTEND)[2] == (False, ["empty", "neg"])


def test_a_first_piece_that_only_allocates_stays(b: Builder) -> None:
    b(OPS.attend, b(torch.empty, 2))
    assert b.cut(ATTEND) == [(False, ["empty"]), (True, ["attend"])]


def test_one_overload_can_be_named(b: Builder) -> None:
    b(torch.ops.aten.add.Scalar, b(torch.ops.aten.add.Tensor, b.x, b.x), 1)
    assert b.cut("aten::add.Scalar") == [(False, ["add_tensor"]), (True, ["add_scalar"])]


def test_a_name_without_overload_means_all_of_them(b: Builder) -> None:
    b(torch.ops.aten.add.Scalar, b(torch.ops.aten.add.Tensor, b.x, b.x), 1)
    assert [s for s, _ in b.cut("aten::add")] == [True]


def test_an_absent_op_is_refused_with_the_custom_ops_that_occur(b: Builder) -> None:
    b(OPS.attend, b(torch.ops.aten.relu.default, b.x))
    with pytest.raises(SplittingOpError) as caught:
        b.cut(ATTEND, "precast_tests::attnd")
    assert "precast_tests::attnd" in caught.value.what
    assert caught.value.why.endswith(f": {ATTEND}")


def test_an_absent_op_in_a_graph_of_torch_s_own_ops_says_none(b: Builder) -> None:
    b(torch.ops.aten.relu.default, b.x)
    with pytest.raises(SplittingOpError, match="none"):
        b.cut(ATTEND)


def test_the_order_of_effects_is_kept(b: Builder) -> None:
    names = [b(t, b.x).name for t in (torch.relu_, OPS.attend, torch.neg_, torch.abs_, OPS.attend, torch.exp_)]
    assert [n for _, group in b.cut(ATTEND) for n in group] == names


def test_groups_are_values() -> None:
    assert Group(True, ()) == Group(True, ())
