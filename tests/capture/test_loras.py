"""LoRA cases: which numbers of adapters are captured, and which one serves a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import untimed

from precast.capture.limits import LoraLimits
from precast.capture.loras import lora_case, lora_cases


@pytest.mark.parametrize(
    ("limits", "cases"),
    [
        (LoraLimits(), (0,)),
        (LoraLimits(0, specialize=False), (0,)),
        (LoraLimits(4), (0, 5)),
        (LoraLimits(4, specialize=False), (5,)),
        (LoraLimits(1, specialize_active=True), (0, 1, 2)),
        (LoraLimits(3, specialize_active=True), (0, 1, 2, 4)),
        (LoraLimits(4, specialize_active=True), (0, 1, 2, 4, 5)),
        (LoraLimits(7, specialize_active=True), (0, 1, 2, 4, 8)),
        (LoraLimits(8, specialize_active=True), (0, 1, 2, 4, 8, 9)),
        (LoraLimits(4, specialize=False, specialize_active=True), (5,)),
    ],
)
def test_cases(limits: LoraLimits, cases: tuple[int, ...]) -> None:
    assert lora_cases(limits) == cases


@untimed
@given(st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 60))
def test_a_batch_runs_as_the_smallest_case_that_holds_it_else_the_largest(
    most: int, specialize: bool, active: bool, used: int
) -> None:
    cases = lora_cases(LoraLimits(most, specialize, active))
    case = lora_case(used, cases)
    assert case in cases
    if used > most:
        assert case == most + 1
    else:
        assert case == min(c for c in cases if c >= used)


def test_adapters_never_run_on_graphs_without_any() -> None:
    assert lora_case(0, (0,)) == 0
    assert lora_case(1, (0,)) is None
