"""Closing holes: the fewest capture sizes that, added to others, give every batch the best graph that it can have.

A batch sees the next size of each mode alone, so a size that is added may hide a larger graph from other batches, and a
larger largest size brings back graphs that were above it. So the search goes over all batches and not only over those
without a graph. It is exact: it walks up the token counts with all distinct states (dynamic programming).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from precast.capture.dispatch import Batch
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import reach

__all__ = ["fewest_sizes"]

# Behind a token count: decode lengths with a size since their last multiple; batches that wait for the next FULL graph,
# by decode length and then the same for split ones; whether batches wait for the next PIECEWISE graph. The first two
# are sets of bits.
_State = tuple[int, int, bool]
_START: _State = (0, 0, False)

_Cost = tuple[int, int, int]  # sizes added, those of them that no decode length divides, and their sum
_Chain = tuple[int, Any] | None  # sizes added, the last first
_Path = tuple[_Cost, _Chain]


def fewest_sizes(
    mode: CUDAGraphMode, sizes: Collection[int], limits: BatchLimits, batches: Iterable[Batch]
) -> tuple[int, ...]:
    """Return the fewest sizes to add so that every batch runs as `reach` says.

    Of several answers it is the one with most multiples of decode lengths, as those are not rounded up for FULL graphs,
    and then the one with the smallest sizes, as they pad least.

    Args:
        mode: Mode of the graphs; may be a pair.
        sizes: Capture sizes that there are, as `capture_sizes` returns them: none is above the budget.
        limits: Limits of a batch; no size is above `max_num_batched_tokens`.
        batches: The batches.

    Returns:
        The sizes, ascending; none where nothing is to be closed, or where no size closes anything.
    """
    rules = _Rules(mode, limits)
    full: dict[int, int] = {}
    piecewise = set()
    for batch in batches:
        best = reach(mode, sizes, limits, batch)
        if best is CUDAGraphMode.FULL:
            full[batch.num_tokens] = full.get(batch.num_tokens, 0) | rules.waiting_bit(batch)
        elif best is CUDAGraphMode.PIECEWISE:
            piecewise.add(batch.num_tokens)
    return _search(rules, frozenset(sizes), full, piecewise) if full or piecewise else ()


class _Rules:
    """What graphs a size has, as `capture.candidates` says.

    Args:
        mode: Mode of the graphs.
        limits: Limits of a batch.

    Attributes:
        lengths: To multiples of which numbers a size is rounded up for a FULL graph.
        has_pieces: Whether each size has a PIECEWISE graph too.
        budget: Largest size that may be added.
    """

    __slots__ = ("_is_uniform", "_limits", "_most", "_pair", "_split_from", "budget", "has_pieces", "lengths")

    def __init__(self, mode: CUDAGraphMode, limits: BatchLimits) -> None:
        self._limits, self._pair = limits, mode.is_pair
        self._is_uniform = mode.is_pair and not limits.adaptive_verification
        self._split_from = max(limits.num_ubatches, limits.ubatch_decode_tokens)
        has_full = CUDAGraphMode.FULL in (mode.decode_mode, mode.mixed_mode)
        lengths = tuple(length for length, _ in limits.decode_tiers) if self._is_uniform else (1,)
        self.lengths = lengths if has_full else ()
        self._most = [limits.max_num_seqs * (n if self._is_uniform else limits.decode_query_len) for n in self.lengths]
        self.has_pieces = mode.mixed_mode is CUDAGraphMode.PIECEWISE
        self.budget = limits.max_num_batched_tokens

    @property
    def margin(self) -> int:
        """How far above all sizes and batches the largest size may have to be.

        Farther up it brings back no graph that a nearer one would not. Sizes above `max_num_seqs` that can be split are
        multiples of it.
        """
        return max((*self.lengths, self._limits.max_num_seqs if self._limits.num_ubatches > 1 else 1))

    def waiting_bit(self, batch: Batch) -> int:
        """Return the bit of a batch that waits for a FULL graph."""
        place = self.lengths.index(batch.uniform_token_count or 0) if self._is_uniform else 0
        return 1 << place + (len(self.lengths) if batch.num_ubatches > 1 else 0)

    def is_uneven(self, size: int) -> bool:
        """Tell whether a size is rounded up for every FULL graph that it has."""
        return self._is_uniform and all(size % length for length in self.lengths)

    def step(self, tokens: int, state: _State, *, taken: bool) -> _State | None:
        """Return the state behind a token count, or None where a batch would see a FULL graph that does not fit it.

        Args:
            tokens: The token count.
            state: The state before it, batches of so many tokens included.
            taken: Whether it is a capture size.
        """
        open_lengths, waiting, waiting_pieces = state
        there = 0
        for place, length in enumerate(self.lengths):
            bit = 1 << place
            if taken:
                open_lengths |= bit
            if open_lengths & bit and tokens % length == 0:
                open_lengths &= ~bit
                if not self._pair or tokens <= self._most[place]:
                    there |= bit
        if there:
            twins = there << len(self.lengths) if self._has_twin(tokens) else 0
            if waiting & ~(there | twins):
                return None
            waiting = 0
        return open_lengths, waiting, waiting_pieces and not (taken and self.has_pieces)

    def _has_twin(self, tokens: int) -> bool:
        """Tell whether a FULL graph of so many tokens is also captured as microbatches."""
        if self._limits.num_ubatches == 1 or tokens < self._split_from:
            return False
        return self._is_uniform or (not self._pair and tokens % min(tokens, self._limits.max_num_seqs) == 0)


def _search(
    rules: _Rules, sizes: Collection[int], full: Mapping[int, int], piecewise: Collection[int]
) -> tuple[int, ...]:
    """Walk up the token counts, and stop at each that may be the largest size."""
    lowest_top = max((*sizes, *full, *piecewise))
    found: list[_Path] = []
    states: dict[_State, _Path] = {_START: ((0, 0, 0), None)}
    for tokens in range(1, min(rules.budget, lowest_top + rules.margin) + 1):
        reached: dict[_State, _Path] = {}
        for (open_lengths, waiting, waiting_pieces), (cost, chain) in states.items():
            before = (open_lengths, waiting | full.get(tokens, 0), waiting_pieces or tokens in piecewise)
            if tokens not in sizes:
                _keep(reached, rules.step(tokens, before, taken=False), cost, chain)
                cost = (cost[0] + 1, cost[1] + rules.is_uneven(tokens), cost[2] + tokens)
                chain = (tokens, chain)
            state = rules.step(tokens, before, taken=True)
            _keep(reached, state, cost, chain)
            if tokens >= lowest_top and state is not None and not state[1]:  # no batch waits for pieces
                found.append((cost, chain))
        states = reached
    return _unchained(min(found, key=lambda path: path[0])[1])  # there is one: all sizes together


def _keep(reached: dict[_State, _Path], state: _State | None, cost: _Cost, chain: _Chain) -> None:
    if state is not None and (state not in reached or cost < reached[state][0]):
        reached[state] = (cost, chain)


def _unchained(chain: _Chain) -> tuple[int, ...]:
    sizes = []
    while chain is not None:
        size, chain = chain
        sizes.append(size)
    return tuple(reversed(sizes))
