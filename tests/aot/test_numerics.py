"""The comparison: one wrong row among thousands shows, and so does what is not a number."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models import Layers, make_spec, small
from torch import Tensor, nn

from precast.aot.numerics import FLOOR, TOLERANCE, Comparison, build_real, choose_token_counts, compare

ROWS = 4096


def judge(change: Callable[[Tensor], Any], expected: Tensor | None = None) -> Comparison:
    torch.manual_seed(0)
    right = torch.randn(ROWS, 64) if expected is None else expected
    spec = make_spec(nn.Module)
    return compare(spec, nn.Module(), lambda x: change(right.clone()), 3, lambda x: right.clone())


def at(tensor: Tensor, index: Any, value: Any) -> Tensor:
    tensor[index] = value
    return tensor


def test_equal_numbers_are_right() -> None:
    found = judge(lambda t: t)
    assert (found.ok, found.error, found.max_abs, found.limit) == (True, 0.0, 0.0, TOLERANCE[torch.float32])


def test_rounding_is_right() -> None:
    assert judge(lambda t: t * (1 + 1e-6)).ok


@pytest.mark.parametrize("row", [0, 1, ROWS // 2, ROWS - 1])
@pytest.mark.parametrize("factor", [1.001, 0.0, -1.0, 2.0])
def test_one_wrong_row_among_thousands_is_found(row: int, factor: float) -> None:
    found = judge(lambda t: at(t, row, t[row] * factor))
    assert not found.ok
    assert found.error == pytest.approx(abs(factor - 1), rel=0.01)


def test_two_rows_that_changed_places_are_found() -> None:
    assert not judge(lambda t: at(t, [7, 8], t[[8, 7]])).ok


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_found(value: float) -> None:
    assert not judge(lambda t: at(t, (ROWS // 2, 3), value)).ok


def test_nan_is_named() -> None:
    assert "not finite" in judge(lambda t: at(t, (5, 5), float("nan"))).problem


def test_an_eager_model_that_is_not_finite_proves_nothing() -> None:
    wrong = at(torch.ones(4, 4), (1, 1), float("nan"))
    found = judge(lambda t: t, wrong)
    assert not found.ok
    assert "eager itself" in found.problem


@pytest.mark.parametrize("shape", [(ROWS, 63), (ROWS - 1, 64), (64, ROWS), (ROWS * 64,)])
def test_another_shape_is_found(shape: tuple[int, ...]) -> None:
    found = judge(lambda t: torch.zeros(shape))
    assert not found.ok
    assert "shapes differ" in found.problem


def test_a_missing_output_is_found() -> None:
    assert not judge(lambda t: (t, t)).ok


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_one_wrong_integer_among_thousands_is_found(dtype: torch.dtype) -> None:
    right = (torch.arange(ROWS) + 50_000).to(dtype)
    assert judge(lambda t: t, right).ok
    assert not judge(lambda t: at(t, 17, 0), right).ok


def test_an_integer_beside_floats_has_no_tolerance() -> None:
    right = torch.arange(ROWS) + 50_000
    wrong = at(right.clone(), 9, 50_010)
    spec, floats = make_spec(nn.Module), torch.ones(2, 2)
    found = compare(spec, nn.Module(), lambda x: (floats, wrong), 3, lambda x: (floats, right))
    assert not found.ok


def test_outputs_in_dicts_and_lists_are_compared_too() -> None:
    spec, right, wrong = make_spec(nn.Module), torch.ones(2, 2), torch.zeros(2, 2)
    found = compare(spec, nn.Module(), lambda x: {"a": [right, (wrong,)]}, 3, lambda x: {"a": [right, (right,)]})
    assert not found.ok


def test_both_see_the_same_inputs_and_fresh_state() -> None:
    seen: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return x.mul_(0) + 1

    assert compare(make_spec(nn.Module), nn.Module(), run, 5, run).ok
    assert torch.equal(seen[0], seen[1])
    assert seen[0].shape[0] == 5


def test_the_sample_s_context_is_open_while_each_runs() -> None:
    depth: list[int] = [0]

    @contextmanager
    def sample(module: nn.Module, tokens: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
        depth[0] += 1
        yield (torch.zeros(tokens, 4),)
        depth[0] -= 1

    def run(x: Tensor) -> Tensor:
        assert depth[0] == 1
        return x

    assert compare(replace(make_spec(nn.Module), sample=sample), nn.Module(), run, 2, run).ok
    assert depth[0] == 0


def test_a_coarser_dtype_has_a_wider_limit() -> None:
    assert judge(lambda t: t * 1.01, torch.ones(8, 8, dtype=torch.bfloat16)).ok
    assert not judge(lambda t: t * 1.01, torch.ones(8, 8)).ok


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=4))
def test_token_counts_lie_in_the_ranges_and_hold_every_end(drawn: list[tuple[int, int]]) -> None:
    ranges = tuple((low, low + more) for low, more in drawn)
    counts = choose_token_counts(ranges)
    assert {end for span in ranges for end in span} <= set(counts)
    assert all(any(low <= n <= high for low, high in ranges) for n in counts)
    assert list(counts) == sorted(set(counts))


def test_the_usual_token_counts() -> None:
    assert choose_token_counts(((1, 8192),)) == (1, 2, 97, 256, 8192)


def test_equal_seeds_make_equal_weights() -> None:
    first, second = (build_real(make_spec(lambda: Layers(1)), "cpu") for _ in range(2))
    assert torch.equal(first.into.weight, second.into.weight)
    assert not torch.equal(first.into.weight, build_real(make_spec(lambda: Layers(1)), "cpu", seed=1).into.weight)


def test_weights_are_loaded_by_the_spec() -> None:
    def fill(module: nn.Module) -> None:
        nn.init.constant_(module.linear.weight, 2)

    spec = replace(make_spec(small(lambda self, x: x)), load_weights=fill)
    assert float(build_real(spec, "cpu").linear.weight.sum()) == 32


def outputs(expected: Any, found: Any) -> Comparison:
    return compare(make_spec(nn.Module), nn.Module(), lambda x: found, 3, lambda x: expected)


def test_each_output_is_held_to_the_bound_of_its_own_dtype() -> None:
    coarse, fine = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)
    assert outputs((coarse, fine), (coarse * 1.03, fine)).ok
    wrong = outputs((coarse, fine), (coarse * 1.03, fine * 1.001))
    assert (wrong.ok, wrong.where, wrong.limit) == (False, "result[1]", TOLERANCE[torch.float32])
    assert wrong.ratio == pytest.approx(10, rel=0.01)
    assert wrong.max_abs > 0.02


@pytest.mark.parametrize("other", [torch.float16, torch.float64, torch.bfloat16])
def test_another_dtype_is_found(other: torch.dtype) -> None:
    found = outputs(torch.ones(4, 4), torch.ones(4, 4, dtype=other))
    assert not found.ok
    assert "dtypes differ" in found.problem


@pytest.mark.parametrize("dtype", list(FLOOR))
def test_a_row_of_zeros_has_an_absolute_floor(dtype: torch.dtype) -> None:
    right = torch.zeros(4, 4, dtype=dtype)
    assert outputs(right, right + 1e-12).ok
    assert not outputs(right, at(right.clone(), 2, 1e-5)).ok


X = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ((X, X), [X, X]), ({"a": X}, {"b": X}), ({"a": X, "b": X}, {"b": X, "a": X}), ((X, None), (X, X)),
        ((X, 1), (X, 2)), ((X, 1), (X, True)), ((X, 1), (X, 1.0)), ((X, "a"), (X, "b")), ([X], X), ((), (X,)),
    ],
)  # fmt: skip
def test_another_form_of_the_result_is_found(expected: Any, found: Any) -> None:
    assert outputs(expected, expected).ok
    assert not outputs(expected, found).ok
    assert outputs(expected, found).problem


def test_complex_numbers_have_the_bound_of_their_parts() -> None:
    right = torch.ones(4, 4, dtype=torch.complex64)
    assert outputs(right, right * (1 + 1e-6)).ok
    assert not outputs(right, right * 1.001).ok


def with_buffer(value: Tensor) -> nn.Module:
    module = nn.Module()
    module.inner = nn.Module()
    module.inner.register_buffer("total", value)
    return module


def adding(module: nn.Module, amount: int) -> Callable[..., Any]:
    def run(x: Tensor) -> Tensor:
        before = module.inner.total.clone()
        module.inner.total.add_(amount)
        return x * 0 + before.sum()

    return run


@pytest.mark.parametrize(("amount", "right"), [(1, True), (2, False), (0, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_buffers_start_equal_and_must_end_equal(amount: int, right: bool, dtype: torch.dtype) -> None:
    module = with_buffer(torch.ones(4, dtype=dtype))
    found = compare(make_spec(nn.Module), module, adding(module, amount), 3, adding(module, 1))
    assert found.ok is right
    assert right or found.where == "buffer inner.total"
    assert torch.equal(module.inner.total, torch.ones(4, dtype=dtype))


def test_a_buffer_keeps_its_place_since_the_loaded_code_holds_it() -> None:
    module = with_buffer(torch.zeros(2))
    held = module.inner.total

    def replaces(x: Tensor) -> Tensor:
        module.inner.total = torch.ones(2)
        return x

    assert not compare(make_spec(nn.Module), module, lambda x: x, 3, replaces).ok
    assert module.inner.total is held


@pytest.mark.parametrize(("changed", "right"), [(-float("inf"), True), (0.0, False), (float("nan"), False)])
def test_a_buffer_may_hold_infinities(changed: float, right: bool) -> None:
    module = with_buffer(torch.tensor([[1.0, -float("inf")], [1.0, float("nan")]]))

    def run(x: Tensor) -> Tensor:
        module.inner.total[0, 1] = changed
        return x

    assert compare(make_spec(nn.Module), module, run, 3, lambda x: x).ok is right


def test_buffers_are_put_back_after_an_error() -> None:
    module = with_buffer(torch.zeros(2))

    def fails(x: Tensor) -> Tensor:
        module.inner.total.add_(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compare(make_spec(nn.Module), module, fails, 3, lambda x: x)
    assert float(module.inner.total.sum()) == 0
