"""The plan of a capture: never zero, and refined by what was captured."""

import pytest

from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode
from precast.capture.plan import CapturedGraph, CapturePlan

PIECEWISE = [BatchDescriptor(CUDAGraphMode.PIECEWISE, n) for n in (8, 4, 2, 1)]
FULL = [BatchDescriptor(CUDAGraphMode.FULL, n, n) for n in (8, 4)]


@pytest.mark.parametrize("pieces", [0, 1, 33])
def test_an_estimate_is_never_zero(pieces: int) -> None:
    plan = CapturePlan.estimate([*PIECEWISE, *FULL], pieces)
    assert all(p.seconds > 0 and p.size > 0 and p.graphs > 0 for p in plan.planned)
    assert plan.graphs == 4 * max(pieces, 1) + 2
    nothing = [CapturedGraph(d, max(pieces, 1), 0.0, 0) for d in PIECEWISE[:3]]
    refined = plan.refined(nothing)
    assert all(p.seconds > 0 and p.size > 0 for p in refined.planned)


def test_it_grows_with_the_pieces_and_is_of_the_measured_order() -> None:
    sizes = [BatchDescriptor(CUDAGraphMode.PIECEWISE, n) for n in range(1, 52)]
    plan = CapturePlan.estimate(sizes, 33)
    assert plan.graphs == 1683
    assert 0.5 < plan.seconds < 2
    assert 0.3 < plan.size / 2**30 < 0.5
    assert CapturePlan.estimate(sizes, 66).seconds == pytest.approx(2 * plan.seconds)


def test_nothing_to_capture_is_an_empty_plan() -> None:
    plan = CapturePlan.estimate([], 33)
    assert (plan.graphs, plan.seconds, plan.size, plan.planned) == (0, 0, 0, ())


def test_the_rest_of_a_mode_is_estimated_from_those_after_its_first() -> None:
    plan = CapturePlan.estimate([*PIECEWISE, *FULL], 3)
    done = [CapturedGraph(PIECEWISE[0], 3, 9.0, 9000), CapturedGraph(PIECEWISE[1], 3, 1.0, 100)]
    refined = plan.refined(done)
    assert [p.descriptor for p in refined.planned] == [*PIECEWISE, *FULL]
    assert [(p.seconds, p.size) for p in refined.planned[:4]] == [(9.0, 9000), (1.0, 100), (1.0, 100), (1.0, 100)]
    assert refined.planned[4:] == plan.planned[4:]
    assert plan.refined(done[:1]).planned[1].seconds == 9.0
    assert plan.refined([]) == plan
