"""Candidates: every batch descriptor a graph is captured for, in capture order, and the table that finds one.

A token count sees the next size of each mode and no other, FULL before PIECEWISE (vllm-behaviour.md step 8). So a batch
that the next FULL size does not fit runs PIECEWISE, or without a graph, although a larger FULL graph would fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.loras import lora_case, lora_cases
from precast.capture.modes import CUDAGraphMode
from precast.errors import ConfigValueError

__all__ = ["Candidates", "candidates"]

_Rows = tuple[tuple[BatchDescriptor, ...], ...]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is captured, and what each batch may use of it.

    Attributes:
        mode: Mode that was asked for; may be a pair.
        sizes: Capture sizes, ascending.
        limits: Limits of a batch.
        capture_order: Descriptors in the order of capture: PIECEWISE, then FULL, each from the most tokens down.
        lora_cases: Numbers of active adapters that there are graphs for, ascending.
        rows: Of each LoRA case, in that order, the descriptors that a token count may use, first choice first; row 0
            belongs to 0 tokens and the last row to the most tokens that any graph has.
    """

    mode: CUDAGraphMode
    sizes: tuple[int, ...]
    limits: BatchLimits
    capture_order: tuple[BatchDescriptor, ...]
    lora_cases: tuple[int, ...]
    rows: tuple[_Rows, ...]

    def of(self, mode: CUDAGraphMode) -> tuple[BatchDescriptor, ...]:
        """Return the descriptors of PIECEWISE or of FULL, in capture order."""
        return tuple(d for d in self.capture_order if d.mode is mode)

    def lora_case(self, num_active_loras: int) -> int | None:
        """Return the LoRA case of a batch; None where no graph serves adapters."""
        return lora_case(num_active_loras, self.lora_cases)

    def seen(self, num_tokens: int, num_active_loras: int = 0) -> tuple[BatchDescriptor, ...]:
        """Return the descriptors that a batch of so many tokens may use, first choice first."""
        case = self.lora_case(num_active_loras)
        if case is None:
            return ()
        rows = self.rows[self.lora_cases.index(case)]
        return rows[num_tokens] if 0 < num_tokens < len(rows) else ()


def candidates(mode: CUDAGraphMode, sizes: Sequence[int], limits: BatchLimits) -> Candidates:
    """List what to capture for a mode, sizes and limits (vllm-behaviour.md step 8).

    Args:
        mode: NONE for no graphs at all.
        sizes: Capture sizes in tokens, as `capture_sizes` returns them.
        limits: Limits of a batch.

    Raises:
        ConfigValueError: A size below 1.
    """
    ascending = tuple(sorted(set(sizes)))
    if ascending and ascending[0] < 1:
        raise ConfigValueError(
            f"a capture size cannot be {ascending[0]}", "it counts tokens, from 1", "leave that size out"
        )
    cases = lora_cases(limits.lora)
    found = [d for size in ascending for case in cases for d in _of_size(mode, size, ascending[-1], case, limits)]
    unique = tuple(dict.fromkeys(found))
    order = [sorted(_of_mode(unique, m), key=lambda d: -d.num_tokens) for m in _CAPTURE_ORDER]
    rows = tuple(_rows([d for d in unique if d.num_active_loras == case]) for case in cases)
    return Candidates(mode, ascending, limits, tuple(d for ds in order for d in ds), cases, rows)


_CAPTURE_ORDER = (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)  # pieces need more memory; FULL then fits in their pool
_CHOICE_ORDER = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)


def _of_size(mode: CUDAGraphMode, size: int, largest: int, case: int, limits: BatchLimits) -> Iterator[BatchDescriptor]:
    if mode.is_pair and mode.decode_mode is not CUDAGraphMode.NONE:
        if limits.adaptive_verification:
            yield from _adaptive(size, case, limits)
        else:
            yield from _uniform(size, largest, case, limits)
    if mode.mixed_mode is not CUDAGraphMode.NONE:
        yield from _mixed(mode.mixed_mode, size, case, limits)


def _adaptive(size: int, case: int, limits: BatchLimits) -> Iterator[BatchDescriptor]:
    """Yield the decode graph in which each request has from one token to the decode query length."""
    longest = limits.decode_query_len
    if size <= limits.max_num_seqs * longest:
        reqs = min(size, limits.max_num_seqs)
        yield BatchDescriptor(CUDAGraphMode.FULL, size, reqs, max_query_len=longest, num_active_loras=case)


def _uniform(size: int, largest: int, case: int, limits: BatchLimits) -> Iterator[BatchDescriptor]:
    """Yield decode graphs in which every request has the same number of tokens: one of each decode length."""
    for length, _ in limits.decode_tiers:
        reqs = -(-size // length)
        tokens = reqs * length
        if tokens > largest or reqs > limits.max_num_seqs:
            continue
        one = BatchDescriptor(CUDAGraphMode.FULL, tokens, reqs, length, num_active_loras=case)
        yield from _with_twin(one, limits)


def _mixed(mode: CUDAGraphMode, size: int, case: int, limits: BatchLimits) -> Iterator[BatchDescriptor]:
    """Yield the graph of any batch. Pieces hold nothing per request; a FULL graph has slots for requests."""
    reqs = None if mode is CUDAGraphMode.PIECEWISE else min(size, limits.max_num_seqs)
    yield from _with_twin(BatchDescriptor(mode, size, reqs, num_active_loras=case), limits)


def _with_twin(one: BatchDescriptor, limits: BatchLimits) -> Iterator[BatchDescriptor]:
    """Yield a descriptor and, where microbatches may run it, the same one split.

    Only a FULL graph has a twin, of requests that are equally long, and with a token for each microbatch.
    """
    yield one
    if limits.num_ubatches == 1 or one.mode is not CUDAGraphMode.FULL or one.num_reqs is None:
        return
    each, rest = divmod(one.num_tokens, one.num_reqs)
    equal = rest == 0 and one.uniform_token_count in (None, each)
    if equal and one.num_tokens >= max(limits.num_ubatches, limits.ubatch_decode_tokens):
        yield replace(one, num_ubatches=limits.num_ubatches)


def _of_mode(descriptors: Iterable[BatchDescriptor], mode: CUDAGraphMode) -> list[BatchDescriptor]:
    return [d for d in descriptors if d.mode is mode]


def _rows(descriptors: Iterable[BatchDescriptor]) -> _Rows:
    """Give each token count from 0 the descriptors of the next size: of FULL, then of PIECEWISE."""
    found = tuple(descriptors)
    by_mode = [_spread(_of_mode(found, mode)) for mode in _CHOICE_ORDER]
    rows = max(map(len, by_mode))
    return tuple(tuple(d for spread in by_mode if n < len(spread) for d in spread[n]) for n in range(rows))


def _spread(descriptors: list[BatchDescriptor]) -> list[tuple[BatchDescriptor, ...]]:
    """Return, at each token count up to the largest, the descriptors with the next number of tokens."""
    spread: list[tuple[BatchDescriptor, ...]] = []
    for tokens, group in groupby(sorted(descriptors, key=lambda d: d.num_tokens), key=lambda d: d.num_tokens):
        spread += [tuple(group)] * (tokens + 1 - len(spread))
    return spread
