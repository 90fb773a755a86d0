"""Graph support is ordered, and the weakest op decides."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from precast.capture.support import AttentionGraphSupport, weakest


def test_each_kind_includes_those_before_it_and_has_words() -> None:
    named = ["NEVER", "SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS"]
    assert [support.name for support in sorted(AttentionGraphSupport)] == named
    assert all(one < two for one, two in pairwise(AttentionGraphSupport))
    assert len({support.told for support in AttentionGraphSupport}) == len(named)


@given(st.lists(st.sampled_from(list(AttentionGraphSupport))))
def test_the_weakest_is_supported_by_all_and_nothing_stronger_is(supports: list[AttentionGraphSupport]) -> None:
    found = weakest(supports)
    for wanted in AttentionGraphSupport:
        assert all(support >= wanted for support in supports) == (found >= wanted)
