"""Medians, spreads, and what counts as worse."""

import pytest
from tests.bench.statistic import is_worse, median, spread, tolerance


def test_the_median_and_the_spread() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([1.0, 2.0]) == 1.5
    assert spread([3.0, 1.0, 2.0]) == 2.0
    assert spread([3.0]) is None


def test_the_spread_of_a_single_sample_is_assumed() -> None:
    assert tolerance([4.0]) == pytest.approx(1.0)


def test_equal_samples_do_not_promise_equal_runs() -> None:
    assert tolerance([4.0, 4.0]) == pytest.approx(0.2)
    assert tolerance([4.0, 5.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("before", "now", "worse"),
    [
        ([1.0, 1.1, 1.2], [1.19, 1.3, 1.2], False),  # 0.1 more, and both spreads are larger
        ([1.0, 1.1, 1.2], [1.4, 1.4, 1.4], True),
        ([1.0, 1.0, 1.0], [1.0, 1.4, 1.8], False),  # the new spread counts too
        ([1.0], [1.2], False),
        ([1.0], [1.4], True),
        ([1.0, 1.0], [0.1, 0.1], False),  # better
    ],
)
def test_worse_is_more_than_both_spreads(before: list[float], now: list[float], worse: bool) -> None:
    assert is_worse(before, now) is worse


def test_sizes_and_counts_may_not_grow() -> None:
    assert is_worse([1000.0], [1020.0], exact=True)
    assert not is_worse([1000.0], [1020.0])
    assert not is_worse([1000.0], [1005.0], exact=True)
    assert is_worse([0.0], [1.0], exact=True)
