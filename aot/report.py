"""What a verify found: its stages, its problems, and where the time went."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precast.aot.phases import OTHER
from precast.aot.spec import Json
from precast.errors import ExitCode, PrecastError

__all__ = ["Finding", "Stage", "VerifyReport", "counted"]

Finding = tuple[str, dict[str, Json], str]  # what a level found: one line, facts, status


@dataclass(frozen=True, slots=True)
class Stage:
    """One level of a verify.

    Attributes:
        name: The level.
        status: `ok`, `failed`, `degraded` or `skipped`.
        seconds: Wall time.
        summary: One line for people.
        facts: The same for machines.
    """

    name: str
    status: str
    seconds: float
    summary: str
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome.

    Attributes:
        key: The entry's key.
        level: The highest level that ran.
        stages: What was checked, in order.
        problems: Every failure.
        phases: Seconds of each phase, which never overlap; `other` is what belongs to none. They sum up to the wall
            time of the verify.
    """

    key: str
    level: str
    stages: tuple[Stage, ...]
    problems: tuple[PrecastError, ...]
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Tell whether everything that was asked for passed."""
        return not self.problems and all(s.status in ("ok", "skipped") for s in self.stages)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the first problem; a degraded load is a partial success."""
        if self.problems:
            return self.problems[0].exit_code
        return ExitCode.OK if self.ok else ExitCode.PARTIAL

    @property
    def unaccounted(self) -> float:
        """Share of the wall time that belongs to no phase, 0 to 1."""
        wall = sum(self.phases.values())
        return self.phases.get(OTHER, 0.0) / wall if wall else 0.0


def counted(counts: Mapping[str, object]) -> str:
    """Word what a watch counted, zeros included."""
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())
