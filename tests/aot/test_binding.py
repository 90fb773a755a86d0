"""Binding: what is bound, what is chosen, and what is refused before compiled code can misread it."""

from typing import Any

import pytest
import torch
from tests.aot.support import PIECE, SPAN, loaded, manifest, plan, state
from torch import Tensor, nn

from precast.aot.binding import LoadedPieces, bind_module
from precast.errors import CorruptError, IncompatibleError, WeightError
from precast.splitter.plan import CallOp, SplitPlan


def total(inputs: list[Tensor]) -> list[Tensor]:
    return [torch.stack([i.float().sum() for i in inputs]).sum()]


def says(word: str) -> Any:
    return lambda inputs: [word]


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2, bias=False)


WEIGHT = state("w", "inner.weight", (2, 4), (4, 1))


def test_the_module_s_state_is_bound_by_path() -> None:
    model = Model()
    run = loaded(plan(states=(WEIGHT,)), {SPAN: total}, model)
    x = torch.ones(3, 4)
    assert torch.allclose(run(x), x.sum() + model.inner.weight.sum())


def test_a_weight_changed_in_place_after_loading_is_seen() -> None:
    model = Model()
    run = loaded(plan(states=(WEIGHT,)), {SPAN: total}, model)
    with torch.no_grad():
        model.inner.weight.zero_()
    assert run(torch.ones(3, 4)) == 12


def misfit(**changes: Any) -> nn.Module:
    model = Model()
    for name, value in changes.items():
        if name == "missing":
            del model.inner.weight
        else:
            model.inner.weight = nn.Parameter(value)
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (misfit(missing=True), "inner.weight is missing"),
        (misfit(shape=torch.zeros(2, 5)), r"float32 \[2, 5\] on cpu, not float32 \[2, 4\] on cpu"),
        (misfit(dtype=torch.zeros(2, 4, dtype=torch.float16)), "float16"),
        (misfit(device=torch.zeros(2, 4, device="meta")), "meta"),
        (misfit(stride=torch.zeros(4, 2).t()), r"strides \[1, 2\], not \[4, 1\]"),
    ],
)
def test_state_that_compiled_code_would_misread_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(WeightError, match=says):
        loaded(plan(states=(WEIGHT,)), {SPAN: total}, model)


def test_an_attribute_that_is_no_tensor_is_refused() -> None:
    model = nn.Module()
    model.inner = nn.Module()
    model.inner.weight = 0.5
    with pytest.raises(WeightError, match="is a float, not a tensor"):
        loaded(plan(states=(WEIGHT,)), {SPAN: total}, model)


def test_all_misfits_are_told_at_once() -> None:
    states = tuple(state(f"w{i}", f"absent{i}", (1,), (1,)) for i in range(6))
    with pytest.raises(WeightError) as caught:
        loaded(plan(states=states), {SPAN: total})
    assert "6 tensors" in caught.value.what
    assert "absent0 is missing; absent1 is missing" in caught.value.why
    assert caught.value.why.endswith("...")


def test_the_strides_of_one_element_do_not_matter() -> None:
    module = nn.Module()
    module.register_buffer("one", torch.zeros(1, 1).expand(1, 1))
    loaded(plan(states=(state("w", "one", (1, 1), (7, 3)),)), {SPAN: total}, module)


TWO = plan({"ids": ("int64", (None,)), "x": ("float32", (None, 4))})


def ids(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((ids(3).int(), torch.zeros(3, 4)), "`ids` must be a torch.int64 tensor of 1 dims, not torch.int32"),
        ((ids(3), torch.zeros(3)), "`x` must be a torch.float32 tensor of 2 dims, not torch.float32 of 1"),
        ((ids(3)[None], torch.zeros(3, 4)), "`ids`"),
    ],
)
def test_an_argument_of_another_dtype_or_rank_is_refused(args: tuple[Tensor, ...], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        loaded(TWO, {SPAN: total})(*args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((ids(3), torch.zeros(3, 5)), r"`x` .*\[3, 4\], not \[3, 5\]"),
        ((ids(3), torch.zeros(4, 4)), r"`x` .*\[3, 4\], not \[4, 4\]"),
        ((ids(6)[::2], torch.zeros(3, 4)), r"`ids` .*contiguous.*strides \[2\]"),
        ((ids(4), torch.zeros(4, 4).t()), "`x` .*contiguous"),
    ],
)
def test_an_argument_that_compiled_code_would_misread_is_refused(args: tuple[Tensor, ...], says: str) -> None:
    """Compiled code reads memory by the shapes and strides that it was compiled for, without a check."""
    with pytest.raises(ValueError, match=says):
        loaded(TWO, {SPAN: total})(*args)


def test_arguments_may_come_by_keyword_in_any_order() -> None:
    plan_of_two = plan({"a": ("float32", (None,)), "b": ("float32", (None,))})
    run = loaded(plan_of_two, {SPAN: lambda i: [i[0] - i[1]]})
    a, b = torch.ones(2) * 5, torch.ones(2)
    assert all(torch.equal(r, a - b) for r in (run(a, b), run(a, b=b), run(b=b, a=a)))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1, 2), {"c": 3}), ((1,), {"c": 2}), ((1, 2), {"b": 2})],
)
def test_a_call_that_does_not_fit_the_signature_is_refused(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    run = loaded(plan({"a": ("float32", (None,)), "b": ("float32", (None,))}), {SPAN: total})
    tensors = [torch.zeros(2) for _ in args]
    with pytest.raises(TypeError, match="takes a, b"):
        run(*tensors, **{k: torch.zeros(2) for k in kwargs})


@pytest.mark.parametrize(
    ("tokens", "chosen"),
    [(1, "small"), (63, "small"), (64, "small"), (65, "large"), (100, "exactly 100"), (101, "large"), (512, "large")],
)
def test_the_token_count_chooses_the_range_and_a_single_size_wins(tokens: int, chosen: str) -> None:
    run = loaded(plan(), {(65, 512): says("large"), (100, 100): says("exactly 100"), (1, 64): says("small")})
    assert run(torch.zeros(tokens, 4)) == chosen


@pytest.mark.parametrize("tokens", [0, 513])
def test_a_token_count_outside_every_range_is_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"{tokens} tokens are outside the compile ranges \[\(1, 512\)\]"):
        loaded(plan(), {SPAN: says("")})(torch.zeros(tokens, 4))


def test_a_gap_between_ranges_is_refused() -> None:
    with pytest.raises(ValueError, match="5 tokens"):
        loaded(plan(), {(1, 4): says("a"), (8, 16): says("b")})(torch.zeros(5, 4))


def test_a_single_size_outside_the_ranges_is_found() -> None:
    assert loaded(plan(), {(1, 4): says("a"), (9, 9): says("nine")})(torch.zeros(9, 4)) == "nine"


def test_a_static_plan_needs_no_token_count() -> None:
    run = loaded(plan({"x": ("float32", (3, 4))}), {SPAN: says("static")})
    assert run(torch.zeros(3, 4)) == "static"


def test_a_plan_without_a_payload_for_a_range_is_refused() -> None:
    made = manifest()
    with pytest.raises(CorruptError, match="no payload for piece"):
        bind_module(LoadedPieces(made, plan(), {("b" * 64, SPAN): total}), nn.Module())


def test_an_op_that_is_not_registered_is_refused() -> None:
    steps = (CallOp("absent_ns::op", "default", (), (), "r"),)
    base = plan()
    with pytest.raises(IncompatibleError, match=r"absent_ns::op\.default"):
        loaded(SplitPlan(base.arguments, base.inputs, (*base.steps[:0], *steps), {"$ref": "r"}, None), {SPAN: total})


def test_ranges_come_in_order() -> None:
    pieces = LoadedPieces(manifest(), plan(), {(PIECE, (65, 512)): total, (PIECE, (1, 64)): total})
    assert pieces.ranges == ((1, 64), (65, 512))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.ones(3, 4, device="meta"), "`x` must be on cpu, not on meta"),
        ([[1.0] * 4], "`x` must be a tensor, not a list"),
        (None, "`x` must be a tensor, not a NoneType"),
    ],
)
def test_an_argument_elsewhere_or_of_another_kind_is_refused(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        loaded(plan(), {SPAN: total})(given)
