"""Batches to try graphs with: one that fits a given graph and has padded rows, and random ones as a server would have.

Everything is drawn from a seeded generator, so a failure can be seen again.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.capture.state import BatchShape

__all__ = ["TrialBatch", "decode_batch", "fitting_shape", "random_batch"]

_MOST_PADDING = 3


@dataclass(frozen=True, slots=True)
class TrialBatch:
    """A batch before it is dispatched.

    Attributes:
        query_lens: New tokens of each request.
        prefilling: Whether requests still compute their prompts.
    """

    query_lens: tuple[int, ...]
    prefilling: bool

    @property
    def num_tokens(self) -> int:
        """Tokens, not padded."""
        return sum(self.query_lens)

    def asked(self) -> Batch:
        """Return what dispatch is asked."""
        prefilling = (self.prefilling,) * len(self.query_lens)
        return Batch(
            len(self.query_lens),
            self.num_tokens,
            uniform_tokens(self.query_lens, prefilling),
            max_query_len=longest_query(self.query_lens, prefilling),
        )

    def shape(self, descriptor: BatchDescriptor) -> BatchShape:
        """Return the batch, padded as the graph that it got needs it."""
        return BatchShape(self.query_lens, descriptor.num_tokens)


def decode_batch(num_reqs: int, limits: BatchLimits) -> TrialBatch:
    """Return a decode step of so many requests, each with its own token and its drafts."""
    return TrialBatch((1 + limits.drafts_of(num_reqs),) * num_reqs, prefilling=False)


def random_batch(limits: BatchLimits, chance: Random) -> TrialBatch:
    """Return a decode step or a mixed one; small batches are as frequent as large ones."""
    if chance.random() < 0.5:
        made = decode_batch(_log_uniform(limits.max_num_seqs, chance), limits)
        if limits.adaptive_verification:
            made = TrialBatch(tuple(chance.randint(1, n) for n in made.query_lens), prefilling=False)
        if made.num_tokens <= limits.max_num_batched_tokens:
            return made
    tokens = _log_uniform(limits.max_num_batched_tokens, chance)
    reqs = chance.randint(1, min(tokens, limits.max_num_seqs))
    return TrialBatch(_split(tokens, reqs, chance), prefilling=True)


def fitting_shape(descriptor: BatchDescriptor, limits: BatchLimits, chance: Random) -> BatchShape:
    """Return a batch that the graph of a descriptor serves, with padded rows where the graph has room for them."""
    slots = descriptor.num_reqs or limits.max_num_seqs
    if descriptor.uniform_token_count is not None:
        reqs = max(1, slots - 1)
        return BatchShape((descriptor.uniform_token_count,) * reqs, descriptor.num_tokens)
    tokens = max(1, descriptor.num_tokens - min(_MOST_PADDING, descriptor.num_tokens // 2))
    longest = descriptor.max_query_len
    if longest is not None:
        lens: list[int] = []
        while len(lens) < slots and sum(lens) < tokens:
            lens.append(min(chance.randint(1, longest), tokens - sum(lens)))
        return BatchShape(tuple(lens), descriptor.num_tokens)
    reqs = chance.randint(1, min(tokens, slots))
    return BatchShape(_split(tokens, reqs, chance), descriptor.num_tokens)


def _log_uniform(most: int, chance: Random) -> int:
    return min(most, int(math.exp(chance.uniform(0, math.log(most + 1)))))


def _split(total: int, parts: int, chance: Random) -> tuple[int, ...]:
    """Cut a number into so many positive parts."""
    cuts = [0, *sorted(chance.sample(range(1, total), parts - 1)), total]
    return tuple(end - start for start, end in pairwise(cuts))
