"""Limits of a batch: what they refuse, and the drafts of each width."""

import pytest
from hypothesis import given
from tests.capture.batches import limits, limits_of, untimed

from precast.capture.limits import BatchLimits, DraftTier, LoraLimits
from precast.errors import ConfigValueError


@untimed
@given(limits())
def test_tiers_are_the_widest_batch_of_each_query_length(given_limits: BatchLimits) -> None:
    widest = {}
    for reqs in range(1, given_limits.max_num_seqs + 1):
        fitting = sorted((t.max_reqs, t.drafts) for t in given_limits.draft_schedule if reqs <= t.max_reqs)
        drafts = fitting[0][1] if fitting else 0 if given_limits.draft_schedule else given_limits.drafts
        assert given_limits.drafts_of(reqs) == drafts
        widest[1 + drafts] = reqs
    assert given_limits.decode_tiers == tuple(sorted(widest.items()))


def test_a_number_of_drafts_may_come_back_for_wider_batches() -> None:
    schedule = (DraftTier(16, 1), DraftTier(4, 3), DraftTier(8, 0), DraftTier(100, 0))
    assert BatchLimits(max_num_seqs=32, drafts=3, draft_schedule=schedule).decode_tiers == ((1, 32), (2, 16), (4, 4))


@pytest.mark.parametrize(
    ("tiers", "named"),
    [
        ([(0, 1)], "1 drafts up to 0 requests"),
        ([(4, -1)], "-1 drafts up to 4 requests"),
        ([(4, 3)], "3 drafts up to 4 requests"),
        ([(4, 2), (8, 1), (4, 1)], "two tiers up to 4 requests"),
    ],
)
def test_a_schedule_that_no_batch_can_follow_is_refused(tiers: list[tuple[int, int]], named: str) -> None:
    with pytest.raises(ConfigValueError, match=named):
        BatchLimits(drafts=2, draft_schedule=tuple(DraftTier(*t) for t in tiers))


@pytest.mark.parametrize(
    ("name", "value"), [("max_num_batched_tokens", 0), ("max_num_seqs", 0), ("drafts", -1), ("num_ubatches", 0)]
)
def test_a_count_below_the_least_is_named(name: str, value: int) -> None:
    with pytest.raises(ConfigValueError, match=f"`{name}` cannot be {value}"):
        limits_of({name: value})


def test_a_negative_number_of_adapters_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="max_loras"):
        LoraLimits(max_loras=-1)
