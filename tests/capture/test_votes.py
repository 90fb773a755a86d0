from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.batches import MODES, limits, untimed

from precast.capture.candidates import Candidates, candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, Dispatcher
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.votes import Agreed, Vote, merge, settle
from precast.errors import RankDiffersError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
LORAS = st.integers(0, 3)


@st.composite
def batches(draw: st.DrawFn, bounds: BatchLimits) -> Batch:
    """Draw a batch within limits, idle now and then."""
    if draw(st.integers(0, 4)) == 0:
        return Batch(0, 0)
    splits = draw(st.sampled_from((1, bounds.num_ubatches)))
    loras = draw(st.integers(0, bounds.lora.max_loras))
    reqs = draw(st.integers(1, bounds.max_num_seqs))
    if draw(st.booleans()):
        each = draw(st.integers(1, bounds.decode_query_len))
        return Batch(reqs, reqs * each, each, loras, each, splits)
    tokens = draw(st.integers(reqs, 320))
    longest = draw(st.one_of(st.none(), st.integers(1, bounds.decode_query_len)))
    return Batch(reqs, tokens, None, loras, longest, splits)


VOTES = st.builds(
    Vote,
    st.builds(
        Batch, st.integers(0, 4), st.integers(0, 5), st.sampled_from((None, 1, 2)), LORAS,
        st.sampled_from((None, 1, 2, 3)), st.integers(1, 2),
    ),
    st.sampled_from((NONE, PIECEWISE, FULL)),
)  # fmt: skip


def obeys(agreed: Agreed, votes: list[Vote], threshold: int) -> bool:
    """Tell whether an agreement is what the rules ask for, each rule as its own sentence."""
    working = [v for v in votes if v.batch.num_tokens]
    modes = [v.mode for v in working]
    lens = [v.batch.max_query_len for v in working]
    uniform_ok = (
        all(v.batch.uniform_token_count == agreed.uniform_token_count for v in working)
        if agreed.uniform_token_count
        else not any(all(v.batch.uniform_token_count == n for v in working) for n in (1, 2))
    )
    longest_ok = (
        None in lens
        if agreed.max_query_len is None
        else None not in lens and agreed.max_query_len in lens and all(n <= agreed.max_query_len for n in lens if n)
    )
    all_split = all(v.batch.num_ubatches == 2 and v.batch.num_tokens >= max(threshold, 2) for v in votes)
    return (
        agreed.mode in modes
        and all(agreed.mode.value <= mode.value for mode in modes)
        and agreed.num_tokens in [v.batch.num_tokens for v in working]
        and all(v.batch.num_tokens <= agreed.num_tokens for v in working)
        and uniform_ok
        and longest_ok
        and (agreed.num_ubatches == 2) == all_split
    )


@untimed
@given(st.lists(VOTES, min_size=1, max_size=4), st.integers(1, 5))
def test_merge_is_the_one_agreement_that_obeys_the_rules(votes: list[Vote], threshold: int) -> None:
    space = product((NONE, PIECEWISE, FULL), range(1, 6), (None, 1, 2), (None, 1, 2, 3), (1, 2))
    fitting = [a for a in (Agreed(*fields) for fields in space) if obeys(a, votes, threshold)]
    merged = merge(votes, threshold)
    if all(v.idle for v in votes):
        assert merged is None
    else:
        assert fitting == [merged]


@given(VOTES)
def test_a_vote_survives_its_integers(vote: Vote) -> None:
    assert Vote.of_row(vote.row()) == vote


@untimed
@given(st.data())
def test_all_ranks_run_the_same_rows_or_all_run_without_graphs(data: st.DataObject) -> None:
    bounds = data.draw(limits())
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True))
    table = candidates(data.draw(MODES), sorted(sizes), bounds)
    dispatcher = Dispatcher(table)
    dispatcher.enable()
    ranks = data.draw(st.lists(batches(bounds), min_size=1, max_size=4))
    votes = [Vote(batch, dispatched(dispatcher, batch).mode) for batch in ranks]
    descriptors = settle(votes, table).descriptors
    working = [v for v in votes if not v.idle]
    if not working:
        assert all(d.num_tokens == 0 for d in descriptors)
        return
    graphs = [d.mode is not NONE for d in descriptors]
    assert all(graphs) or not any(graphs)
    if all(graphs):
        assert NONE not in [v.mode for v in working]
        assert len({d.num_tokens for d in descriptors}) == 1
        for vote, descriptor in zip(votes, descriptors, strict=True):
            check_fits(table, vote, descriptor)
    else:
        rows = [max(v.batch.num_tokens, 1) for v in votes]
        assert [d.num_tokens for d in descriptors] == rows


def dispatched(dispatcher: Dispatcher, batch: Batch) -> BatchDescriptor:
    return dispatcher.dispatch(
        batch.num_reqs, batch.num_tokens, batch.uniform_token_count, batch.num_active_loras, batch.max_query_len,
        batch.num_ubatches,
    )  # fmt: skip


def check_fits(table: Candidates, vote: Vote, descriptor: BatchDescriptor) -> None:
    batch = vote.batch
    assert descriptor in table.capture_order
    assert batch.num_tokens <= descriptor.num_tokens
    assert descriptor.num_reqs is None or batch.num_reqs <= descriptor.num_reqs
    assert descriptor.num_active_loras == table.lora_case(batch.num_active_loras)
    if not vote.idle:
        assert descriptor.uniform_token_count in (None, batch.uniform_token_count)


def table(num_ubatches: int = 1) -> Candidates:
    bounds = BatchLimits(max_num_seqs=16, num_ubatches=num_ubatches, ubatch_decode_tokens=2)
    return candidates(CUDAGraphMode.FULL_AND_PIECEWISE, (1, 2, 4, 8, 16), bounds)


def decode(reqs: int, splits: int = 1, each: int = 1) -> Vote:
    return Vote(Batch(reqs, reqs * each, each, 0, each, splits), FULL)


IDLE = Vote(Batch(0, 0), NONE)


def test_decode_ranks_pad_to_the_widest() -> None:
    settled = settle([decode(3), decode(7)], table())
    assert settled.descriptors == (BatchDescriptor(FULL, 8, 8, 1),) * 2


def test_a_prefill_takes_the_other_ranks_along_to_pieces() -> None:
    prefill = Vote(Batch(1, 5), PIECEWISE)
    assert settle([decode(3), prefill], table()).descriptors == (BatchDescriptor(PIECEWISE, 8),) * 2


def test_one_rank_without_a_graph_leaves_all_unpadded() -> None:
    large = Vote(Batch(2, 17), NONE)
    found = settle([decode(3), large, IDLE], table()).descriptors
    assert found == (BatchDescriptor(NONE, 3, 3), BatchDescriptor(NONE, 17, 2), BatchDescriptor(NONE, 1, 1))


def test_an_idle_rank_runs_the_graph_of_the_others() -> None:
    assert settle([IDLE, decode(3)], table()).descriptors == (BatchDescriptor(FULL, 4, 4, 1),) * 2


def test_drafts_of_different_length_leave_no_graph_where_only_decode_has_graphs() -> None:
    bounds = BatchLimits(max_num_seqs=16, drafts=1)
    only_decode = candidates(CUDAGraphMode.FULL_DECODE_ONLY, (2, 4, 8), bounds)
    found = settle([decode(2, each=2), decode(3)], only_decode).descriptors
    assert found == (BatchDescriptor(NONE, 4, 2), BatchDescriptor(NONE, 3, 3))


@pytest.mark.parametrize(
    ("others", "mode", "splits"),
    [
        (decode(8, 2), FULL, 2),
        (decode(8, 1), FULL, 1),  # one rank does not split
        (decode(4, 2), FULL, 2),  # its second microbatch begins where its tokens end
        (decode(3, 2), NONE, 2),  # its second microbatch would be padding alone
        (IDLE, FULL, 1),
    ],
)
def test_microbatches_need_every_rank(others: Vote, mode: CUDAGraphMode, splits: int) -> None:
    found = settle([decode(8, 2), others], table(num_ubatches=2)).descriptors
    assert {(d.mode, d.num_ubatches) for d in found} == {(mode, splits)}


def test_ranks_that_come_to_different_rows_are_named() -> None:
    bounds = BatchLimits(max_num_seqs=8, drafts=2)
    drafts = candidates(CUDAGraphMode.FULL_AND_PIECEWISE, (4, 8), bounds)
    wrong = Vote(Batch(4, 6, 3, 0, 3), PIECEWISE)  # 4 requests of 3 tokens are not 6 tokens
    with pytest.raises(RankDiffersError) as caught:
        settle([decode(2, each=3), decode(1, each=3), wrong], drafts)
    assert caught.value.details == {"ranks": [2], "num_tokens": [6, 6, 8]}


def test_one_rank_whose_requests_fit_no_graph_leaves_all_without() -> None:
    full = candidates(CUDAGraphMode.FULL, (1, 2, 4), BatchLimits(max_num_seqs=4))
    crowded = Vote(Batch(9, 4), FULL)  # 9 requests of 4 tokens: there are 4 slots
    found = settle([Vote(Batch(2, 2), FULL), crowded], full).descriptors
    assert found == (BatchDescriptor(NONE, 2, 2), BatchDescriptor(NONE, 4, 9))
