"""Capture sizes: the padded token counts that graphs are captured for (vllm-behaviour.md step 7).

Seed step 7 has neither the decode sizes that follow from the number of requests nor `interactivity`; the newer rule
does, and is what is here. What a rule leaves out of a list is in the record, as nothing may go missing silently.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.errors import ConfigValueError

__all__ = ["CaptureSizes", "SizeNote", "capture_sizes", "default_top"]

_TOP = 512
_TOP_DATA_CENTER_BLACKWELL = 1024


@dataclass(frozen=True, slots=True)
class SizeNote:
    """Sizes that a rule left out, or a maximum that it changed.

    Attributes:
        rule: Stable name of the rule: `no_graphs`, `duplicate`, `above_budget`, `decode_above_largest`,
            `no_decode_sizes`, `largest_changed`.
        sizes: Sizes concerned, ascending; of `largest_changed` the maximum that was given.
        reason: Why, in one line.
    """

    rule: str
    sizes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CaptureSizes:
    """What to capture.

    Attributes:
        sizes: Capture sizes in tokens, ascending; empty for none.
        notes: What rules left out or changed, in the order of the rules.
    """

    sizes: tuple[int, ...]
    notes: tuple[SizeNote, ...] = ()

    @property
    def largest(self) -> int:
        """The largest size; 0 for none."""
        return self.sizes[-1] if self.sizes else 0


def default_top(capability: tuple[int, int] | None) -> int:
    """Return the highest default maximum: 1024 on data-center Blackwell (10.x), 512 elsewhere.

    Args:
        capability: Compute capability of the GPU; None where it is not known.
    """
    return _TOP_DATA_CENTER_BLACKWELL if capability is not None and capability[0] == 10 else _TOP


def capture_sizes(
    limits: BatchLimits,
    mode: CUDAGraphMode,
    *,
    largest: int | None = None,
    sizes: Sequence[int] | None = None,
    interactivity: bool = False,
    default_top: int = _TOP,
) -> CaptureSizes:
    """Return the capture sizes for limits and what a user gave (vllm-behaviour.md step 7).

    Args:
        limits: Limits of a batch; `max_num_batched_tokens` is the budget that no size may exceed.
        mode: NONE for no sizes at all.
        largest: Maximum that the user gave; then no sizes are added for decode batches.
        sizes: Sizes that the user gave, in any order; they are not held to the default maximum.
        interactivity: Take every size from 1 to 32, for less padding in small batches.
        default_top: Highest maximum that follows from the limits alone; see the function of this name.

    Raises:
        ConfigValueError: An empty list, a size or maximum below 1, or a maximum beside a list that ends elsewhere.
    """
    _check(largest, sizes)
    if mode is CUDAGraphMode.NONE:
        given = {*(sizes or ()), *(() if largest is None else (largest,))}
        return CaptureSizes((), tuple(_noted("no_graphs", given, "mode NONE captures no graphs")))
    found, notes = _given(sizes, limits) if sizes is not None else _default(limits, largest, interactivity, default_top)
    top = found[-1] if found else 0
    if largest is not None and largest != top:
        if sizes is not None:
            raise ConfigValueError(
                f"the largest capture size cannot be {largest}",
                f"the list of sizes ends at {top}" + _over(sizes, limits),
                f"leave out one of the two, or give {top} as the largest",
            )
        notes.append(SizeNote("largest_changed", (largest,), f"the largest size up to {largest} is {top}"))
    return CaptureSizes(tuple(found), tuple(notes))


def _check(largest: int | None, sizes: Sequence[int] | None) -> None:
    """Refuse numbers that no graph can have; an assertion is all that step 7 has for them."""
    hint = "use mode NONE to capture nothing"
    if largest is not None and largest < 1:
        raise ConfigValueError(f"the largest capture size cannot be {largest}", "it is at least 1", hint)
    if sizes is not None and not sizes:
        raise ConfigValueError("the list of capture sizes is empty", "a graph needs a size", hint)
    if sizes is not None and min(sizes) < 1:
        raise ConfigValueError(f"a capture size cannot be {min(sizes)}", "it counts tokens, from 1", "leave it out")


def _given(sizes: Sequence[int], limits: BatchLimits) -> tuple[list[int], list[SizeNote]]:
    """Take the user's list: each size once, up to the budget. The default maximum does not hold for it."""
    budget = limits.max_num_batched_tokens
    times = Counter(sizes)
    unique = sorted(times)
    notes = _noted("duplicate", (s for s in unique if times[s] > 1), "given more than once")
    notes += _noted("above_budget", (s for s in unique if s > budget), f"a step has at most {budget} tokens")
    return [s for s in unique if s <= budget], notes


def _default(
    limits: BatchLimits, largest: int | None, interactivity: bool, top: int
) -> tuple[list[int], list[SizeNote]]:
    """Take a ladder of sizes up to the maximum, the budget where it is below that, and the sizes of decode batches."""
    budget = limits.max_num_batched_tokens
    most = largest if largest is not None else min(limits.max_num_seqs * limits.decode_query_len * 2, top)
    decode = {s for s in _decode_sizes(limits, top) if s <= most}  # held to the maximum before the budget lowers it
    sizes = set(_ladder(min(most, budget), interactivity))
    if budget <= most:
        sizes.add(budget)
    if largest is not None:
        left_out = (s for s in decode - sizes if s <= budget)
        why = "with a maximum given, no sizes are added for decode batches"
        return sorted(sizes), _noted("no_decode_sizes", left_out, why)
    notes = _noted("decode_above_largest", _decode_sizes(limits, top) - decode, f"the default maximum is {most}")
    notes += _noted("above_budget", (s for s in decode if s > budget), f"a step has at most {budget} tokens")
    return sorted(sizes | {s for s in decode if s <= budget}), notes


def _ladder(most: int, interactivity: bool) -> list[int]:
    small = range(1, min(most, 32) + 1) if interactivity else [s for s in (1, 2, 4) if s <= most]
    return [*small, *_strides(most)]


def _strides(most: int) -> list[int]:
    """Return 8, 16, ... below 256, then 256, 272, ...; both up to `most`."""
    return [*range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]


def _decode_sizes(limits: BatchLimits, top: int) -> set[int]:
    """Return the sizes that decode batches have: the widest one and, with drafts, a ladder of requests.

    With drafts the ladder counts requests, so each of its sizes is a multiple of the query length; every query length
    of a draft schedule has its own ladder, up to the widest batch that has it.
    """
    if limits.decode_query_len == 1:
        return {limits.max_num_seqs}
    return {reqs * length for length, widest in limits.decode_tiers for reqs in _requests(min(widest, top))}


def _requests(most: int) -> list[int]:
    return [*(r for r in (1, 2, 4) if r <= most), *_strides(most), most]


def _noted(rule: str, sizes: Iterable[int], reason: str) -> list[SizeNote]:
    found = tuple(sorted(sizes))
    return [SizeNote(rule, found, reason)] if found else []


def _over(sizes: Sequence[int], limits: BatchLimits) -> str:
    budget = limits.max_num_batched_tokens
    return f", as a step has at most {budget} tokens" if max(sizes) > budget else ""
