"""Where the time of long work goes: phases that never overlap, and what is left of the wall time beside them.

A phase inside another takes its time from the outer one, so the seconds of all phases and the rest add up to the wall
time, whatever was nested in what (field-reports.md E4: times that count the same seconds twice).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["OTHER", "PhaseClock"]

OTHER = "other"


class PhaseClock:
    """Measures phases from its own beginning on.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = self._since = clock()
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block under a name; the phase around it stands still meanwhile."""
        self._turn()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def give(self, name: str, seconds: float) -> None:
        """Move seconds of the current phase to another, where the work itself told how long a part of it took.

        More than the current phase has had cannot be moved.
        """
        self._turn()
        source = self._open[-1] if self._open else OTHER
        moved = min(max(seconds, 0.0), self._seconds.get(source, 0.0))
        self._seconds[source] = self._seconds.get(source, 0.0) - moved
        self._seconds[name] = self._seconds.get(name, 0.0) + moved

    @property
    def wall(self) -> float:
        """Seconds since the clock was made."""
        return self._clock() - self._began

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each phase in the order in which they began, then `other`; they sum up to `wall`."""
        self._turn()
        named = {name: spent for name, spent in self._seconds.items() if name != OTHER}
        return {**named, OTHER: self._seconds.get(OTHER, 0.0)}

    def _turn(self) -> None:
        now = self._clock()
        current = self._open[-1] if self._open else OTHER
        self._seconds[current] = self._seconds.get(current, 0.0) + now - self._since
        self._since = now
