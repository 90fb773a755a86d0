"""From what measured processes print to figures in the results: names, units, and what could not be measured."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.bench.launch import Budget, Ran, Runner
from tests.bench.results import Absent, Figure, Results, Scope, scope

__all__ = ["Bench", "tell", "unit_of"]

_COUNTS = ("pieces", "unique", "heavy modules after load", "heavy modules after first call")


def unit_of(name: str) -> str:
    """Return the unit of a figure that a measured process printed."""
    if name in _COUNTS:
        return "count"
    if "bytes" in name:
        return "B"
    if name.startswith("cpu "):
        return "us"
    return "B/s" if name == "copy bandwidth" else "s"


@dataclass(slots=True)
class Bench:
    """One run of a benchmark.

    Attributes:
        results: Receives the figures.
        runner: Starts measured processes.
        budget: How long it may take.
        save: Writes the results; called after each process.
        repeats: Starts of each peer.
        slow_repeats: Starts of each slow peer.
        measured: All that this run measured.
    """

    results: Results
    runner: Runner
    budget: Budget
    save: Callable[[], None]
    repeats: int
    slow_repeats: int
    measured: set[Scope]

    def begin(self, part: str, subject: str, at: int | None = None) -> None:
        """Replace what earlier runs know of a subject, once this run has something to tell of it."""
        there = scope(part, subject, at)
        if there not in self.measured:
            self.measured.add(there)
            self.results.forget(there)

    def add(self, part: str, subject: str, name: str, value: float, *, at: int | None = None, unit: str = "") -> None:
        """Add one sample."""
        self.begin(part, subject, at)
        day = datetime.now(UTC).date().isoformat()
        self.results.add(Figure(part, subject, name, unit or unit_of(name), (value,), at, day))

    def record(self, part: str, subject: str, stage: str, ran: Ran, *, at: int | None = None) -> bool:
        """Add what a process measured, and tell whether it did; save, and say how it went."""
        label = subject if at is None else f"{subject} {at}"
        why = ran.error or ran.found.get("cannot")
        if why is not None:
            self.note(part, subject, stage, why, cannot=ran.error is None, at=at)
        else:
            for name, value in ran.found["figures"].items():
                name = "host bytes compile" if (stage, name) == ("compile", "host bytes") else name
                self.add(part, subject, name, value, at=at)
            for way, batch, ms in ran.found.get("steps", ()):
                self.add(part, subject, f"step {way}", ms, at=batch, unit="ms")
        self.save()
        tell(f"{part}: {label}, {stage}: {why or 'done'}   {ran.wall:.0f} s")
        return why is None

    def note(
        self, part: str, subject: str, stage: str, why: str, *, cannot: bool = False, at: int | None = None
    ) -> None:
        """Note what could not be measured; where only time was short, what an earlier run measured stays."""
        there = scope(part, subject, at)
        if stage != "budget":
            self.begin(part, subject, at)
        elif any(figure.scope == there for figure in self.results.figures.values()):
            return
        self.results.note(Absent(part, subject, stage, why, cannot, at))

    def has_time(self, part: str, subject: str, seconds: float, *, at: int | None = None) -> bool:
        """Tell whether there is time for something; note that there is none."""
        if self.budget.left() >= seconds:
            return True
        self.note(part, subject, "budget", "no time was left for it", at=at)
        return False


def tell(line: str) -> None:
    """Say how far a run is."""
    print(line, file=sys.stderr, flush=True)
