"""Candidates: golden tables, then every possible descriptor and token count against the rule."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import MODES, descriptor_of, golden, limits, limits_of, untimed

from precast.capture.candidates import candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.loras import lora_cases
from precast.capture.modes import CUDAGraphMode
from precast.errors import ConfigValueError

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
SIZES = st.lists(st.integers(1, 60), max_size=8)


@pytest.mark.parametrize("case", golden("candidates"), ids=lambda case: str(case["case"]))
def test_golden(case: dict[str, Any]) -> None:
    made = candidates(CUDAGraphMode[case["mode"]], case["sizes"], limits_of(case["limits"]))
    assert list(made.capture_order) == [descriptor_of(d) for d in case["capture_order"]]


def possible(mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits) -> Iterator[BatchDescriptor]:
    """Yield what the rule wants, by trying every number of tokens and of requests."""
    most_reqs, longest = given_limits.max_num_seqs, given_limits.decode_query_len
    lengths = {1 + given_limits.drafts_of(r) for r in range(1, most_reqs + 1)}
    for case in lora_cases(given_limits.lora):
        for tokens in range(1, max(sizes, default=0) + 1):
            is_size = tokens in sizes
            if is_size and mode.mixed_mode is PIECEWISE:
                yield BatchDescriptor(PIECEWISE, tokens, num_active_loras=case)
            for reqs in range(1, most_reqs + 1):
                if mode.is_pair and not given_limits.adaptive_verification:
                    length, rest = divmod(tokens, reqs)
                    rounds_up = any(tokens - length < size <= tokens for size in sizes)
                    if rest == 0 and length in lengths and rounds_up:
                        yield BatchDescriptor(FULL, tokens, reqs, length, num_active_loras=case)
                if is_size and reqs == min(tokens, most_reqs):
                    if mode.mixed_mode is FULL:
                        yield BatchDescriptor(FULL, tokens, reqs, num_active_loras=case)
                    if mode.is_pair and given_limits.adaptive_verification and tokens <= most_reqs * longest:
                        yield BatchDescriptor(FULL, tokens, reqs, None, longest, case)


def has_twin(descriptor: BatchDescriptor, given_limits: BatchLimits) -> bool:
    tokens, reqs = descriptor.num_tokens, descriptor.num_reqs
    return (
        given_limits.num_ubatches > 1
        and descriptor.mode is FULL
        and reqs is not None
        and tokens % reqs == 0
        and descriptor.max_query_len is None
        and tokens >= given_limits.num_ubatches
        and tokens >= given_limits.ubatch_decode_tokens
    )


@untimed
@given(MODES, SIZES, limits())
def test_candidates_are_those_the_rule_wants(mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits) -> None:
    made = candidates(mode, sizes, given_limits)
    assert len(set(made.capture_order)) == len(made.capture_order)
    single = {d for d in made.capture_order if d.num_ubatches == 1}
    assert single == set(possible(mode, sizes, given_limits))
    twins = [d for d in made.capture_order if d.num_ubatches != 1]
    fields = ("mode", "num_tokens", "num_reqs", "uniform_token_count", "max_query_len", "num_active_loras")
    wanted = {tuple(getattr(d, f) for f in fields) for d in single if has_twin(d, given_limits)}
    assert {tuple(getattr(d, f) for f in fields) for d in twins} == wanted
    assert {d.num_ubatches for d in twins} <= {given_limits.num_ubatches}


@untimed
@given(MODES, SIZES, limits())
def test_pieces_come_first_and_the_largest_of_each_mode(
    mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits
) -> None:
    made = candidates(mode, sizes, given_limits)
    assert made.capture_order == made.of(PIECEWISE) + made.of(FULL)
    for captured in (made.of(PIECEWISE), made.of(FULL)):
        tokens = [d.num_tokens for d in captured]
        assert tokens == sorted(tokens, reverse=True)


@untimed
@given(MODES, SIZES, limits(), st.integers(0, 12))
def test_a_token_count_sees_the_next_size_of_each_mode(
    mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits, loras: int
) -> None:
    made = candidates(mode, sizes, given_limits)
    case = made.lora_case(loras)
    for tokens in range(-1, max(sizes, default=0) + 3):
        seen = made.seen(tokens, loras)
        expected = []
        for one in (FULL, PIECEWISE):
            fitting = [d for d in made.of(one) if d.num_active_loras == case and d.num_tokens >= tokens > 0]
            following = min((d.num_tokens for d in fitting), default=0)
            expected += [d for d in fitting if d.num_tokens == following]
        assert set(seen) == set(expected)
        assert len(seen) == len(expected)
        assert [d.mode for d in seen] == [d.mode for d in expected]


@untimed
@given(MODES, SIZES, limits())
def test_order_and_repetition_of_sizes_change_nothing(
    mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits
) -> None:
    assert candidates(mode, sizes, given_limits) == candidates(mode, [*reversed(sizes), *sizes], given_limits)


def test_the_split_twin_comes_right_after_its_own() -> None:
    made = candidates(
        CUDAGraphMode.FULL_DECODE_ONLY, [4], BatchLimits(max_num_seqs=4, num_ubatches=2, ubatch_decode_tokens=1)
    )
    assert [d.num_ubatches for d in made.capture_order] == [1, 2]
    assert [d.num_ubatches for d in made.seen(3)] == [1, 2]


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="cannot be 0"):
        candidates(FULL, [0, 4], BatchLimits())
