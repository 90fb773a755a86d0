"""Dispatch: golden tables, then random batches against the rule read word for word, and the counters."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import MODES, descriptor_of, golden, limits, limits_of, untimed

from precast.capture.candidates import Candidates, candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, Dispatcher, Miss, longest_query, uniform_tokens, why_none
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


def enabled(found: Candidates) -> Dispatcher:
    dispatcher = Dispatcher(found)
    dispatcher.enable()
    return dispatcher


def ask(dispatcher: Dispatcher, batch: Batch) -> BatchDescriptor:
    return dispatcher.dispatch(
        batch.num_reqs,
        batch.num_tokens,
        batch.uniform_token_count,
        batch.num_active_loras,
        batch.max_query_len,
        batch.num_ubatches,
    )


@pytest.mark.parametrize("case", golden("dispatch"), ids=lambda case: str(case["case"]))
def test_golden(case: dict[str, Any]) -> None:
    found = candidates(CUDAGraphMode[case["mode"]], case["sizes"], limits_of(case["limits"]))
    for row in case["batches"]:
        dispatcher = enabled(found)
        assert dispatcher.dispatch(**row["batch"]) == descriptor_of(row["runs"]), row
        why = Miss[row["why"]] if "why" in row else None
        assert why_none(found, Batch(**row["batch"])) == why, row
        counts = dispatcher.counts()
        assert counts.misses == ({} if why is None else {why: 1}), row
        assert counts.hits == ({descriptor_of(row["runs"]): 1} if why is None else {}), row


def by_the_rule(found: Candidates, batch: Batch) -> BatchDescriptor:
    """Search the candidates as seed step 9 tells it, without a table."""
    case = found.lora_case(batch.num_active_loras)
    for mode in (FULL, PIECEWISE):
        larger = [d for d in found.of(mode) if d.num_active_loras == case and d.num_tokens >= batch.num_tokens > 0]
        following = min((d.num_tokens for d in larger), default=0)
        for d in larger:
            if (
                d.num_tokens == following
                and (d.uniform_token_count is None or d.uniform_token_count == batch.uniform_token_count)
                and (
                    d.max_query_len is None
                    or (batch.max_query_len is not None and d.max_query_len >= batch.max_query_len)
                )
                and (d.num_reqs is None or d.num_reqs >= batch.num_reqs)
                and d.num_ubatches == batch.num_ubatches
            ):
                return d
    loras = batch.num_active_loras if case is None else case
    return BatchDescriptor(
        NONE, batch.num_tokens, batch.num_reqs, num_active_loras=loras, num_ubatches=batch.num_ubatches
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    reqs = draw(st.integers(0, 45))
    uniform = draw(st.none() | st.integers(1, 5))
    tokens = reqs * uniform if uniform else draw(st.integers(0, 70))
    longest = draw(st.none() | st.just(uniform) | st.integers(1, 6))
    return Batch(reqs, tokens, uniform, draw(st.integers(0, 3) | st.integers(0, 14)), longest, draw(st.integers(1, 3)))


@untimed
@given(MODES, st.lists(st.integers(1, 60), max_size=8), limits(), st.lists(batches(), min_size=1, max_size=20))
def test_the_table_finds_what_the_rule_finds(
    mode: CUDAGraphMode, sizes: list[int], given_limits: BatchLimits, asked: list[Batch]
) -> None:
    found = candidates(mode, sizes, given_limits)
    dispatcher = enabled(found)
    for batch in asked:
        expected = by_the_rule(found, batch)
        assert ask(dispatcher, batch) == expected
        assert (why_none(found, batch) is None) == (expected.mode is not NONE)
    counts = dispatcher.counts()
    assert sum(counts.hits.values()) + sum(counts.misses.values()) == len(asked)
    for descriptor, times in counts.hits.items():
        assert times == sum(by_the_rule(found, batch) == descriptor for batch in asked)


def test_before_capture_and_after_release_every_batch_is_none() -> None:
    dispatcher = Dispatcher(candidates(FULL, [4], BatchLimits()))
    states = [dispatcher.enabled]
    ran = [dispatcher.dispatch(2, 3)]
    for change in (dispatcher.enable, dispatcher.disable):
        change()
        states.append(dispatcher.enabled)
        ran.append(dispatcher.dispatch(2, 3))
    none = BatchDescriptor(NONE, 3, 2)
    assert states == [False, True, False]
    assert ran == [none, BatchDescriptor(FULL, 4, 4), none]
    assert dispatcher.counts().misses == {Miss.NOT_CAPTURED: 2}
    assert sum(dispatcher.counts().hits.values()) == 1


def test_with_no_graphs_a_dispatcher_is_never_waiting_for_a_capture() -> None:
    dispatcher = Dispatcher(candidates(NONE, [], BatchLimits()))
    dispatcher.dispatch(1, 1, 1)
    dispatcher.enable()
    dispatcher.dispatch(1, 1, 1)
    assert dispatcher.counts().misses == {Miss.NO_GRAPHS: 2}


def test_the_reason_is_that_of_the_candidate_that_came_nearest() -> None:
    """Size 6 is FULL for 2 requests of 3 tokens and for 6 of 1; seven requests of 1 token come nearer to the latter."""
    given_limits = limits_of({"max_num_seqs": 8, "drafts": 2, "draft_schedule": [[2, 2], [8, 0]]})
    found = candidates(CUDAGraphMode.FULL_DECODE_ONLY, [6], given_limits)
    assert {d.uniform_token_count for d in found.seen(6)} == {1, 3}
    assert why_none(found, Batch(7, 6, 1)) is Miss.TOO_MANY_REQS
    assert why_none(found, Batch(3, 6, 2)) is Miss.NOT_UNIFORM
    assert why_none(found, Batch(7, 6, 1, num_ubatches=2)) is Miss.MICROBATCHES


@untimed
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 2)), max_size=4), st.booleans())
def test_a_uniform_batch_has_no_prefill_of_more_than_one_known_token(
    requests: list[tuple[int, bool, int]], with_contexts: bool
) -> None:
    lengths = [length for length, _, _ in requests]
    prefilling = [is_prefill for _, is_prefill, _ in requests]
    contexts = [context for _, _, context in requests]
    decodes = all(not p or (n == 1 and with_contexts and c > 0) for n, p, c in requests)
    equal = bool(requests) and sum(lengths) == max(lengths) * len(requests) > 0
    expected = max(lengths) if equal and decodes else None
    assert uniform_tokens(lengths, prefilling, contexts if with_contexts else None) == expected


@pytest.mark.parametrize(
    ("lengths", "prefilling", "longest"),
    [([1, 3, 2], [False] * 3, 3), ([1, 3], [True, False], None), ([], [], None)],
)
def test_the_longest_query_is_unknown_with_a_prefill(
    lengths: list[int], prefilling: list[bool], longest: int | None
) -> None:
    assert longest_query(lengths, prefilling) == longest
