"""The weight-read floor: what a step reads is counted once and as far as it is read."""

import pytest
import torch
from tests.aot import graphed
from tests.aot.support import SPAN, loaded, plan, state
from torch import nn

from precast.aot.floor import copy_bandwidth, floor_ms, read_bytes


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8)
        self.inner = nn.Linear(8, 4, bias=False)
        self.register_buffer("mask", torch.zeros(3, dtype=torch.int64))


TABLE = state("t", "table.weight", (100, 8), (8, 1))
WEIGHT = state("w", "inner.weight", (4, 8), (8, 1))
MASK = state("m", "mask", (3,), (1,), "int64")


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (7, 7), (500, 100)])
def test_of_an_embedding_table_one_row_a_token_counts_and_of_anything_else_all(tokens: int, rows: int) -> None:
    model = Model()
    bound = loaded(plan(states=(TABLE, WEIGHT, MASK)), {SPAN: list}, model).bound
    assert bound is not None
    assert read_bytes(bound, model, tokens) == rows * 8 * 4 + 4 * 8 * 4 + 3 * 8


def test_a_tensor_under_two_names_counts_once() -> None:
    model = Model()
    again = state("again", "inner.weight", (4, 8), (8, 1))
    bound = loaded(plan(states=(WEIGHT, again)), {SPAN: list}, model).bound
    assert bound is not None
    assert read_bytes(bound, model, 1) == 4 * 8 * 4


def test_state_that_only_a_splitting_op_takes_does_not_count() -> None:
    model = Model()
    made = plan(states=(WEIGHT, MASK))
    step = type(made.steps[0])(made.steps[0].key, ("x", "w"), ("r",))  # type: ignore[union-attr, call-arg, arg-type]
    bound = loaded(type(made)(made.arguments, made.inputs, (step,), made.result, made.token_input), {SPAN: list}, model)
    assert bound.bound is not None
    assert read_bytes(bound.bound, model, 1) == 4 * 8 * 4


def test_a_decoder_reads_all_its_weights_but_the_table() -> None:
    module = graphed.module()
    bound = graphed.bound()
    table = module.model.embed_tokens.weight
    numbers = sum(p.numel() for p in module.model.parameters()) - table.numel() + module.model.rotary.inv_freq_E.numel()
    assert read_bytes(bound, module, 2) == (numbers + 2 * table.shape[1]) * 4


def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert floor_ms(13_950_000_000, 4.28e12) == pytest.approx(3.259, abs=1e-3)
    assert copy_bandwidth("cpu") > 0
