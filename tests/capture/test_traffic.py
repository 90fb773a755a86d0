"""Expected batches: those that limits allow, and those that a file counts."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import limits, limits_of, untimed

from precast.capture.dispatch import Batch
from precast.capture.limits import BatchLimits
from precast.capture.traffic import (
    BatchKind,
    ExpectedBatch,
    decode_batches,
    default_traffic,
    kind_of,
    mixed_batches,
    read_traffic,
    too_large,
)
from precast.errors import ConfigValueError


@untimed
@given(limits(most_seqs=12))
def test_every_decode_step_and_token_count_within_the_limits_is_there_once(found: BatchLimits) -> None:
    budget = found.max_num_batched_tokens
    every = [expected.batch for expected in default_traffic(found)]
    assert len(set(every)) == len(every)
    assert all(1 <= batch.num_reqs <= min(batch.num_tokens, found.max_num_seqs) for batch in every)
    kinds = {kind: [b for b in every if kind_of(b, found) is kind] for kind in BatchKind}
    assert [b.num_tokens for b in kinds[BatchKind.MIXED]] == list(range(1, budget + 1))
    whole = [b for b in kinds[BatchKind.DECODE] if b.num_ubatches == 1]
    split = [b for b in kinds[BatchKind.DECODE] if b.num_ubatches > 1]
    least = max(found.num_ubatches, found.ubatch_decode_tokens)
    assert [b.num_tokens for b in split] == [
        b.num_tokens for b in whole if found.num_ubatches > 1 and b.num_tokens >= least
    ]
    steps = {reqs: reqs * (1 + found.drafts_of(reqs)) for reqs in range(1, found.max_num_seqs + 1)}
    if found.adaptive_verification:
        possible = {n for reqs, most in steps.items() for n in range(reqs, most + 1) if n <= budget}
        assert [b.num_tokens for b in whole] == sorted(possible)
        assert too_large(found) == tuple(reqs for reqs in steps if reqs > budget)
    else:
        assert {b.num_reqs: b.num_tokens for b in whole} == {r: n for r, n in steps.items() if n <= budget}
        assert too_large(found) == tuple(reqs for reqs, most in steps.items() if most > budget)


def test_with_adaptive_verification_a_batch_is_the_widest_of_its_tokens_and_has_a_request_as_long_as_can_be() -> None:
    found = limits_of({"max_num_batched_tokens": 64, "max_num_seqs": 3, "drafts": 2, "adaptive_verification": True})
    every = [expected.batch for expected in decode_batches(found, [1, 2, 3])]
    options: dict[int, set[tuple[int, int]]] = {}
    for reqs in (1, 2, 3):
        for lens in product((1, 2, 3), repeat=reqs):
            options.setdefault(sum(lens), set()).add((reqs, max(lens)))
    assert [b.num_tokens for b in every] == sorted(options)
    for batch in every:
        widest = max(reqs for reqs, _ in options[batch.num_tokens])
        longest = max(most for reqs, most in options[batch.num_tokens] if reqs == widest)
        assert (batch.num_reqs, batch.max_query_len) == (widest, longest)


def test_named_batches_may_be_beyond_the_limits() -> None:
    found = BatchLimits(8, 4, drafts=1)
    assert [e.batch for e in decode_batches(found, [9])] == [Batch(9, 18, 2, max_query_len=2)]
    assert [e.batch for e in mixed_batches(found, [3, 99])] == [Batch(3, 3), Batch(4, 99)]


LIMITS = limits_of({"max_num_seqs": 16, "drafts": 2, "num_ubatches": 2, "ubatch_decode_tokens": 6})


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        ({"query_lens": [3, 3]}, Batch(2, 6, 3, max_query_len=3)),
        ({"query_lens": [1, 3]}, Batch(2, 4, None, max_query_len=3)),
        ({"query_lens": [1, 30]}, Batch(2, 31)),
        ({"query_lens": [3, 3], "prefill": True}, Batch(2, 6)),
        ({"query_lens": [3, 3], "prefill": [True, False]}, Batch(2, 6)),
        ({"query_lens": [9], "prefill": False}, Batch(1, 9, 9, max_query_len=9)),
        ({"requests": 4, "tokens": 12}, Batch(4, 12, 3, max_query_len=3)),
        ({"requests": 4, "tokens": 11}, Batch(4, 11)),
        ({"requests": 4, "tokens": 12, "prefill": True}, Batch(4, 12)),
        ({"requests": 4, "tokens": 11, "prefill": False}, Batch(4, 11, None, max_query_len=3)),
        ({"requests": 4, "tokens": 12, "loras": 3, "ubatches": 2}, Batch(4, 12, 3, 3, 3, 2)),
    ],
)
def test_a_line_is_a_batch(line: dict[str, object], batch: Batch) -> None:
    assert read_traffic([json.dumps({**line, "count": 2.5})], LIMITS) == (ExpectedBatch(batch, 2.5),)


def test_with_adaptive_verification_any_short_step_is_a_decode_step() -> None:
    found = limits_of({"drafts": 2, "adaptive_verification": True})
    (batch,) = (e.batch for e in read_traffic(['{"requests": 4, "tokens": 11}'], found))
    assert kind_of(batch, found) is BatchKind.DECODE


def test_equal_batches_are_added_up_and_empty_lines_are_nothing() -> None:
    lines = ['{"requests": 1, "tokens": 3, "count": 2}', "", '{"query_lens": [3]}', '{"query_lens": [2]}']
    found = {e.batch.num_tokens: e.count for e in read_traffic(lines, LIMITS)}
    assert found == {3: 3, 2: 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting property name"),
        ("[1]", "is no JSON object"),
        ('{"request": 1, "tokens": 1}', "`request` is unknown"),
        ('{"requests": 1}', "neither `query_lens` nor"),
        ('{"query_lens": [1], "tokens": 1}', "`query_lens` says requests and tokens already"),
        ('{"query_lens": []}', "no list of whole numbers above 0"),
        ('{"query_lens": [0]}', "no list of whole numbers above 0"),
        ('{"query_lens": [true]}', "no list of whole numbers above 0"),
        ('{"query_lens": [1], "prefill": [true, false]}', "`prefill` is neither"),
        ('{"requests": 2, "tokens": 1}', "more `requests` than `tokens`"),
        ('{"requests": 0, "tokens": 1}', "`requests` is no whole number from 1"),
        ('{"requests": 1, "tokens": 1.5}', "`tokens` is no whole number from 1"),
        ('{"requests": 1, "tokens": 1, "prefill": "no"}', "`prefill` is no boolean"),
        ('{"requests": 1, "tokens": 1, "count": 0}', "`count` is no number above 0"),
        ('{"requests": 1, "tokens": 1, "count": Infinity}', "`count` is no number above 0"),
        ('{"requests": 1, "tokens": 1, "loras": -1}', "`loras` is no whole number from 0"),
        ('{"requests": 1, "tokens": 3, "ubatches": 2}', "not split into 2 microbatches"),
        ('{"requests": 4, "tokens": 12, "ubatches": 3}', "not split into 3 microbatches"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(line: str, why: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        read_traffic(['{"query_lens": [1]}', line], LIMITS, "day.jsonl")
    assert caught.value.what == "day.jsonl cannot be read"
    assert caught.value.why.startswith("line 2: ")
    assert why in caught.value.why


def test_all_wrong_lines_are_told_at_once_the_first_by_name() -> None:
    with pytest.raises(ConfigValueError) as caught:
        read_traffic(["{}"] * 5, LIMITS)
    assert all(f"line {number}: " in caught.value.why for number in (1, 2, 3))
    assert caught.value.why.endswith("; and 2 more")


def test_a_file_without_batches_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="holds no batch"):
        read_traffic(["", " "], LIMITS)


@untimed
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_lengths_and_sums_of_a_decode_step_are_the_same_batch(lens: list[int]) -> None:
    found = limits_of({"drafts": max(lens) - 1})
    by_lens = read_traffic([json.dumps({"query_lens": [max(lens)] * len(lens)})], found)
    by_sums = read_traffic([json.dumps({"requests": len(lens), "tokens": max(lens) * len(lens)})], found)
    assert by_lens == by_sums
