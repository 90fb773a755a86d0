"""Holes put together, and spans of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import limits_of

from precast.capture.coverage import coverage
from precast.capture.holes import Span, holes_of, spans
from precast.capture.modes import CUDAGraphMode
from precast.capture.traffic import BatchKind, decode_batches, default_traffic


@given(st.lists(st.integers(1, 60)))
def test_spans_hold_every_number_once_and_no_other(numbers: list[int]) -> None:
    found = spans(numbers)
    told = [number for span in found for number in range(span.first, span.last + 1, span.step)]
    assert sorted(told) == sorted(set(numbers))
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], []),
        ([5], [Span(5, 5)]),
        ([9, 12, 10, 11, 9], [Span(9, 12)]),
        (range(12, 49, 4), [Span(12, 48, 4)]),
        ([1, 2, 7], [Span(1, 2), Span(7, 7)]),
        ([1, 5, 6, 7], [Span(1, 1), Span(5, 7)]),
    ],
)
def test_numbers_with_equal_steps_are_one_span(numbers: list[int], expected: list[Span]) -> None:
    assert spans(numbers) == tuple(expected)


def test_batches_of_one_kind_and_reason_are_one_hole() -> None:
    found_limits = limits_of({"max_num_batched_tokens": 64, "max_num_seqs": 12, "drafts": 3})
    found = coverage(CUDAGraphMode.FULL_AND_PIECEWISE, [1, 2, 4, 8], found_limits, default_traffic(found_limits))
    decode, mixed = holes_of(found.batches)
    assert (decode.kind, decode.requests, decode.tokens) == (BatchKind.DECODE, (Span(3, 12),), (Span(12, 48, 4),))
    assert (decode.runs, decode.wanted) == (CUDAGraphMode.NONE, CUDAGraphMode.FULL)
    assert (decode.query_len, decode.batches, decode.count) == (4, 10, 10)
    assert (mixed.kind, mixed.tokens, mixed.query_len) == (BatchKind.MIXED, (Span(9, 64),), None)
    assert sum(hole.batches for hole in (decode, mixed)) == len(found.holes)


def test_decode_steps_of_different_lengths_are_holes_of_their_own() -> None:
    given_limits = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "drafts": 2, "draft_schedule": [[4, 2], [6, 0]]}
    found_limits = limits_of(given_limits)
    found = coverage(CUDAGraphMode.FULL, [4], found_limits, decode_batches(found_limits, range(1, 7)))
    assert [(hole.query_len, hole.tokens) for hole in holes_of(found.batches)] == [
        (3, (Span(6, 12, 3),)),
        (1, (Span(5, 6),)),
    ]
