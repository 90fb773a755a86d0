"""The agreement of data-parallel ranks: before each step, one number of rows for all (vllm-behaviour.md step 9).

One all-reduce of a few integers on the CPU, in which each rank fills its own column and gets everyone's. Whoever waits
longer than a moment says so in the store where the ranks met, so that a rank that does not come is named by all others
within the timeout, and nothing waits for ever.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch
from precast.capture.meeting import Meeting, capture_facts, named
from precast.capture.modes import CUDAGraphMode
from precast.capture.votes import VOTE_ROWS, Vote, settle
from precast.errors import CaptureError, ConfigValueError, RankMissingError

__all__ = ["Agreement", "AgreementCounts"]

_MOMENT_S = 1.0  # after which a rank that waits says so


@dataclass(frozen=True, slots=True)
class AgreementCounts:
    """What was agreed so far.

    Attributes:
        steps: Steps by the descriptor that this rank ran; those without a graph are together under their mode.
        held_back: Steps that ran without a graph though this rank had one, by the rank that had none. Where every rank
            had one but not for the batch that was agreed, the number is -1.
        idle: Steps that this rank ran with padded rows only, because others had work.
        skipped: Steps that no rank had work for.
        waited: Steps whose votes took longer than a moment to come.
    """

    steps: Mapping[BatchDescriptor | CUDAGraphMode, int]
    held_back: Mapping[int, int]
    idle: int
    skipped: int
    waited: int


class Agreement:
    """Agrees with the other data-parallel ranks on each step; `agree` is what `GraphManager` takes.

    Make it before anything is captured, on every rank: ranks that differ are refused there.

    Args:
        candidates: What this rank captures.
        group: The data-parallel ranks; a group of torch.distributed with gloo for the CPU.
        store: Store that the same ranks share; they meet there.
        facts: What else must be the same on all ranks, by name, such as the key of the entry that was loaded.
        timeout_s: Seconds that a rank is waited for, here and in each step; an error comes at most 2 s later.

    Attributes:
        tokens: Tokens of each rank in the last step, without padded rows.

    Raises:
        ConfigValueError: The group has no gloo for the CPU.
        RankMissingError: Ranks did not come within the timeout; the error names them.
        RankDiffersError: Ranks have other sizes, another mode, or another fact; the error names them.
    """

    def __init__(
        self,
        candidates: Candidates,
        group: dist.ProcessGroup,
        store: dist.Store,
        *,
        facts: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        if "cpu:gloo" not in dist.get_backend_config(group):
            raise ConfigValueError(
                "data-parallel ranks cannot agree in this group",
                f"it has {dist.get_backend_config(group)}, and votes are on the CPU",
                "make a group of the same ranks with `torch.distributed.new_group(backend='gloo')`",
            )
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.tokens: tuple[int, ...] = (0,) * ranks
        self._candidates = candidates
        self._group = group
        self._meeting = Meeting(store, rank, ranks, timeout_s)
        self._moment_s = min(_MOMENT_S, timeout_s / 4)
        self._steps: Counter[BatchDescriptor | CUDAGraphMode] = Counter()
        self._held_back: Counter[int] = Counter()
        self._idle = self._skipped = self._waited = self._step = 0
        self._broken: CaptureError | None = None
        self._meeting.compare(capture_facts(candidates, **(facts or {})))

    def agree(self, batch: Batch, found: BatchDescriptor, dispatch: Callable[..., BatchDescriptor]) -> BatchDescriptor:
        """Return what this rank runs; every rank calls this once for each step, idle ones with 0 tokens.

        An idle rank runs padded rows where others have work, because layers that exchange tokens wait for every rank.
        Where nobody has work the descriptor has 0 tokens, and no rank runs.

        Args:
            batch: This rank's batch.
            found: What its own dispatch found.
            dispatch: Dispatches again, for the batch that was agreed; takes the fields of a batch.

        Raises:
            RankMissingError: Ranks did not come within the timeout; the error names them. No step can be agreed then.
            RankDiffersError: The ranks come to different numbers of rows.
            CaptureError: The votes could not be exchanged, though every rank came.
        """
        if self._broken is not None:
            raise self._broken
        try:
            votes = self._exchange(Vote(batch, found.mode))
        except CaptureError as error:
            self._broken = error
            raise
        settled = settle(votes, self._candidates)
        chosen = settled.descriptors[self._meeting.rank]
        if settled.agreed is not None and chosen.mode is not CUDAGraphMode.NONE and chosen != found:
            self._check(chosen, dispatch(*astuple(settled.agreed.batch_of(batch))))
        self.tokens = tuple(vote.batch.num_tokens for vote in votes)
        self._count(votes, found, chosen)
        return chosen

    def counts(self) -> AgreementCounts:
        """Return what was agreed so far."""
        return AgreementCounts(dict(self._steps), dict(self._held_back), self._idle, self._skipped, self._waited)

    def _exchange(self, vote: Vote) -> list[Vote]:
        """Return the vote of each rank."""
        self._step += 1
        columns = torch.zeros(VOTE_ROWS, self._meeting.ranks, dtype=torch.int32)
        columns[:, self._meeting.rank] = torch.tensor(vote.row(), dtype=torch.int32)
        started = time.monotonic()
        work: dist.Work | None = None
        try:
            work = dist.all_reduce(columns, group=self._group, async_op=True)
            work.wait(timedelta(seconds=self._moment_s))
        except RuntimeError as error:  # no time left, a connection that ended, a group that is gone
            self._wait_on(work, error, started)
        return [Vote.of_row(row) for row in columns.T.tolist()]

    def _wait_on(self, work: "dist.Work | None", error: RuntimeError, started: float) -> None:
        """Say that this rank waits, and wait for the rest of the timeout; then name who did not come."""
        self._waited += 1
        topic = f"step-{self._step}"
        self._meeting.mark(topic)
        until = started + self._meeting.timeout_s
        try:
            if work is not None:
                work.wait(timedelta(seconds=max(until - time.monotonic(), 0.001)))
                return
        except RuntimeError as later:
            error = later
        # a rank that came last before the end needs its moment until it says so
        absent = self._meeting.absent(topic, until + 2 * self._moment_s - time.monotonic())
        if absent:
            raise RankMissingError(
                f"{named(absent)} did not come to step {self._step} within {self._meeting.timeout_s:g} s",
                "data-parallel ranks agree on every step, and idle ranks do too",
                "look at what the named ranks logged; start all ranks again",
                details={"ranks": absent, "step": self._step},
            ) from error
        raise CaptureError(
            f"the votes of step {self._step} could not be exchanged",
            f"every rank came, but the collective failed: {str(error).splitlines()[0]}",
            "start all ranks again",
        ) from error

    def _check(self, chosen: BatchDescriptor, again: BatchDescriptor) -> None:
        if again != chosen:
            raise CaptureError(
                "this rank's dispatch does not find the graph that was agreed",
                f"it found {again}, and all ranks agreed on {chosen}",
                "give `Agreement` the candidates that the graph manager has",
            )

    def _count(self, votes: list[Vote], found: BatchDescriptor, chosen: BatchDescriptor) -> None:
        if chosen.num_tokens == 0:
            self._skipped += 1
            return
        none = chosen.mode is CUDAGraphMode.NONE
        self._steps[chosen.mode if none else chosen] += 1
        self._idle += votes[self._meeting.rank].idle
        if none and found.mode is not CUDAGraphMode.NONE:
            without = [r for r, v in enumerate(votes) if v.mode is CUDAGraphMode.NONE and not v.idle]
            self._held_back.update(without or [-1])
