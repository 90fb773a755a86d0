"""Samples of one figure: their median, their spread, and whether one set of them is worse than another."""

import statistics
from collections.abc import Sequence

__all__ = ["is_worse", "median", "spread", "tolerance"]

# Of a figure that was measured once the spread is not known. On shared machines a second run of equal code is seldom
# further away than this part of it.
_SINGLE = 0.25
# What even many samples do not show: processes of one run share the temperature and the neighbours of one hour.
_LEAST = 0.05


def median(samples: Sequence[float]) -> float:
    """Return the median of at least one sample."""
    return float(statistics.median(samples))


def spread(samples: Sequence[float]) -> float | None:
    """Return the distance from the smallest to the largest sample; None of a single one."""
    return None if len(samples) < 2 else float(max(samples) - min(samples))


def tolerance(samples: Sequence[float], *, exact: bool = False) -> float:
    """Return how far a second measurement may lie from the median without being news.

    Args:
        samples: At least one.
        exact: A count or a size, which does not vary by chance.
    """
    middle = abs(median(samples))
    if exact:
        return 0.01 * middle
    known = spread(samples)
    return _SINGLE * middle if known is None else max(known, _LEAST * middle)


def is_worse(before: Sequence[float], now: Sequence[float], *, exact: bool = False) -> bool:
    """Tell whether a figure of which less is better got worse by more than the spread of both."""
    allowed = max(tolerance(before, exact=exact), tolerance(now, exact=exact))
    return median(now) - median(before) > allowed
