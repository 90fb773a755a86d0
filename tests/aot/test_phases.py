"""Phases never overlap, whatever is nested in what, and with the rest they are the wall time."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot.phases import OTHER, PhaseClock


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_a_phase_inside_another_takes_its_time_from_it(hand: Hand) -> None:
    clock = PhaseClock(hand)
    hand.pass_(1)
    with clock.phase("outer"):
        hand.pass_(2)
        with clock.phase("inner"):
            hand.pass_(4)
        hand.pass_(8)
    hand.pass_(16)
    assert clock.seconds() == {"outer": 10, "inner": 4, OTHER: 17}
    assert clock.wall == 31


def test_a_phase_that_comes_again_goes_on(hand: Hand) -> None:
    clock = PhaseClock(hand)
    for seconds in (1, 2):
        with clock.phase("a"):
            hand.pass_(seconds)
    assert clock.seconds() == {"a": 3, OTHER: 0}


def test_a_phase_ends_with_an_error(hand: Hand) -> None:
    clock = PhaseClock(hand)

    def fail() -> None:
        with clock.phase("a"):
            hand.pass_(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    hand.pass_(2)
    assert clock.seconds() == {"a": 1, OTHER: 2}


def test_seconds_that_the_work_itself_counted_move_out_of_the_phase(hand: Hand) -> None:
    clock = PhaseClock(hand)
    with clock.phase("capture"):
        hand.pass_(10)
        clock.give("warm-up", 4)
        clock.give("FULL", 5)
        clock.give("too much", 7)
        clock.give("less than nothing", -3)
    assert clock.seconds() == {"capture": 0, "warm-up": 4, "FULL": 5, "too much": 1, "less than nothing": 0, OTHER: 0}


Step = st.tuples(st.sampled_from(["pass", "open", "close", "give"]), st.sampled_from("abc"), st.integers(0, 9))


@given(st.lists(Step, max_size=30))
def test_the_sum_is_always_the_wall_time(steps: list[tuple[str, str, int]]) -> None:
    hand = Hand()
    clock = PhaseClock(hand)
    opened: list[Callable[[], object]] = []
    for what, name, seconds in steps:
        if what == "pass":
            hand.pass_(seconds)
        elif what == "open":
            phase = clock.phase(name)
            phase.__enter__()
            opened.append(lambda phase=phase: phase.__exit__(None, None, None))  # type: ignore[misc]
        elif what == "give":
            clock.give(name, seconds)
        elif opened:
            opened.pop()()
    found = clock.seconds()
    assert sum(found.values()) == pytest.approx(clock.wall)
    assert all(value >= 0 for value in found.values())
