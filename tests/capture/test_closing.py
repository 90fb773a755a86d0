"""The fewest sizes that close holes, against all sets of sizes that there are."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.capture.batches import MODES, limits, limits_of, untimed

from precast.capture.candidates import candidates
from precast.capture.closing import fewest_sizes
from precast.capture.dispatch import Batch, choose, longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import reach
from precast.capture.traffic import decode_batches, default_traffic

PAIR, FULL, PIECEWISE = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
DECODE_ONLY = CUDAGraphMode.FULL_DECODE_ONLY


def small_limits() -> st.SearchStrategy[BatchLimits]:
    """Limits of few requests and tokens; sets of sizes can be counted up."""

    def cut(found: BatchLimits, budget: int) -> BatchLimits:
        kept = {name: getattr(found, name) for name in found.__slots__}
        return BatchLimits(**{**kept, "max_num_batched_tokens": budget})

    return st.builds(cut, limits(most_seqs=6), st.integers(1, 8))


def ran(mode: CUDAGraphMode, sizes: Sequence[int], found: BatchLimits, batches: Sequence[Batch]) -> list[int]:
    """The mode that each batch runs in, as a number."""
    graphs = candidates(mode, sizes, found)
    chosen = [choose(graphs, batch) for batch in batches]
    return [0 if descriptor is None else int(descriptor.mode.value) for descriptor in chosen]


def sets_to_add(sizes: Sequence[int], found: BatchLimits) -> list[tuple[int, ...]]:
    """All sets of sizes that may be added, the smallest sets first."""
    left = [size for size in range(1, found.max_num_batched_tokens + 1) if size not in sizes]
    return [chosen for number in range(len(left) + 1) for chosen in combinations(left, number)]


@untimed
@given(small_limits(), MODES, st.sets(st.integers(1, 8)))
def test_every_batch_has_its_best_and_no_smaller_set_of_sizes_gives_that(
    found: BatchLimits, mode: CUDAGraphMode, given_sizes: set[int]
) -> None:
    sizes = sorted(size for size in given_sizes if size <= found.max_num_batched_tokens)
    batches = [expected.batch for expected in default_traffic(found)]
    added = sets_to_add(sizes, found)
    results = [ran(mode, (*sizes, *more), found, batches) for more in added]
    best = [max(each) for each in zip(*results, strict=True)]
    assert [int(reach(mode, sizes, found, batch).value) for batch in batches] == best
    fewest = next(len(more) for more, result in zip(added, results, strict=True) if result == best)
    extra = fewest_sizes(mode, sizes, found, batches)
    assert ran(mode, (*sizes, *extra), found, batches) == best
    assert len(extra) == fewest
    assert list(extra) == sorted(set(extra) - set(sizes))


@st.composite
def any_batch(draw: st.DrawFn, found: BatchLimits) -> Batch:
    """A batch that limits may not allow: too many tokens or requests, adapters, a length that no decode step has."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    prefilling = [draw(st.booleans())] * len(lengths)
    loras = draw(st.integers(0, 2))
    uniform, longest = uniform_tokens(lengths, prefilling), longest_query(lengths, prefilling)
    splits = uniform is not None and sum(lengths) >= max(found.num_ubatches, found.ubatch_decode_tokens)
    ubatches = draw(st.sampled_from([1, found.num_ubatches])) if splits else 1
    return Batch(len(lengths), sum(lengths), uniform, loras, longest, ubatches)


@untimed
@given(small_limits(), MODES, st.sets(st.integers(1, 8)), st.data())
def test_what_a_batch_can_reach_is_the_best_of_all_sets_of_sizes(
    found: BatchLimits, mode: CUDAGraphMode, given_sizes: set[int], data: st.DataObject
) -> None:
    batch = data.draw(any_batch(found))
    sizes = sorted(size for size in given_sizes if size <= found.max_num_batched_tokens)
    best = max(ran(mode, (*sizes, *more), found, [batch])[0] for more in sets_to_add(sizes, found))
    assert int(reach(mode, sizes, found, batch).value) == best


@untimed
@given(small_limits(), MODES, st.sets(st.integers(1, 8)), st.data())
def test_some_of_the_batches_need_no_more_sizes_than_a_search_of_all_sets_finds(
    found: BatchLimits, mode: CUDAGraphMode, given_sizes: set[int], data: st.DataObject
) -> None:
    everything = [expected.batch for expected in default_traffic(found)]
    batches = data.draw(st.lists(st.sampled_from(everything) | any_batch(found), max_size=4, unique=True))
    assume(all(batch.num_tokens <= found.max_num_batched_tokens for batch in batches))
    sizes = sorted(size for size in given_sizes if size <= found.max_num_batched_tokens)
    best = [int(reach(mode, sizes, found, batch).value) for batch in batches]
    extra = fewest_sizes(mode, sizes, found, batches)
    assert ran(mode, (*sizes, *extra), found, batches) == best
    smaller = [more for more in sets_to_add(sizes, found) if len(more) < len(extra)]
    assert all(ran(mode, (*sizes, *more), found, batches) != best for more in smaller)


@untimed
@given(limits(most_seqs=12), st.sets(st.integers(1, 40), max_size=6), st.integers(1, 3))
def test_with_fewer_sizes_of_a_longer_list_a_decode_step_stays_open(
    found: BatchLimits, given_sizes: set[int], number: int
) -> None:
    """The same with more tokens: all sets that are smaller are tried, where there are not too many."""
    budget = min(found.max_num_batched_tokens, 40)
    kept = {name: getattr(found, name) for name in found.__slots__}
    found = BatchLimits(**{**kept, "max_num_batched_tokens": budget})
    sizes = sorted(size for size in given_sizes if size <= budget)
    every = decode_batches(found, range(1, found.max_num_seqs + 1))
    batches = [expected.batch for expected in every if expected.batch.num_tokens <= budget]
    extra = fewest_sizes(DECODE_ONLY, sizes, found, batches)
    best = [int(reach(DECODE_ONLY, sizes, found, batch).value) for batch in batches]
    assert ran(DECODE_ONLY, (*sizes, *extra), found, batches) == best
    assume(len(extra) == number)
    left = [size for size in range(1, budget + 1) if size not in sizes]
    for fewer in range(number):
        for more in combinations(left, fewer):
            assert ran(DECODE_ONLY, (*sizes, *more), found, batches) != best


@pytest.mark.parametrize(
    ("mode", "sizes", "given_limits", "extra"),
    [
        # Requests counted as tokens: the widest decode step alone.
        (DECODE_ONLY, [1, 2, 4, 8], {"max_num_batched_tokens": 64, "max_num_seqs": 12}, (12,)),
        (DECODE_ONLY, [1, 2, 4, 8], {"max_num_batched_tokens": 64, "max_num_seqs": 12, "drafts": 3}, (48,)),
        # Pieces of any requests: the budget.
        (PIECEWISE, [1, 2, 4, 8], {"max_num_batched_tokens": 700, "max_num_seqs": 12}, (700,)),
        (FULL, [1, 2, 4, 8], {"max_num_batched_tokens": 700, "max_num_seqs": 12}, (700,)),
        # Both: a FULL graph of 64 tokens would be for more requests than there are.
        (PAIR, [1, 2, 4, 8], {"max_num_batched_tokens": 64, "max_num_seqs": 12}, (12, 64)),
        # 34 rounds up to 36, above the largest size, until a larger one is there.
        (PAIR, [34], {"max_num_batched_tokens": 64, "max_num_seqs": 12, "drafts": 2}, (64,)),
        # 8 has a graph of 8 requests; 6 tokens (2 requests of 3) hide it from 5 and 6 of 1.
        (
            DECODE_ONLY,
            [4, 8],
            {"max_num_batched_tokens": 8, "max_num_seqs": 8, "drafts": 2, "draft_schedule": [[2, 2], [8, 0]]},
            (3, 6),
        ),
        # A size of 20 tokens has no twin: they do not spread evenly over 12 requests.
        (
            FULL,
            [],
            {"max_num_batched_tokens": 20, "max_num_seqs": 12, "num_ubatches": 2, "ubatch_decode_tokens": 1},
            (12, 20),
        ),
    ],
)
def test_known_answers(
    mode: CUDAGraphMode, sizes: list[int], given_limits: dict[str, object], extra: tuple[int, ...]
) -> None:
    found = limits_of(given_limits)
    assert fewest_sizes(mode, sizes, found, [e.batch for e in default_traffic(found)]) == extra


def test_of_equally_many_sizes_the_one_that_needs_no_rounding_is_taken() -> None:
    """45, 46 and 47 would do for 48 tokens of 4 a request."""
    found = limits_of({"max_num_batched_tokens": 64, "max_num_seqs": 12, "drafts": 3})
    batches = [e.batch for e in decode_batches(found, range(1, 13))]
    assert fewest_sizes(PAIR, [1, 2, 4, 8], found, batches) == (48,)


def test_the_largest_size_may_have_to_be_above_all_batches() -> None:
    """10 tokens on 8 request slots are split only in a graph of 16, which holds 2 for each slot."""
    found = limits_of({"max_num_batched_tokens": 21, "max_num_seqs": 8, "num_ubatches": 2, "ubatch_decode_tokens": 2})
    batches = [Batch(2, 10, 5, max_query_len=5, num_ubatches=ubatches) for ubatches in (1, 2)]
    assert fewest_sizes(FULL, [], found, batches) == (16,)


def test_nothing_is_added_where_nothing_is_open_or_can_be_closed() -> None:
    found = BatchLimits(16, 4)
    batches = [e.batch for e in default_traffic(found)]
    assert fewest_sizes(PIECEWISE, [16], found, batches) == ()
    assert fewest_sizes(CUDAGraphMode.NONE, [], found, batches) == ()
    assert fewest_sizes(PIECEWISE, [16], found, [Batch(1, 17), Batch(1, 1, num_active_loras=2)]) == ()
