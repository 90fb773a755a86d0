"""Batches to try graphs with: each fits what it was made for, and random ones are of all kinds."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import MODES, limits, untimed

from precast.aot.batches import TrialBatch, decode_batch, fitting_shape, random_batch
from precast.capture.candidates import candidates
from precast.capture.dispatch import Dispatcher, longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode


@untimed
@given(MODES, limits(), st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 9))
def test_a_fitting_shape_could_be_served_by_its_graph(
    mode: CUDAGraphMode, given_limits: BatchLimits, sizes: list[int], seed: int
) -> None:
    for descriptor in candidates(mode, sizes, given_limits).capture_order:
        shape = fitting_shape(descriptor, given_limits, Random(seed))
        assert shape.num_tokens == descriptor.num_tokens
        assert 0 < sum(shape.query_lens) <= descriptor.num_tokens
        assert len(shape.query_lens) <= (descriptor.num_reqs or given_limits.max_num_seqs)
        assert min(shape.query_lens) > 0
        if descriptor.uniform_token_count is not None:
            assert set(shape.query_lens) == {descriptor.uniform_token_count}
        if descriptor.max_query_len is not None:
            assert max(shape.query_lens) <= descriptor.max_query_len


def test_a_graph_with_room_gets_padded_rows() -> None:
    found = candidates(CUDAGraphMode.FULL_AND_PIECEWISE, [1, 2, 4, 8], BatchLimits(64, 8))
    for descriptor in found.capture_order:
        shape = fitting_shape(descriptor, found.limits, Random(0))
        assert (sum(shape.query_lens) < descriptor.num_tokens) is (descriptor.num_tokens > 1)


@untimed
@given(limits(), st.integers(0, 99))
def test_a_random_batch_holds_the_limits_and_is_asked_for_as_what_it_is(given_limits: BatchLimits, seed: int) -> None:
    batch = random_batch(given_limits, Random(seed))
    assert 1 <= batch.num_tokens <= given_limits.max_num_batched_tokens
    assert 1 <= len(batch.query_lens) <= given_limits.max_num_seqs
    prefilling = [batch.prefilling] * len(batch.query_lens)
    asked = batch.asked()
    assert asked.uniform_token_count == uniform_tokens(batch.query_lens, prefilling)
    assert asked.max_query_len == longest_query(batch.query_lens, prefilling)
    assert (asked.num_reqs, asked.num_tokens) == (len(batch.query_lens), sum(batch.query_lens))


def test_random_batches_reach_full_piecewise_and_none() -> None:
    found = candidates(CUDAGraphMode.FULL_AND_PIECEWISE, [1, 2, 4, 8, 16], BatchLimits(64, 8))
    dispatcher, chance = Dispatcher(found), Random(0)
    dispatcher.enable()
    modes = set()
    for _ in range(100):
        asked = random_batch(found.limits, chance).asked()
        modes.add(dispatcher.dispatch(asked.num_reqs, asked.num_tokens, asked.uniform_token_count).mode)
    assert modes == {CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE}


def test_equal_seeds_draw_equally() -> None:
    drawn = [[random_batch(BatchLimits(), Random(seed)) for _ in range(3)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_a_decode_step_brings_drafts_too() -> None:
    assert decode_batch(3, BatchLimits(drafts=2)) == TrialBatch((3, 3, 3), prefilling=False)
