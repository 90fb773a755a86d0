"""Compile ranges: no gap, single sizes first, and what to warm up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import untimed

from precast.aot.settings import Settings
from precast.capture.ranges import CAPTURE_SIZES, compile_ranges, compile_sizes
from precast.errors import ConfigValueError

ENDPOINTS = st.lists(st.integers(1, 60), max_size=6)


@untimed
@given(st.integers(1, 50), ENDPOINTS)
def test_ranges_have_no_gap_and_end_where_asked(largest: int, endpoints: list[int]) -> None:
    made = compile_ranges(largest, endpoints)
    held = [n for start, end in made.ranges for n in range(start, end + 1)]
    assert held == list(range(1, largest + 1))
    inner = {e for e in endpoints if 1 < e < largest}
    assert {end for _, end in made.ranges} == {*inner, largest}
    assert set(made.dropped) == set(endpoints) - inner - {largest}


@untimed
@given(st.integers(1, 50), ENDPOINTS, st.lists(st.integers(1, 50), max_size=6))
def test_single_sizes_win_and_each_count_has_its_range(largest: int, endpoints: list[int], sizes: list[int]) -> None:
    sizes = [s for s in sizes if s <= largest]
    made = compile_ranges(largest, endpoints, sizes)
    for tokens in range(1, largest + 1):
        scanned = next((s, e) for s, e in made.ranges if s <= tokens <= e)
        assert made.find(tokens) == ((tokens, tokens) if tokens in sizes else scanned)
        assert made.find(tokens) in made.all()
    for tokens in (-1, 0, largest + 1):
        with pytest.raises(ConfigValueError, match=f"no compile range holds {tokens} tokens"):
            made.find(tokens)


@untimed
@given(st.integers(1, 50), st.lists(st.integers(2, 50), max_size=6), st.lists(st.integers(1, 50), max_size=6))
def test_settings_cut_alike(largest: int, endpoints: list[int], sizes: list[int]) -> None:
    endpoints, sizes = [e for e in endpoints if e <= largest], [s for s in sizes if s <= largest]
    settings = Settings(
        max_num_batched_tokens=largest, compile_range_endpoints=tuple(endpoints), compile_sizes=tuple(sizes)
    )
    assert settings.ranges() == compile_ranges(largest, endpoints, sizes).all()


@untimed
@given(st.integers(1, 50), ENDPOINTS, st.sets(st.integers(1, 50)), st.sets(st.integers(1, 50)))
def test_captures_and_warm_ups_run_all_code(
    largest: int, endpoints: list[int], sizes: set[int], captured: set[int]
) -> None:
    sizes, captured = {s for s in sizes if s <= largest}, {s for s in captured if s <= largest}
    made = compile_ranges(largest, endpoints, sizes)
    warm_ups = made.warm_ups(sorted(captured))
    assert not captured & set(warm_ups)
    run = [made.find(n) for n in (*captured, *warm_ups)]
    assert set(run) == {made.find(n) for n in range(1, largest + 1)}
    assert len({made.find(n) for n in warm_ups} & {made.find(n) for n in captured}) == 0


def test_a_warm_up_for_each_code_that_no_capture_runs() -> None:
    made = compile_ranges(100, [10, 50], [4, 20])
    assert made.warm_ups([4, 8, 30]) == (20, 100)
    assert made.warm_ups([4]) == (10, 20, 50, 100)
    assert made.warm_ups([1, 2, 4, 20, 50, 100]) == ()
    assert compile_ranges(100, [10], [10, 9]).warm_ups([]) == (8, 9, 10, 100)


def test_capture_sizes_as_a_compile_size() -> None:
    assert compile_sizes([CAPTURE_SIZES, 3, 2], [1, 2, 4]) == (1, 2, 3, 4)
    assert compile_ranges(8, (), [CAPTURE_SIZES], [1, 8]).all() == ((1, 8), (1, 1), (8, 8))
    with pytest.raises(ConfigValueError, match="`capture_sizes`"):
        compile_sizes(["capture_sizes"], [1])


@pytest.mark.parametrize("size", [0, 9])
def test_a_compile_size_that_no_step_has_is_refused(size: int) -> None:
    with pytest.raises(ConfigValueError, match=f"cannot hold {size}"):
        compile_ranges(8, (), [4, size])
