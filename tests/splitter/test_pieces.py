"""Lifting pieces: tensors in, tensors out, and every number computed inside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import ATTEND, make_spec, small, split_spec, trace_spec
from torch import Tensor, fx

from precast.errors import UnsupportedOpError
from precast.splitter.clean import clean
from precast.splitter.partition import partition
from precast.splitter.pieces import RawPiece, lift

OPS = torch.ops.precast_tests


def lifted(forward: Callable[..., Any]) -> list[RawPiece | None]:
    traced = trace_spec(make_spec(small(forward)))
    graph = traced.graph_module.graph
    clean(graph)
    arguments = [n for n in graph.nodes if n.name in traced.inputs and traced.inputs[n.name].kind == "argument"]
    return [lift(g, arguments) for g in partition(graph, (ATTEND,)) if not g.splitting]


def placeholders(piece: RawPiece | None) -> list[fx.Node]:
    assert piece is not None
    return [n for n in piece.graph_module.graph.nodes if n.op == "placeholder"]


def sizes(piece: RawPiece | None) -> list[fx.Node]:
    assert piece is not None
    return [n for n in piece.graph_module.graph.nodes if n.target is torch.ops.aten.sym_size.int]


def uses_size(self: Any, x: Tensor) -> Tensor:
    tokens = x.shape[0]
    h = x.view(tokens, 2, 2) * tokens
    mixed = OPS.attend(h)
    return mixed.view(tokens, 4) + torch.arange(tokens)[:, None]


def uses_derived_size(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    double = torch.cat([x, x])
    mixed = OPS.attend(x)
    return torch.arange(2 * x.shape[0]) + double.shape[0] + mixed.sum(), double


def makes_numbers_from_nothing(self: Any, x: Tensor) -> Tensor:
    mixed = OPS.attend(x)
    positions = torch.arange(x.shape[0])
    return OPS.attend(positions[:, None] * 1.0) + mixed


@pytest.mark.parametrize("forward", [uses_size, uses_derived_size, makes_numbers_from_nothing])
def test_no_number_crosses_a_border(forward: Callable[..., Any]) -> None:
    for piece in lifted(forward):
        assert piece is not None
        assert all(isinstance(n.meta["example_value"], Tensor) for n in placeholders(piece))
        assert all(isinstance(n.meta["example_value"], Tensor) for n in piece.outputs)


def test_a_size_is_read_from_an_input_of_the_piece() -> None:
    _, second = lifted(uses_size)
    (size,) = sizes(second)
    assert size.args == (placeholders(second)[0], 0)
    assert [n.name for n in second.inputs] == ["mixed"]  # type: ignore[union-attr]


def test_a_derived_size_is_computed_inside() -> None:
    _, second = lifted(uses_derived_size)
    assert second is not None
    module = second.graph_module
    for tokens in (1, 3):
        examples = {
            "x": torch.zeros(tokens, 4), "double": torch.zeros(2 * tokens, 4), "mixed": torch.zeros(tokens, 4)
        }  # fmt: skip
        inputs = [examples.get(n.name, torch.zeros(tokens, 4)) for n in second.inputs]
        assert module(*inputs)[0].shape == (2 * tokens,)


def test_a_piece_with_no_tensor_of_that_size_takes_an_argument() -> None:
    first, _ = lifted(makes_numbers_from_nothing)
    assert first is not None
    assert [n.op for n in first.inputs] == ["placeholder"]
    assert first.graph_module(torch.zeros(5, 4))[0].shape == (5, 1)


def test_a_number_that_depends_on_data_does_not_cross() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        count = int(x.sum())
        mixed = OPS.attend(x)
        return mixed * count

    with pytest.raises(UnsupportedOpError, match="cannot be computed inside a piece"):
        split_spec(make_spec(small(forward)))


def test_a_piece_without_outputs_or_effects_is_dropped() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        mixed = OPS.attend(x)
        mixed * 2
        return OPS.attend(x)

    assert lifted(forward) == [None]


def add_in_place(t: Tensor, other: Tensor) -> None:
    t.add_(other)


def set_an_item(t: Tensor, other: Tensor) -> None:
    t[:, 0] = other[:, 1]


def write_to_out(t: Tensor, other: Tensor) -> None:
    torch.add(other, 1.0, out=t)


def use_the_inplace_flag(t: Tensor, other: Tensor) -> None:
    torch.nn.functional.relu(t, inplace=True)


def call_a_mutating_op(t: Tensor, other: Tensor) -> None:
    OPS.write(t, other)


def call_a_mutating_overload(t: Tensor, other: Tensor) -> None:
    OPS.write.default(t, other)


def floor_in_place(t: Tensor, other: Tensor) -> None:
    t //= 2


@pytest.mark.parametrize(
    "write",
    [
        add_in_place, set_an_item, write_to_out, use_the_inplace_flag, call_a_mutating_op, call_a_mutating_overload,
        floor_in_place,
    ],
)  # fmt: skip
def test_a_piece_that_only_writes_is_kept(write: Callable[[Tensor, Tensor], None]) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        mixed = OPS.attend(y)
        write(y, mixed)
        return OPS.attend(mixed), y

    _, second = lifted(forward)
    assert second is not None
    values = {"y": torch.full((3, 4), -5.0), "mixed": torch.full((3, 4), -7.0)}
    before = values["y"].clone()
    second.graph_module(*[values[n.name] for n in second.inputs])
    assert not torch.equal(values["y"], before)


def test_a_write_to_one_of_two_inputs_that_share_memory_is_refused() -> None:
    """Export makes a piece functional, so the write would not be seen through the other input."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        flat = y.view(-1)
        mixed = OPS.attend(y)
        flat.add_(1.0)
        return OPS.attend(y * 3) + mixed

    with pytest.raises(UnsupportedOpError, match="share memory"):
        split_spec(make_spec(small(forward)))


def test_inputs_that_share_memory_may_be_read_together() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        rows = y.view(-1)
        mixed = OPS.attend(y)
        return y * rows.sum() + mixed

    assert len(lifted(forward)) == 2


def test_placeholders_come_first_and_are_numbered() -> None:
    for piece in lifted(uses_derived_size):
        assert piece is not None
        nodes = list(piece.graph_module.graph.nodes)
        count = len(placeholders(piece))
        assert [n.name for n in nodes[:count]] == [f"i{i}" for i in range(count)]
        piece.graph_module.graph.lint()
