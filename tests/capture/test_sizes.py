"""Capture sizes: golden examples, then every size against what the rule says about it alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import golden, limits, limits_of, untimed

from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.sizes import CaptureSizes, capture_sizes, default_top
from precast.errors import ConfigValueError

PAIR = CUDAGraphMode.FULL_AND_PIECEWISE


@pytest.mark.parametrize("case", golden("sizes"), ids=lambda case: str(case["case"]))
def test_golden(case: dict[str, Any]) -> None:
    arguments = dict(case["arguments"])
    mode = CUDAGraphMode[arguments.pop("mode", PAIR.name)]
    made = capture_sizes(limits_of(case["limits"]), mode, **arguments)
    assert list(made.sizes) == case["sizes"]
    assert [note.rule for note in made.notes] == case["rules"]
    assert made.largest == max(case["sizes"], default=0)


def on_ladder(number: int) -> bool:
    return number in (1, 2, 4) or (8 <= number < 256 and number % 8 == 0) or (number >= 256 and number % 16 == 0)


def decode_sizes(given_limits: BatchLimits, top: int) -> set[int]:
    """Return what decode batches ask for, from the query length of each width."""
    if given_limits.drafts == 0:
        return {given_limits.max_num_seqs}
    widest = {1 + given_limits.drafts_of(reqs): reqs for reqs in range(1, given_limits.max_num_seqs + 1)}
    return {
        reqs * length
        for length, most in widest.items()
        for reqs in range(1, min(most, top) + 1)
        if on_ladder(reqs) or reqs == min(most, top)
    }


@untimed
@given(limits(most_seqs=600), st.booleans(), st.integers(1, 600), st.none() | st.integers(1, 700))
def test_default_sizes_are_those_the_rule_wants(
    given_limits: BatchLimits, interactivity: bool, top: int, largest: int | None
) -> None:
    made = capture_sizes(given_limits, PAIR, largest=largest, interactivity=interactivity, default_top=top)
    budget = given_limits.max_num_batched_tokens
    most = min(given_limits.max_num_seqs * given_limits.decode_query_len * 2, top) if largest is None else largest
    decode = decode_sizes(given_limits, top) if largest is None else set()
    wanted = [
        n
        for n in range(1, min(most, budget) + 1)
        if on_ladder(n) or n == budget or n in decode or (interactivity and n <= 32)
    ]
    assert list(made.sizes) == wanted
    changed = [note.sizes for note in made.notes if note.rule == "largest_changed"]
    assert changed == ([(largest,)] if largest not in (None, wanted[-1]) else [])


@untimed
@given(limits(most_seqs=600), st.integers(1, 600), st.none() | st.integers(1, 700))
def test_every_decode_size_is_there_or_in_the_record(given_limits: BatchLimits, top: int, largest: int | None) -> None:
    made = capture_sizes(given_limits, PAIR, largest=largest, default_top=top)
    told = {s for note in made.notes if note.rule != "largest_changed" for s in note.sizes}
    asked = decode_sizes(given_limits, top)
    if largest is not None:  # what is larger is left out because of what the user gave
        asked = {n for n in asked if n <= min(largest, given_limits.max_num_batched_tokens)}
    assert asked <= {*made.sizes, *told}
    assert not told & set(made.sizes)


@untimed
@given(limits(), st.lists(st.integers(1, 600), min_size=1, max_size=12), st.booleans())
def test_a_list_is_kept_up_to_the_budget(given_limits: BatchLimits, sizes: list[int], interactivity: bool) -> None:
    budget = given_limits.max_num_batched_tokens
    made = capture_sizes(given_limits, PAIR, sizes=sizes, interactivity=interactivity)
    assert list(made.sizes) == sorted({s for s in sizes if s <= budget})
    left_out = [note.sizes for note in made.notes if note.rule == "above_budget"]
    over = tuple(sorted({s for s in sizes if s > budget}))
    assert left_out == ([over] if over else [])


@untimed
@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 100))
def test_a_maximum_beside_a_list_is_its_end_or_an_error(sizes: list[int], largest: int) -> None:
    given_limits = BatchLimits(max_num_batched_tokens=64)
    end = max((s for s in sizes if s <= 64), default=0)
    if largest == end:
        assert capture_sizes(given_limits, PAIR, sizes=sizes, largest=largest).largest == end
    else:
        with pytest.raises(ConfigValueError, match=f"cannot be {largest}: the list of sizes ends at {end}"):
            capture_sizes(given_limits, PAIR, sizes=sizes, largest=largest)


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sizes": []}, "list of capture sizes is empty"),
        ({"sizes": [4, 0]}, "capture size cannot be 0"),
        ({"largest": 0}, "largest capture size cannot be 0"),
    ],
)
def test_numbers_that_no_graph_has_are_refused(mode: CUDAGraphMode, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigValueError, match=named) as caught:
        capture_sizes(BatchLimits(), mode, **arguments)
    assert caught.value.hint


def test_mode_none_says_what_it_does_not_use() -> None:
    assert capture_sizes(BatchLimits(), CUDAGraphMode.NONE) == CaptureSizes(())
    made = capture_sizes(BatchLimits(), CUDAGraphMode.NONE, sizes=[4, 2], largest=8)
    assert [(note.rule, note.sizes) for note in made.notes] == [("no_graphs", (2, 4, 8))]


@pytest.mark.parametrize(
    ("capability", "top"),
    [(None, 512), ((8, 0), 512), ((9, 0), 512), ((10, 0), 1024), ((10, 3), 1024), ((11, 0), 512), ((12, 0), 512)],
)
def test_only_data_center_blackwell_goes_higher(capability: tuple[int, int] | None, top: int) -> None:
    assert default_top(capability) == top
