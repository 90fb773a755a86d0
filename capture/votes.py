"""Votes: what each data-parallel rank says of its batch, and what all of them then run (vllm-behaviour.md step 9).

Ranks whose layers exchange tokens must compute the same number of rows, padded ones included. Every rank gets every
vote, and all have the same table of graphs, so that each knows what every other one comes to and all of them see a
disagreement in the same step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, choose
from precast.capture.modes import CUDAGraphMode
from precast.errors import RankDiffersError

__all__ = ["VOTE_ROWS", "Agreed", "Settled", "Vote", "merge", "settle"]

VOTE_ROWS = 7
_NONE = CUDAGraphMode.NONE


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank says.

    Attributes:
        batch: Its batch; 0 tokens where the rank is idle.
        mode: Mode that its own dispatch found: NONE, PIECEWISE or FULL.
    """

    batch: Batch
    mode: CUDAGraphMode

    @property
    def idle(self) -> bool:
        """Whether the rank has nothing to compute."""
        return self.batch.num_tokens == 0

    def row(self) -> tuple[int, ...]:
        """Return the vote as `VOTE_ROWS` small integers."""
        batch = self.batch
        longest = -1 if batch.max_query_len is None else batch.max_query_len
        return (
            batch.num_tokens, self.mode.value, batch.uniform_token_count or 0, longest, batch.num_ubatches,
            batch.num_reqs, batch.num_active_loras,
        )  # fmt: skip

    @classmethod
    def of_row(cls, row: Sequence[int]) -> "Vote":
        """Return the vote that `row` made the integers of."""
        tokens, mode, uniform, longest, ubatches, reqs, loras = row
        batch = Batch(reqs, tokens, uniform or None, loras, None if longest < 0 else longest, ubatches)
        return cls(batch, CUDAGraphMode(mode))


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the votes come to, before any rank dispatches again.

    Attributes:
        mode: The lowest mode of all ranks that are not idle.
        num_tokens: Most tokens of a rank.
        uniform_token_count: Tokens that every request of every rank brings; None where they differ.
        max_query_len: Most tokens that a request of any rank brings; None where a rank did not say.
        num_ubatches: Microbatches that every rank splits its batch into.
    """

    mode: CUDAGraphMode
    num_tokens: int
    uniform_token_count: int | None
    max_query_len: int | None
    num_ubatches: int

    def batch_of(self, own: Batch) -> Batch:
        """Return what a rank dispatches again: what was agreed, with its own requests and adapters."""
        return Batch(
            own.num_reqs, self.num_tokens, self.uniform_token_count, own.num_active_loras, self.max_query_len,
            self.num_ubatches,
        )  # fmt: skip


def merge(votes: Sequence[Vote], ubatch_tokens: int) -> Agreed | None:
    """Return what the votes come to; None where every rank is idle and nothing runs.

    An idle rank has no say, as it runs padded rows that fit any graph; but nobody then splits into microbatches, as one
    of the idle rank's would be all padding.

    Args:
        votes: The vote of each rank.
        ubatch_tokens: Fewest tokens of a batch that is split into microbatches.
    """
    working = [vote for vote in votes if not vote.idle]
    if not working:
        return None
    uniform = {vote.batch.uniform_token_count for vote in working}
    longest = [vote.batch.max_query_len for vote in working]
    known = [length for length in longest if length is not None]
    return Agreed(
        mode=min((vote.mode for vote in working), key=lambda mode: int(mode.value)),
        num_tokens=max(vote.batch.num_tokens for vote in working),
        uniform_token_count=uniform.pop() if len(uniform) == 1 else None,
        max_query_len=max(known) if len(known) == len(longest) else None,
        num_ubatches=_microbatches([vote.batch for vote in votes], ubatch_tokens),
    )


def _microbatches(batches: Sequence[Batch], ubatch_tokens: int) -> int:
    """Return the microbatches of all ranks: split only if all say so and the smallest has enough tokens for it."""
    splits = {batch.num_ubatches for batch in batches}
    smallest = min(batch.num_tokens for batch in batches)
    if len(splits) > 1:
        return 1
    split = splits.pop()
    return split if smallest >= max(ubatch_tokens, split) else 1


@dataclass(frozen=True, slots=True)
class Settled:
    """What all ranks run.

    Attributes:
        agreed: What the votes came to; None where nothing runs.
        descriptors: What each rank runs; all have a graph, or none has.
    """

    agreed: Agreed | None
    descriptors: tuple[BatchDescriptor, ...]


def settle(votes: Sequence[Vote], candidates: Candidates) -> Settled:
    """Return what each rank runs.

    With a graph on every rank all compute the same rows. If one has none, each runs its own rows without a graph; an
    idle one then computes a single padded row, because layers that exchange tokens wait for every rank. Where every
    rank is idle all descriptors have 0 tokens: nothing runs.

    Args:
        votes: The vote of each rank.
        candidates: What every rank captured.

    Raises:
        RankDiffersError: The ranks come to different numbers of rows.
    """
    agreed = merge(votes, candidates.limits.ubatch_decode_tokens)
    if agreed is None:
        return Settled(None, (BatchDescriptor(_NONE, 0, 0),) * len(votes))
    if agreed.mode is not _NONE:
        found = [choose(candidates, agreed.batch_of(vote.batch)) for vote in votes]
        chosen = [descriptor for descriptor in found if descriptor is not None]
        if len(chosen) == len(votes):
            _check(chosen)
            if not _leaves_one_empty(votes, chosen[0]):
                return Settled(agreed, tuple(chosen))
    return Settled(agreed, tuple(_without_graph(vote, agreed.num_ubatches, candidates) for vote in votes))


def _check(chosen: Sequence[BatchDescriptor]) -> None:
    rows = [descriptor.num_tokens for descriptor in chosen]
    if len(set(rows)) == 1:
        return
    counts = ", ".join(f"rank {rank}: {tokens}" for rank, tokens in enumerate(rows))
    odd = [rank for rank, tokens in enumerate(rows) if tokens != max(set(rows), key=rows.count)]
    raise RankDiffersError(
        f"data-parallel ranks come to different numbers of rows ({counts})",
        "they agreed on a batch, but its requests or adapters fit other graphs on some of them",
        "check the numbers of requests and adapters that each rank dispatches with",
        details={"ranks": odd, "num_tokens": rows},
    )


def _leaves_one_empty(votes: Sequence[Vote], chosen: BatchDescriptor) -> bool:
    """Tell whether padding alone would be in some rank's last microbatch: such a graph is not used (step 9).

    With two microbatches that is twice the tokens of the smallest rank below the padded tokens.
    """
    split = chosen.num_ubatches
    smallest = min(vote.batch.num_tokens for vote in votes)
    return smallest * split < chosen.num_tokens * (split - 1)


def _without_graph(vote: Vote, num_ubatches: int, candidates: Candidates) -> BatchDescriptor:
    if vote.idle:
        return BatchDescriptor(_NONE, 1, 1)
    batch = vote.batch
    case = candidates.lora_case(batch.num_active_loras)
    loras = batch.num_active_loras if case is None else case
    return BatchDescriptor(_NONE, batch.num_tokens, batch.num_reqs, num_active_loras=loras, num_ubatches=num_ubatches)
