"""Dispatch: which graph a batch runs on, or none and why not (vllm-behaviour.md step 9).

It runs once a step, so all that can be known beforehand is in tables; only a batch without a graph costs more.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode

__all__ = [
    "Batch",
    "DispatchCounts",
    "Dispatcher",
    "Miss",
    "choose",
    "fits",
    "longest_query",
    "uniform_tokens",
    "why_none",
]

# requests that fit, tokens that each must have, most tokens that one may have, place of its counter, what it is
_Entry = tuple[int, int | None, int | None, int, BatchDescriptor]
_Rows = tuple[tuple[_Entry, ...], ...]
_NO_ROWS: _Rows = ()


class Miss(StrEnum):
    """Why a batch has no graph."""

    NOT_CAPTURED = "graphs are not captured yet"
    NO_GRAPHS = "no graphs are captured in this mode"
    NO_TOKENS = "the batch is empty"
    NO_LORA = "no graph serves adapters"
    TOO_MANY_TOKENS = "more tokens than the largest graph"
    MICROBATCHES = "the next size is not split into so many microbatches"
    NOT_UNIFORM = "the next size wants another number of tokens from every request"
    QUERY_TOO_LONG = "a request is longer than the next size allows, or its length is not known"
    TOO_MANY_REQS = "more requests than the next size has slots for"


@dataclass(frozen=True, slots=True)
class DispatchCounts:
    """What was dispatched so far.

    Attributes:
        hits: Batches by the descriptor of the graph they ran on; graphs that none ran on are left out.
        misses: Batches without a graph by reason.
    """

    hits: Mapping[BatchDescriptor, int]
    misses: Mapping[Miss, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as `Dispatcher.dispatch` is asked for it; the fields are that method's arguments."""

    num_reqs: int
    num_tokens: int
    uniform_token_count: int | None = None
    num_active_loras: int = 0
    max_query_len: int | None = None
    num_ubatches: int = 1


class Dispatcher:
    """Finds the graph of a batch. Until `enable` every batch is NONE, as nothing is captured.

    Args:
        candidates: What is captured.
    """

    __slots__ = ("_active", "_hits", "_misses", "_plain", "_tables", "candidates")

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self._hits = [0] * len(candidates.capture_order)
        self._misses = dict.fromkeys(Miss, 0)
        self._tables = _tables(candidates)
        self._active: dict[tuple[int, int], _Rows] = {}
        self._plain = _NO_ROWS

    @property
    def enabled(self) -> bool:
        """Whether graphs are captured."""
        return self._active is self._tables

    def enable(self) -> None:
        """Let batches run on graphs: all of them are captured."""
        self._active = self._tables
        self._plain = self._tables.get((0, 1), _NO_ROWS)  # no adapter and no microbatches: nearly every batch

    def disable(self) -> None:
        """Let no batch run on a graph: nothing is captured, or it was released."""
        self._active = {}
        self._plain = _NO_ROWS

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchDescriptor:
        """Return the descriptor of the first graph that fits a batch, else one with mode NONE and nothing padded.

        Args:
            num_reqs: Requests of the batch.
            num_tokens: Tokens of the batch, not padded.
            uniform_token_count: Tokens that every request brings; None where they differ or the batch holds a prefill
                (see `uniform_tokens`).
            num_active_loras: LoRA adapters that the batch uses.
            max_query_len: Most tokens that a request brings; None where the batch holds a prefill (see
                `longest_query`).
            num_ubatches: Microbatches that the batch is split into.
        """
        rows = self._plain
        if num_active_loras or num_ubatches != 1:
            rows = self._active.get((num_active_loras, num_ubatches)) or self._beyond(num_active_loras, num_ubatches)
        if 0 < num_tokens < len(rows):
            for reqs, uniform, longest, place, descriptor in rows[num_tokens]:
                if (
                    num_reqs <= reqs
                    and (uniform is None or uniform == uniform_token_count)
                    and (longest is None or (max_query_len is not None and max_query_len <= longest))
                ):
                    self._hits[place] += 1
                    return descriptor
        batch = Batch(num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len, num_ubatches)
        self._misses[self._reason(batch)] += 1
        case = self.candidates.lora_case(num_active_loras)
        loras = num_active_loras if case is None else case
        return BatchDescriptor(
            CUDAGraphMode.NONE, num_tokens, num_reqs, num_active_loras=loras, num_ubatches=num_ubatches
        )

    def counts(self) -> DispatchCounts:
        """Return what was dispatched so far."""
        hits = {d: n for d, n in zip(self.candidates.capture_order, self._hits, strict=True) if n}
        return DispatchCounts(hits, {reason: n for reason, n in self._misses.items() if n})

    def _beyond(self, num_active_loras: int, num_ubatches: int) -> _Rows:
        """Return the rows of a pair that has none of its own: those of the largest case, for more adapters than it."""
        case = self.candidates.lora_case(num_active_loras)
        return _NO_ROWS if case is None else self._active.get((case, num_ubatches), _NO_ROWS)

    def _reason(self, batch: Batch) -> Miss:
        if self.candidates.capture_order and not self.enabled:
            return Miss.NOT_CAPTURED
        return why_none(self.candidates, batch) or Miss.NOT_CAPTURED


def choose(candidates: Candidates, batch: Batch) -> BatchDescriptor | None:
    """Return the first graph that fits a batch, as if all were captured; None where none does. Nothing is counted."""
    seen = candidates.seen(batch.num_tokens, batch.num_active_loras)
    return next((descriptor for descriptor in seen if _first_failure(descriptor, batch) is None), None)


def fits(descriptor: BatchDescriptor, batch: Batch) -> bool:
    """Tell whether a graph for the batch's adapters serves it, were it the next of its mode."""
    return descriptor.num_tokens >= batch.num_tokens and _first_failure(descriptor, batch) is None


def why_none(candidates: Candidates, batch: Batch, mode: CUDAGraphMode | None = None) -> Miss | None:
    """Return why no graph fits a batch, as if all were captured; None where one fits.

    Of several candidates, the one that came nearest gives the reason: it failed the last of the tests.

    Args:
        candidates: What is captured.
        batch: The batch.
        mode: PIECEWISE or FULL, to ask for graphs of that mode alone.
    """
    if not candidates.capture_order:
        return Miss.NO_GRAPHS
    if batch.num_tokens < 1:
        return Miss.NO_TOKENS
    if candidates.lora_case(batch.num_active_loras) is None:
        return Miss.NO_LORA
    seen = candidates.seen(batch.num_tokens, batch.num_active_loras)
    failed = [_first_failure(descriptor, batch) for descriptor in seen if mode in (None, descriptor.mode)]
    if None in failed:
        return None
    return max((reason for reason in failed if reason), key=_TESTS.index, default=Miss.TOO_MANY_TOKENS)


_TESTS = (Miss.MICROBATCHES, Miss.NOT_UNIFORM, Miss.QUERY_TOO_LONG, Miss.TOO_MANY_REQS)


def _first_failure(descriptor: BatchDescriptor, batch: Batch) -> Miss | None:
    longest, query_len = descriptor.max_query_len, batch.max_query_len
    fits = {
        Miss.MICROBATCHES: descriptor.num_ubatches == batch.num_ubatches,
        Miss.NOT_UNIFORM: descriptor.uniform_token_count in (None, batch.uniform_token_count),
        Miss.QUERY_TOO_LONG: longest is None or (query_len is not None and query_len <= longest),
        Miss.TOO_MANY_REQS: descriptor.num_reqs is None or batch.num_reqs <= descriptor.num_reqs,
    }
    return next((test for test in _TESTS if not fits[test]), None)


def _tables(candidates: Candidates) -> dict[tuple[int, int], _Rows]:
    """Return the rows of each pair of active adapters and microbatches that there are graphs for."""
    places = {d: n for n, d in enumerate(candidates.capture_order)}
    cases = {
        (case, ubatches): _entries(rows, places, ubatches)
        for case, rows in zip(candidates.lora_cases, candidates.rows, strict=True)
        for ubatches in {1, candidates.limits.num_ubatches}
    }
    loras = range(candidates.lora_cases[-1] + 1)
    return {(n, u): rows for n in loras for (case, u), rows in cases.items() if case == candidates.lora_case(n)}


def _entries(
    rows: Sequence[tuple[BatchDescriptor, ...]], places: Mapping[BatchDescriptor, int], num_ubatches: int
) -> _Rows:
    unique = {row: tuple(_entry(d, places[d]) for d in row if d.num_ubatches == num_ubatches) for row in set(rows)}
    return tuple(unique[row] for row in rows)  # neighbors share a row


def _entry(descriptor: BatchDescriptor, place: int) -> _Entry:
    reqs = sys.maxsize if descriptor.num_reqs is None else descriptor.num_reqs
    return reqs, descriptor.uniform_token_count, descriptor.max_query_len, place, descriptor


def uniform_tokens(
    query_lens: Sequence[int], prefilling: Sequence[bool], context_lens: Sequence[int] | None = None
) -> int | None:
    """Return the number of tokens that every request of a decode batch brings (vllm-behaviour.md step 9).

    A request that still computes its prompt counts as decoding where it brings exactly one new token over context that
    is already computed: kernels cannot tell it from a decode.

    Args:
        query_lens: New tokens of each request.
        prefilling: Whether a request still computes its prompt.
        context_lens: Tokens of each request that are computed already; None takes none for prefilling requests.

    Returns:
        The number, or None where requests differ or one of them is a prefill.
    """
    if len(set(query_lens)) != 1:
        return None
    contexts = context_lens if context_lens is not None else [0] * len(query_lens)
    for length, is_prefill, context in zip(query_lens, prefilling, contexts, strict=True):
        if is_prefill and not (length == 1 and context > 0):
            return None
    return query_lens[0] or None


def longest_query(query_lens: Sequence[int], prefilling: Sequence[bool]) -> int | None:
    """Return the most tokens that a request brings, or None where one of them is a prefill (seed step 9)."""
    return None if any(prefilling) or not query_lens else max(query_lens)
