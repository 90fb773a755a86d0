"""An assumption that tracing made must hold for every token count, or the model is refused."""

# mypy: allow-subclassing-any

from collections.abc import Callable

import pytest
import torch
from tests.models import WIDTH, make_spec
from torch import Tensor, nn

from precast.aot.assumptions import check_assumptions
from precast.aot.trace import build_for_tracing, trace
from precast.errors import GraphBreakError


class Checked(nn.Module):
    def __init__(self, check: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.check = check

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.linear(x)


def checked(check: Callable[[Tensor], object], high: int) -> None:
    spec = make_spec(lambda: Checked(check))
    traced = trace(spec, build_for_tracing(spec), "cpu")
    check_assumptions(traced.graph_module.graph, [(1, high)])


def test_a_model_without_assumptions_passes() -> None:
    checked(lambda x: None, 8192)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (lambda x: torch._check(x.size(0) % 8 == 0), "tokens % 8 == 0"),
        (lambda x: torch._check(x.size(0) >= 2), "tokens >= 2"),
        (lambda x: torch._check(x.size(0) <= 4096), "tokens <= 4096"),
    ],
)
def test_an_assumption_that_does_not_hold_is_named(check: Callable[[Tensor], object], text: str) -> None:
    with pytest.raises(GraphBreakError) as caught:
        checked(check, 8192)
    assert text in caught.value.what


def test_a_bound_that_the_range_keeps_is_no_obstacle() -> None:
    checked(lambda x: torch._check(x.size(0) <= 4096), 4096)


def test_every_token_count_is_tried_and_none_outside_the_ranges() -> None:
    with pytest.raises(GraphBreakError, match="does not work for 4001 tokens"):
        checked(lambda x: torch._check(x.size(0) != 4001), 8192)
    checked(lambda x: torch._check(x.size(0) != 4001), 4000)
