"""Compile ranges and compile sizes: which code a token count runs, and what to warm up (vllm-behaviour.md step 5)."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precast.errors import ConfigValueError

__all__ = ["CAPTURE_SIZES", "CompileRanges", "compile_ranges", "compile_sizes"]

CAPTURE_SIZES = "cudagraph_capture_sizes"  # as a compile size: all capture sizes


@dataclass(frozen=True, slots=True)
class CompileRanges:
    """Code for every token count up to the largest.

    Attributes:
        ranges: First and last token count of each range, inclusive, ascending; together they leave no gap.
        sizes: Token counts with code of their own, ascending; they win over ranges.
        dropped: Endpoints that were given and make no range, ascending.
    """

    ranges: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def all(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges, then each single size as a range; each once."""
        return tuple(dict.fromkeys((*self.ranges, *((s, s) for s in self.sizes))))

    def find(self, num_tokens: int) -> tuple[int, int]:
        """Return the range whose code so many tokens run; a single size as a range of one.

        Raises:
            ConfigValueError: No range holds that many.
        """
        if num_tokens in self.sizes:
            return num_tokens, num_tokens
        place = bisect_left(self.ranges, num_tokens, key=lambda r: r[1])
        if num_tokens < 1 or place == len(self.ranges):
            last = self.ranges[-1][1]
            raise ConfigValueError(
                f"no compile range holds {num_tokens} tokens",
                f"they go from 1 to {last}",
                "raise max_num_batched_tokens",
            )
        return self.ranges[place]

    def warm_ups(self, captured: Sequence[int]) -> tuple[int, ...]:
        """Return the token counts to run once so that all code has run, besides the capture sizes (step 8).

        Those are single sizes that are not captured, and the end of each range that no captured size runs. Where the
        end is a single size, which runs code of its own, the next lower count of the range stands in for it.

        Args:
            captured: Capture sizes.
        """
        used = {self.find(size) for size in captured}
        ends = [self._last_of(r) for r in self.ranges if r not in used]
        return tuple(sorted({*self.sizes, *(e for e in ends if e)} - set(captured)))

    def _last_of(self, one: tuple[int, int]) -> int | None:
        start, end = one
        return next((n for n in range(end, start - 1, -1) if n not in self.sizes), None)


def compile_ranges(
    max_num_batched_tokens: int,
    endpoints: Iterable[int] = (),
    sizes: Iterable[int | str] = (),
    captured: Sequence[int] = (),
) -> CompileRanges:
    """Cut the token counts from 1 to the largest at endpoints, and add single sizes (vllm-behaviour.md step 5).

    Args:
        max_num_batched_tokens: Largest token count; the last range ends there.
        endpoints: Token counts at which a range ends. One that is 1, or not below the largest, makes no range.
        sizes: Token counts that get code of their own; `cudagraph_capture_sizes` stands for all capture sizes.
        captured: Capture sizes.

    Raises:
        ConfigValueError: A single size that no step can have, or a word other than `cudagraph_capture_sizes`.
    """
    given = sorted(set(endpoints))
    inner = [e for e in given if 1 < e < max_num_batched_tokens]
    ends = [*inner, max_num_batched_tokens]
    starts = [1, *(e + 1 for e in inner)]
    single = compile_sizes(sizes, captured)
    beyond = [s for s in single if not 1 <= s <= max_num_batched_tokens]
    if beyond:
        why = f"a step has from 1 to {max_num_batched_tokens} tokens (`max_num_batched_tokens`)"
        raise ConfigValueError(f"`compile_sizes` cannot hold {beyond[0]}", why, f"leave out {beyond[0]}")
    dropped = tuple(e for e in given if e not in ends)
    return CompileRanges(tuple(zip(starts, ends, strict=True)), single, dropped)


def compile_sizes(sizes: Iterable[int | str], captured: Sequence[int]) -> tuple[int, ...]:
    """Return single sizes with `cudagraph_capture_sizes` replaced by the capture sizes; each once, ascending.

    Raises:
        ConfigValueError: Another word.
    """
    found: set[int] = set()
    for size in sizes:
        if isinstance(size, int):
            found.add(size)
        elif size == CAPTURE_SIZES:
            found.update(captured)
        else:
            raise ConfigValueError(
                f"`compile_sizes` cannot hold `{size}`", "it is no number", f"give `{CAPTURE_SIZES}`"
            )
    return tuple(sorted(found))
