"""Coverage against brute force: every batch through a dispatcher, padding counted one by one."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import MODES, limits, limits_of, untimed

from precast.capture.candidates import candidates
from precast.capture.coverage import Coverage, coverage
from precast.capture.dispatch import Batch, Dispatcher, Miss
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import Barrier
from precast.capture.sizes import capture_sizes
from precast.capture.traffic import BatchKind, ExpectedBatch, decode_batches, default_traffic, mixed_batches
from precast.errors import ConfigValueError

PAIR, FULL, PIECEWISE = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
NONE, DECODE_ONLY = CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY


@untimed
@given(limits(most_seqs=8), MODES, st.sets(st.integers(1, 40), max_size=8), st.data())
def test_batches_run_as_a_dispatcher_says_and_padding_adds_up(
    found_limits: BatchLimits, mode: CUDAGraphMode, given_sizes: set[int], data: st.DataObject
) -> None:
    budget = found_limits.max_num_batched_tokens
    sizes = sorted(size for size in given_sizes if size <= budget)
    every = default_traffic(found_limits)
    counts = data.draw(st.lists(st.integers(1, 9), min_size=len(every), max_size=len(every)))
    traffic = [ExpectedBatch(one.batch, count) for one, count in zip(every, counts, strict=True)]
    found = coverage(mode, sizes, found_limits, traffic)
    for extra, result in ((), found), (found.extra, found.after or found):
        dispatcher = Dispatcher(candidates(mode, [*sizes, *extra], found_limits))
        dispatcher.enable()
        asked, computed = Fraction(0), Fraction(0)
        for one, placed in zip(traffic, result.batches, strict=True):
            batch = one.batch
            descriptor = dispatcher.dispatch(
                batch.num_reqs,
                batch.num_tokens,
                batch.uniform_token_count,
                batch.num_active_loras,
                batch.max_query_len,
                batch.num_ubatches,
            )
            assert placed.mode is descriptor.mode
            assert (placed.batch, placed.count) == (batch, one.count)
            asked += Fraction(one.count) * batch.num_tokens
            computed += Fraction(one.count) * descriptor.num_tokens
            assert placed.is_hole is (descriptor.mode is NONE or descriptor.mode.value < placed.wanted.value)
            assert (placed.reason is not None) is placed.is_hole
        assert (Fraction(result.padding.asked), Fraction(result.padding.computed)) == (asked, computed)
        assert result.padding.padded == computed - asked
        assert result.padding.share == pytest.approx(float((computed - asked) / computed))
    after = found.after or found
    assert after.is_full is found.closes_all
    assert all(placed.barrier is not None for placed in after.holes)
    assert not any(placed.gains for placed in after.holes)


@untimed
@given(limits(most_seqs=8), MODES, st.sets(st.integers(1, 40), max_size=8), st.integers(0, 12))
def test_any_number_of_adapters_is_covered_alike(
    found_limits: BatchLimits, mode: CUDAGraphMode, given_sizes: set[int], loras: int
) -> None:
    """So that batches without adapters speak for all; more than the most run as the most."""
    sizes = sorted(size for size in given_sizes if size <= found_limits.max_num_batched_tokens)
    every = default_traffic(found_limits)
    loras = loras if found_limits.lora.max_loras else 0
    with_loras = [ExpectedBatch(_with_loras(one.batch, loras)) for one in every]
    plain, found = (coverage(mode, sizes, found_limits, traffic) for traffic in (every, with_loras))
    assert [placed.mode for placed in found.batches] == [placed.mode for placed in plain.batches]
    assert (found.extra, found.padding) == (plain.extra, plain.padding)


def _with_loras(batch: Batch, loras: int) -> Batch:
    rest = batch.max_query_len, batch.num_ubatches
    return Batch(batch.num_reqs, batch.num_tokens, batch.uniform_token_count, loras, *rest)


def test_the_sizes_of_the_rule_itself_can_leave_a_decode_step_without_a_graph() -> None:
    """The budget cuts the ladder off at 151 tokens, which round up to 155; 150 tokens then have no FULL graph."""
    found_limits = limits_of({"max_num_batched_tokens": 151, "max_num_seqs": 31, "drafts": 4})
    sizes = capture_sizes(found_limits, DECODE_ONLY).sizes
    traffic = [e for e in decode_batches(found_limits, range(1, 32)) if e.batch.num_tokens <= 151]
    found = coverage(DECODE_ONLY, sizes, found_limits, traffic)
    assert sizes[-1] == 151
    assert [placed.batch.num_tokens for placed in found.holes] == [150]
    assert (found.extra, found.closes_all) == ((150,), True)


def one(found: Coverage, num_reqs: int) -> tuple[CUDAGraphMode, Miss | None, bool, Barrier | None]:
    """What became of the decode step of so many requests."""
    placed = next(p for p in found.batches if p.kind is BatchKind.DECODE and p.batch.num_reqs == num_reqs)
    return placed.mode, placed.reason, placed.hidden, placed.barrier


def test_a_decode_step_that_no_size_rounds_up_to_has_no_full_graph() -> None:
    """Step 8's own example: sizes to 16 and 4 requests of 3 tokens; 16 rounds up to 18, for 6 requests."""
    found_limits = limits_of({"max_num_batched_tokens": 16, "max_num_seqs": 4, "drafts": 2})
    found = coverage(PAIR, [1, 2, 4, 8, 16], found_limits, default_traffic(found_limits))
    assert one(found, 3) == (FULL, None, False, None)
    assert one(found, 4) == (PIECEWISE, Miss.TOO_MANY_TOKENS, False, None)
    assert (found.extra, found.closes_all) == ((12,), True)
    assert [placed.batch.num_reqs for placed in found.holes] == [4]


def test_a_nearer_graph_of_another_length_hides_a_larger_one() -> None:
    """6 tokens are 2 requests of 3; 5 requests of 1 token see them, and not the 8 behind."""
    given_limits = {"max_num_batched_tokens": 8, "max_num_seqs": 8, "drafts": 2, "draft_schedule": [[2, 2], [8, 0]]}
    found_limits = limits_of(given_limits)
    found = coverage(PAIR, [4, 8], found_limits, decode_batches(found_limits, range(1, 9)))
    hidden = (PIECEWISE, Miss.NOT_UNIFORM, True, None)
    assert [one(found, reqs) for reqs in (5, 6)] == [hidden, hidden]
    assert one(found, 7) == (FULL, None, False, None)
    assert one(found, 1) == (PIECEWISE, Miss.NOT_UNIFORM, True, None)
    assert found.closes_all


def test_full_graphs_above_the_largest_size_are_told() -> None:
    found_limits = limits_of({"max_num_batched_tokens": 64, "max_num_seqs": 12, "drafts": 2})
    traffic = decode_batches(found_limits, range(1, 13))
    lost = coverage(PAIR, [1, 2, 4, 8], found_limits, traffic).lost()
    assert [(d.num_tokens, d.num_reqs, d.uniform_token_count) for d in lost] == [(9, 3, 3)]
    assert coverage(PAIR, [1, 2, 4, 9], found_limits, traffic).lost() == ()
    assert coverage(PIECEWISE, [1, 2, 4, 8], found_limits, traffic).lost() == ()
    assert coverage(PAIR, [], found_limits, traffic).lost() == ()


@pytest.mark.parametrize(
    ("mode", "asked", "batch", "expected"),
    [
        (PIECEWISE, None, Batch(1, 17), Barrier.ABOVE_BUDGET),
        (PIECEWISE, None, Batch(1, 1, 1, num_active_loras=1), Barrier.NO_LORA),
        (PIECEWISE, PAIR, Batch(2, 2, 1, max_query_len=1), Barrier.LOWERED),
        (DECODE_ONLY, PAIR, Batch(2, 5), Barrier.LOWERED),
        (NONE, PAIR, Batch(2, 5), Barrier.LOWERED),
        (NONE, None, Batch(2, 5), Barrier.NO_GRAPHS),
        (DECODE_ONLY, None, Batch(2, 5), Barrier.DECODE_ONLY),
        (PAIR, None, Batch(5, 5, 1, max_query_len=1), Barrier.TOO_MANY_REQS),
        (FULL, None, Batch(5, 5), Barrier.TOO_MANY_REQS),
        (PIECEWISE, None, Batch(4, 4, 1, max_query_len=1, num_ubatches=2), Barrier.MICROBATCHES),
    ],
)
def test_what_keeps_a_batch_from_a_graph(
    mode: CUDAGraphMode, asked: CUDAGraphMode | None, batch: Batch, expected: Barrier
) -> None:
    found_limits = BatchLimits(16, 4, num_ubatches=2, ubatch_decode_tokens=2)
    found = coverage(mode, [16], found_limits, [ExpectedBatch(batch)], asked=asked)
    assert [placed.barrier for placed in found.holes] == [expected]
    assert (found.extra, found.after, found.closes_all) == ((), None, False)


def test_a_batch_that_cannot_have_the_best_still_gets_a_slower_graph() -> None:
    """Five requests of four slots: no FULL graph, but pieces of 5 tokens."""
    found_limits = BatchLimits(16, 4)
    batch = Batch(5, 5, 1, max_query_len=1)
    found = coverage(PAIR, [1, 2, 4], found_limits, [ExpectedBatch(batch)])
    assert [placed.mode for placed in found.batches] == [NONE]
    assert found.extra == (5,)
    assert found.after is not None
    assert [(p.mode, p.barrier) for p in found.after.holes] == [(PIECEWISE, Barrier.TOO_MANY_REQS)]


def test_padding_counts_a_batch_as_often_as_it_runs() -> None:
    found_limits = BatchLimits(16, 8)
    traffic = [ExpectedBatch(Batch(3, 3, 1, max_query_len=1), 10), ExpectedBatch(Batch(1, 12), 2.5)]
    found = coverage(PAIR, [4, 16], found_limits, traffic)
    assert (found.padding.asked, found.padding.computed) == (3 * 10 + 12 * 2.5, 4 * 10 + 16 * 2.5)
    assert found.padding.share == pytest.approx(0.25)


def test_an_empty_traffic_is_covered_and_pads_nothing() -> None:
    found = coverage(PAIR, [1], BatchLimits(4, 2), [])
    assert (found.is_full, found.extra, found.padding.share) == (True, (), 0.0)


def test_a_size_above_the_budget_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="a capture size cannot be 9"):
        coverage(PAIR, [1, 9], BatchLimits(8, 2), mixed_batches(BatchLimits(8, 2), [1]))
