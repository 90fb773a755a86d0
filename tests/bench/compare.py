"""Hold a run against the committed results: every figure that got worse by more than the spread."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.bench.machine import same_machine
from tests.bench.results import Figure, Results, Scope
from tests.bench.statistic import is_worse
from tests.bench.wording import number

__all__ = ["Worse", "comparable", "worse_figures"]

_MORE_IS_BETTER = ("B/s",)


@dataclass(frozen=True, slots=True)
class Worse:
    """A figure that got worse.

    Attributes:
        before: As it was committed.
        now: As it is now.
    """

    before: Figure
    now: Figure

    def __str__(self) -> str:
        figure = self.now
        at = "" if figure.at is None else f" at {figure.at}"
        change = self.now.value / self.before.value - 1 if self.before.value else float("inf")
        told = f"{number(self.before.value, figure.unit)} -> {number(self.now.value, figure.unit)}"
        return f"{figure.part}: {figure.subject}, {figure.name}{at}: {told} ({change:+.0%})"


def comparable(before: Results | None, now: Results) -> str | None:
    """Return why two runs cannot be compared; None if they can."""
    if before is None:
        return "there are no committed results"
    if before.quick != now.quick:
        return "one of them is a quick run"
    if not same_machine(before.machine, now.machine):
        return "the committed results are of another machine, or of other versions"
    return None


def worse_figures(before: Results, now: Results, measured: Collection[Scope]) -> Iterator[Worse]:
    """Yield the figures that got worse by more than the spread of both.

    Args:
        before: Committed results of an equal machine.
        now: Results of this run.
        measured: What this run measured; the rest is what was committed.
    """
    for key in sorted(now.figures):
        old, new = before.figures.get(key), now.figures[key]
        if old is None or new.scope not in measured or new.unit in _MORE_IS_BETTER:
            continue
        if before.models.get(new.part) != now.models.get(new.part):
            continue
        if is_worse(old.samples, new.samples, exact=new.exact):
            yield Worse(old, new)
