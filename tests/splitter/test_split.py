"""Splitting: the pieces and the plan together compute what the module computes, whatever the module looks like."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models import (
    ATTEND,
    PAIR,
    RICH,
    TOKEN_COUNTS,
    WRITE,
    Layers,
    as_exported,
    assert_same_as_module,
    make_spec,
    resolve_op,
    small,
    split_spec,
    stitched_forward,
)
from torch import Tensor

from precast.errors import SplittingOpError, UnsupportedOpError
from precast.splitter.plan import CallOp, Compute, SplitPlan
from precast.splitter.stitch import stitch

OPS = torch.ops.precast_tests
ALL = (ATTEND, PAIR, RICH, WRITE)


# Each takes (self, x) as the forward of a `Small`, and uses the ops that it is named with.


def residual_chain(self: Any, x: Tensor) -> Tensor:
    h = x
    for _ in range(3):
        h = h + OPS.attend(self.linear(h))
        h = h + torch.relu(self.linear(h))
    return h


def argument_name_used_again(self: Any, x: Tensor) -> Tensor:
    before = x
    x = OPS.attend(x)
    x = x * 2
    return x + before


def weight_name_used_again(self: Any, x: Tensor) -> Tensor:
    w_linear_weight = x * 2
    w_linear_bias = OPS.attend(w_linear_weight)
    return self.linear(w_linear_bias) + w_linear_weight


def locals_named_like_generated_code(self: Any, x: Tensor) -> Tensor:
    op_precast_tests_attend = x + 1
    piece_0 = OPS.attend(op_precast_tests_attend)
    __hidden = piece_0 * 2
    piece_1 = OPS.attend(__hidden)
    return piece_1 * op_precast_tests_attend


def tuple_result(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = OPS.attend(x)
    return y, y * 2


def nested_result(self: Any, x: Tensor) -> dict[str, Any]:
    y = OPS.attend(x)
    return {"first": [y, (x, None)], "second": (y + 1, 3, "text", 0.5, True)}


def size_in_the_result(self: Any, x: Tensor) -> tuple[Tensor, int]:
    return OPS.attend(x), x.shape[0]


def argument_returned_unchanged(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return x, OPS.attend(x)


def output_returned_twice(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = OPS.attend(x)
    z = y + 1
    return z, y, z


def result_of_an_op_returned(self: Any, x: Tensor) -> Tensor:
    return OPS.attend(x + 1)


def op_first_and_last(self: Any, x: Tensor) -> Tensor:
    return OPS.attend(torch.relu(OPS.attend(x)))


def two_ops_in_a_row(self: Any, x: Tensor) -> Tensor:
    return OPS.attend(OPS.attend(x * 2)) + x


def three_ops_of_two_kinds(self: Any, x: Tensor) -> Tensor:
    first, second = OPS.pair(x)
    return OPS.attend(first) + OPS.attend(second)


def items_of_an_op_used_late(self: Any, x: Tensor) -> Tensor:
    first, second = OPS.pair(x)
    h = OPS.attend(torch.relu(first))
    return h - second


def one_item_of_an_op_unused(self: Any, x: Tensor) -> Tensor:
    return OPS.pair(x)[1] + 1


def unused_result_of_an_op(self: Any, x: Tensor) -> Tensor:
    OPS.attend(x * 3)
    return OPS.attend(x)


def op_result_indexed(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = OPS.attend(x)
    return y[:, 0], y[-1], y[..., None]


def op_result_gathered(self: Any, x: Tensor) -> Tensor:
    y = OPS.attend(x)
    return y[torch.arange(x.shape[0]).flip(0)]


def gather_after_a_write(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    OPS.write(y, x)
    return y[torch.zeros(1, dtype=torch.int64)]


def tuple_of_a_piece_crosses(self: Any, x: Tensor) -> Tensor:
    left, right = x.chunk(2, 1)
    return OPS.attend(left) * right


def in_place_on_a_crossing_value(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = OPS.attend(y)
    y += z
    y.mul_(2)
    return OPS.attend(y), y


def in_place_on_the_argument(self: Any, x: Tensor) -> Tensor:
    y = OPS.attend(x)
    x.add_(y)
    return OPS.attend(x) + x


def items_set_on_a_crossing_value(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = OPS.attend(y)
    y[:, 0] = z[:, 1]
    w = OPS.attend(y)
    y[:, 1] = 0
    return w, y


def view_aliases_across_pieces(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    flat = y.view(-1)
    z = OPS.attend(y)
    flat.add_(1.0)
    return OPS.attend(y) + z


def written_by_out(self: Any, x: Tensor) -> Tensor:
    y = OPS.attend(x)
    torch.add(y.sum(0), 1.0, out=self.total_D)
    return OPS.attend(y)


def inplace_flag(self: Any, x: Tensor) -> Tensor:
    y = x * 2
    z = OPS.attend(y)
    torch.nn.functional.relu(y, inplace=True)
    return y + OPS.attend(z)


def mask_by_an_in_place_operator(self: Any, x: Tensor) -> Tensor:
    mask = OPS.attend(x) > 0
    other = OPS.attend(x)
    mask |= other > 1
    OPS.attend(x)
    return mask


def buffer_written_in_place(self: Any, x: Tensor) -> Tensor:
    self.total_D.add_(OPS.attend(x).sum(0))
    y = OPS.attend(x) + self.total_D
    self.total_D.mul_(0.5)
    return y


def mutating_op(self: Any, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    OPS.write(out, torch.relu(x))
    return out * 2


def mutating_op_on_a_buffer(self: Any, x: Tensor) -> Tensor:
    OPS.write(self.total_D, x.sum(0))
    return x + self.total_D


def allocations_between_ops(self: Any, x: Tensor) -> Tensor:
    y = OPS.attend(x + 1)
    room = torch.empty(x.shape[0], 4)
    OPS.write(room, y)
    other = torch.empty_like(y)
    OPS.write(other, room)
    return room + other


def every_kind_of_argument(self: Any, x: Tensor) -> Tensor:
    first = OPS.rich(x + 1, x.shape[0], 0.5, torch.bfloat16, [1, 2], None, cap=2.5, name="it's")
    second = OPS.rich(first, 2 * x.shape[0] + 1, -1.0, torch.float16, [x.shape[0], 3], 7)
    return OPS.rich(second, 3, 1.0, torch.float64, [], cap=math.inf)


def sizes_in_every_form(self: Any, x: Tensor) -> Tensor:
    tokens = x.size(-2)
    y = OPS.attend(x).view(*x.shape[:-1], 2, 2).reshape(x.size(dim=0), 4)
    double = torch.cat([y, y])
    z = OPS.attend(y)
    return z.view(tokens, 4) * tokens / double.size()[0] + torch.arange(2 * tokens)[:tokens, None]


def derived_sizes_cross(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    double = torch.cat([x, x])
    padded = torch.cat([x, torch.zeros(3, 4)])
    y = OPS.attend(x)
    return double[: y.shape[0]] + y, double.sum() + padded.sum() + (double + torch.cat([y, y])).mean()


def checks_and_dead_code(self: Any, x: Tensor) -> Tensor:
    torch._check(x.shape[0] > 0)
    y = OPS.attend(x)
    y * 2
    y.shape[0] * 5
    return y + 1


def no_grad_across_an_op(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = OPS.attend(self.linear(x))
    return self.linear(y)


def constants_in_forward(self: Any, x: Tensor) -> Tensor:
    y = OPS.attend(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    y[:, 0] = 7
    return y


FORWARDS: dict[Callable[..., Any], tuple[str, ...]] = {
    three_ops_of_two_kinds: (ATTEND, PAIR), items_of_an_op_used_late: (ATTEND, PAIR), one_item_of_an_op_unused: (PAIR,),
    gather_after_a_write: (WRITE,), mutating_op: (WRITE,), mutating_op_on_a_buffer: (WRITE,),
    allocations_between_ops: (ATTEND, WRITE), every_kind_of_argument: (RICH,),
} | dict.fromkeys(
    (
        residual_chain, argument_name_used_again, weight_name_used_again, locals_named_like_generated_code,
        tuple_result, nested_result, size_in_the_result, argument_returned_unchanged, output_returned_twice,
        result_of_an_op_returned, op_first_and_last, two_ops_in_a_row, unused_result_of_an_op,
        op_result_indexed, op_result_gathered, tuple_of_a_piece_crosses, in_place_on_a_crossing_value,
        in_place_on_the_argument, items_set_on_a_crossing_value, view_aliases_across_pieces, written_by_out,
        inplace_flag, mask_by_an_in_place_operator, buffer_written_in_place, sizes_in_every_form,
        derived_sizes_cross, checks_and_dead_code, no_grad_across_an_op, constants_in_forward,
    ),
    (ATTEND,),
)  # fmt: skip


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda f: f.__name__)
def test_the_stitched_pieces_compute_what_the_module_computes(forward: Callable[..., Any]) -> None:
    assert_same_as_module(make_spec(small(forward), FORWARDS[forward]))


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda f: f.__name__)
def test_so_do_the_pieces_as_a_compile_process_gets_them(forward: Callable[..., Any]) -> None:
    assert_same_as_module(make_spec(small(forward), FORWARDS[forward]), run=as_exported)


@pytest.mark.parametrize("forward", [residual_chain, nested_result, buffer_written_in_place], ids=lambda f: f.__name__)
def test_without_splitting_ops_the_whole_graph_is_one_piece(forward: Callable[..., Any]) -> None:
    made = assert_same_as_module(make_spec(small(forward), ()))
    assert len(made.plan.steps) == len(made.pieces) == 1


ACTIONS: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "attend": lambda m, h, k: (OPS.attend(h), k),
    "attend the other": lambda m, h, k: (h, OPS.attend(k)),
    "add": lambda m, h, k: (h + k, k),
    "swap": lambda m, h, k: (k, h),
    "linear": lambda m, h, k: (m.linear(h), k),
    "add in place": lambda m, h, k: ((h * 1).add_(k), k),
    "write": lambda m, h, k: (h, torch.relu(k).mul_(0.5)),
    "keep": lambda m, h, k: (h, h),
    "row": lambda m, h, k: (h * h[:, :1], k),
    "arange": lambda m, h, k: (h + torch.arange(h.shape[0])[:, None] / h.shape[0], k),
    "total": lambda m, h, k: (h + m.total_D.add_(k.sum(0)), k),
    "shape": lambda m, h, k: (h.view(h.shape[0], 2, 2).flatten(1), k),
}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(sorted(ACTIONS)), min_size=1, max_size=7))
def test_any_chain_of_small_steps_keeps_its_meaning(names: list[str]) -> None:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h, k = x, OPS.attend(x)
        for name in names:
            h, k = ACTIONS[name](self, h, k)
        return h, k

    assert_same_as_module(make_spec(small(forward)))


@pytest.mark.parametrize("count", [2, 4, 16])
def test_any_number_of_layers_has_three_unique_pieces(count: int) -> None:
    made = assert_same_as_module(make_spec(lambda: Layers(count)))
    assert len(made.pieces) == 3
    assert len(made.plan.pieces) == count + 1
    assert [made.plan.uses(p.key) for p in made.pieces] == [1, count - 1, 1]
    assert made.plan.op_counts() == {ATTEND: count}


def test_layers_with_another_constant_share_nothing_that_uses_it() -> None:
    class Mixed(Layers):
        def __init__(self) -> None:
            super().__init__(4)
            self.layers[2].scale = 0.75

    assert len(split_spec(make_spec(Mixed)).pieces) == 4


def test_labels_say_how_often_a_piece_is_used() -> None:
    labels = [p.label for p in split_spec(make_spec(lambda: Layers(4))).pieces]
    assert labels == ["piece 0", "piece 1 (x3)", "piece 2"]


def test_the_token_input_is_the_first_dynamic_dim_of_an_argument() -> None:
    spec = make_spec(small(lambda self, x: OPS.attend(x.t()).t()), shape=(4, "tokens"))
    assert split_spec(spec).plan.token_input == ("x", 1)


def test_a_static_model_has_no_token_input() -> None:
    assert split_spec(make_spec(small(residual_chain), shape=(3, 4))).plan.token_input is None


def test_every_argument_is_an_input_even_when_nothing_uses_it() -> None:
    def forward(self: Any, x: Tensor, unused: Tensor) -> Tensor:
        return OPS.attend(x)

    plan = split_spec(make_spec(small(forward), names=("x", "unused"))).plan
    assert plan.arguments == ("x", "unused")
    assert [i.name for i in plan.inputs if i.kind == "argument"] == ["x", "unused"]


def test_the_plan_of_a_real_split_survives_json() -> None:
    plan = split_spec(make_spec(small(every_kind_of_argument), (RICH,))).plan
    again = SplitPlan.from_json(plan.to_json())
    assert again == plan
    assert stitch(again) == stitch(plan)


def test_a_size_for_two_ops_is_computed_once() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        tokens = 2 * x.shape[0]
        first = OPS.rich(x, tokens, 1.0, torch.float32, [])
        return OPS.rich(first, tokens, 1.0, torch.float32, [])

    steps = split_spec(make_spec(small(forward), (RICH,))).plan.steps
    assert [type(s) for s in steps] == [Compute, CallOp, CallOp]


def test_a_value_of_one_layer_is_dead_in_the_next() -> None:
    """So that the memory of a deep model does not grow with its depth."""
    source = stitch(split_spec(make_spec(lambda: Layers(4))).plan).source
    alive: set[str] = set()
    most = 0
    for line in source.splitlines()[1:]:
        if line.strip().startswith("del "):
            alive -= set(line.strip().removeprefix("del ").split(", "))
        elif "=" in line:
            alive |= {n.strip() for n in line.split("=")[0].split(",") if n.strip()}
        most = max(most, len(alive))
    assert most <= 4


@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
def test_one_split_serves_every_token_count(tokens: int) -> None:
    made = split_spec(make_spec(lambda: Layers(2)))
    module = Layers(2).eval()
    x = torch.randn(tokens, 4)
    torch.testing.assert_close(stitched_forward(made, module)(x), module(x))


def test_an_absent_splitting_op_is_refused() -> None:
    with pytest.raises(SplittingOpError, match="absent"):
        split_spec(make_spec(small(residual_chain), (ATTEND, "precast_tests::absent")))


def test_a_context_that_spans_a_splitting_op_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(OPS.attend(self.linear(x)))

    with pytest.raises(UnsupportedOpError):
        split_spec(make_spec(small(forward)))


def test_a_computation_that_cannot_run_between_ops_is_refused_before_anything_is_compiled() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return OPS.rich(x, x.shape[0] ** 2, 1.0, torch.float32, [])

    with pytest.raises(UnsupportedOpError, match="cannot run between splitting ops"):
        split_spec(make_spec(small(forward), (RICH,)))


def test_the_ops_of_a_plan_are_found_by_name() -> None:
    (step,) = split_spec(make_spec(small(result_of_an_op_returned))).plan.steps[1:]
    assert isinstance(step, CallOp)
    assert resolve_op(step.op, step.overload) is OPS.attend.default
