"""Export: a piece with tensors in and out, for one range, stored and read again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import ATTEND, as_exported, as_is, make_spec, small, split_spec
from torch import Tensor

from precast.aot.torch_seams.export import export_piece, program_bytes, program_from
from precast.splitter.split import Piece

OPS = torch.ops.precast_tests


def pieces(forward: Callable[..., Any], ops: tuple[str, ...] = (ATTEND,)) -> tuple[Piece, ...]:
    return split_spec(make_spec(small(forward), ops)).pieces


def doubled(self: Any, x: Tensor) -> Tensor:
    twice = torch.cat([x, x])
    y = OPS.attend(x)
    return twice.sum() + y + torch.cat([y, y]).mul(twice)[: y.shape[0]]


def inputs_of(program: Any) -> list[Tensor]:
    given = program.graph_signature.user_inputs
    return [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in given]


@pytest.mark.parametrize("span", [(1, 512), (2, 64), (65, 512)])
def test_a_range_keeps_the_token_count_symbolic(span: tuple[int, int]) -> None:
    program = program_from(program_bytes(export_piece(pieces(lambda self, x: x * 2, ())[0].graph_module, *span)))
    (x,) = inputs_of(program)
    assert isinstance(x.shape[0], torch.SymInt)
    (bounds,) = program.range_constraints.values()
    assert int(bounds.upper) == span[1]


def test_a_single_size_is_static() -> None:
    program = program_from(program_bytes(export_piece(pieces(lambda self, x: x * 2, ())[0].graph_module, 8, 8)))
    assert [tuple(x.shape) for x in inputs_of(program)] == [(8, 4)]


def test_a_derived_size_keeps_its_relation_to_the_token_count() -> None:
    last = pieces(doubled)[-1]
    program = program_from(program_bytes(export_piece(last.graph_module, 1, 512)))
    sizes = {str(x.shape[0]) for x in inputs_of(program)}
    (symbol,) = {str(s) for s in program.range_constraints}
    assert sizes == {symbol, f"2*{symbol}"}


def test_the_example_inputs_fit_the_range_also_for_derived_sizes() -> None:
    program = program_from(program_bytes(export_piece(pieces(doubled)[-1].graph_module, 3, 5)))
    shapes = sorted(tuple(x.shape) for x in program.example_inputs[0])
    assert shapes == [(5, 4), (10, 4)]


def test_a_size_that_depends_on_data_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return OPS.attend(x).sum() + rows.sum()

    with pytest.raises(ValueError, match="depends on data"):
        [export_piece(p.graph_module, 1, 512) for p in pieces(forward)]


def test_a_piece_that_only_writes_can_be_stored() -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = OPS.attend(y)
        y.add_(z)
        return OPS.attend(z), y

    piece = pieces(forward)[-1]
    assert len(as_is(piece)([torch.ones(3, 4), torch.ones(3, 4)])) == 0
    y, z = torch.ones(3, 4), torch.ones(3, 4)
    as_exported(piece)([y, z])
    assert sorted([y.sum().item(), z.sum().item()]) == [12, 24]


def test_a_constant_in_a_piece_is_no_input_when_it_is_read_again() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = OPS.attend(x)
        y[:, 0] = 7
        return y * torch.tensor([1.0, 2.0, 3.0, 4.0])

    (piece,) = pieces(forward)
    program = program_from(program_bytes(export_piece(piece.graph_module, 1, 512)))
    assert len(program.example_inputs[0]) == 1
    x = torch.ones(2, 4)
    assert as_exported(piece)([x])[0].tolist() == [[7.0, 2.0, 3.0, 4.0]] * 2


def test_a_piece_keeps_its_graph_when_it_is_exported() -> None:
    (piece,) = pieces(lambda self, x: x * 2, ())
    before = str(piece.graph_module.graph)
    export_piece(piece.graph_module, 1, 512)
    assert str(piece.graph_module.graph) == before
    assert all("example_value" in n.meta for n in piece.graph_module.graph.nodes if n.op == "placeholder")


def test_stored_programs_hold_no_path_of_this_repository() -> None:
    (piece,) = pieces(lambda self, x: x * 2, ())
    assert __file__.encode() not in program_bytes(export_piece(piece.graph_module, 1, 512))
