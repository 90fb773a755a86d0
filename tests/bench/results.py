"""The results of a benchmark: figures with all their samples, what could not be measured and why, and where it ran.

They are one JSON file for each kind of machine, committed, so that a later run can be held against it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.bench.statistic import median, spread

__all__ = ["FOLDER", "Absent", "Figure", "Results", "Scope", "read_results", "results_path", "scope", "write_results"]

SCHEMA = "precast.bench/1"
# What a run replaces as one: a peer whole, and one place of a row of layers or entries.
Scope = tuple[str, str, int]
FOLDER = Path(__file__).parent / "results"
# Sizes of what a deterministic build writes do not vary by chance; those of memory do.
_EXACT = ("bytes", "mega bytes")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. Less is better in all of them.

    Attributes:
        part: The part of the benchmark that measured it.
        subject: What it is about: the name of a peer, or a command.
        name: What was measured.
        unit: `s`, `ms`, `us`, `B`, `B/s` or `count`.
        samples: What each process measured, in order.
        at: Batch size, layers or entries, where the figure is one of a row.
        date: Day of the last sample, ISO.
    """

    part: str
    subject: str
    name: str
    unit: str
    samples: tuple[float, ...]
    at: int | None = None
    date: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes it the same figure in another run."""
        return self.part, self.subject, self.name, -1 if self.at is None else self.at

    @property
    def scope(self) -> Scope:
        """What it is replaced together with."""
        return scope(self.part, self.subject, self.at)

    @property
    def value(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def spread(self) -> float | None:
        """The distance between the outermost samples; None of a single one."""
        return spread(self.samples)

    @property
    def exact(self) -> bool:
        """Whether it is a count, or the size of what is stored."""
        return self.unit == "count" or self.name in _EXACT


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that could not be measured.

    Attributes:
        part: The part of the benchmark.
        subject: What it is about.
        stage: What was tried.
        why: What was in the way.
        cannot: Whether the subject cannot do it; else it failed, or there was no time for it.
        at: Layers or entries.
    """

    part: str
    subject: str
    stage: str
    why: str
    cannot: bool = False
    at: int | None = None

    @property
    def scope(self) -> Scope:
        """What it is replaced together with."""
        return scope(self.part, self.subject, self.at)


@dataclass(slots=True)
class Results:
    """All that is known of one kind of machine.

    Attributes:
        where: `cpu` or `gpu`.
        command: The command that measured last.
        quick: Whether small models stand in for the real ones.
        machine: Hardware and versions.
        models: The workloads by part.
        figures: By key.
        absent: By scope and stage.
    """

    where: str
    command: str = ""
    quick: bool = False
    machine: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    figures: dict[tuple[str, str, str, int], Figure] = field(default_factory=dict)
    absent: dict[tuple[Scope, str], Absent] = field(default_factory=dict)

    def add(self, figure: Figure) -> None:
        """Add the samples of a figure to those that it has."""
        there = self.figures.get(figure.key)
        if there is not None:
            figure = replace(figure, samples=(*there.samples, *figure.samples))
        self.figures[figure.key] = figure
        self.absent.pop((figure.scope, "budget"), None)

    def note(self, absent: Absent) -> None:
        """Note what could not be measured."""
        self.absent[absent.scope, absent.stage] = absent

    def forget(self, there: Scope) -> None:
        """Forget what is known of something, before it is measured anew."""
        self.figures = {k: f for k, f in self.figures.items() if f.scope != there}
        self.absent = {k: a for k, a in self.absent.items() if a.scope != there}

    def find(self, part: str, subject: str, name: str, at: int | None = None) -> Figure | None:
        """Return a figure; None if it was not measured."""
        return self.figures.get((part, subject, name, -1 if at is None else at))

    def value(self, part: str, subject: str, name: str, at: int | None = None) -> float | None:
        """Return the median of a figure; None if it was not measured."""
        found = self.find(part, subject, name, at)
        return None if found is None else found.value

    def row(self, part: str, subject: str, name: str) -> dict[int, Figure]:
        """Return the figures of one name by batch size, layers or entries, ascending."""
        found = {f.at: f for f in self.figures.values() if (f.part, f.subject, f.name) == (part, subject, name)}
        return {at: found[at] for at in sorted(k for k in found if k is not None)}

    @property
    def dates(self) -> tuple[str, ...]:
        """Days on which it was measured, ascending."""
        return tuple(sorted({f.date for f in self.figures.values() if f.date}))

    def to_json(self) -> dict[str, Any]:
        """Give them for the file."""
        return {
            "schema": SCHEMA,
            "where": self.where,
            "command": self.command,
            "quick": self.quick,
            "machine": self.machine,
            "models": self.models,
            "figures": [_figure_json(self.figures[key]) for key in sorted(self.figures)],
            "absent": [_absent_json(self.absent[key]) for key in sorted(self.absent)],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Results":
        """Read what `to_json` gave.

        Raises:
            ValueError: It is another format.
        """
        if raw.get("schema") != SCHEMA:
            raise ValueError(f"these are results of {raw.get('schema')!r}, not {SCHEMA!r}")
        made = cls(raw["where"], raw["command"], raw["quick"], dict(raw["machine"]), dict(raw["models"]))
        for figure in _figures(raw["figures"]):
            made.figures[figure.key] = figure
        for absent in raw["absent"]:
            made.note(Absent(**absent))
        return made


def scope(part: str, subject: str, at: int | None) -> Scope:
    """Return what a figure is replaced together with; of a peer, all batch sizes are measured in one process."""
    return part, subject, -1 if part == "peers" or at is None else at


def results_path(where: str, *, quick: bool) -> Path:
    """Return the committed file, or for a quick run one beside it that git leaves out."""
    return FOLDER / f"{where}{'-quick' if quick else ''}.json"


def read_results(path: Path) -> Results | None:
    """Read a file; None if there is none."""
    return Results.from_json(json.loads(path.read_text())) if path.is_file() else None


def write_results(results: Results, path: Path) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results.to_json(), indent=1) + "\n")
    new.replace(path)


def _figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        yield Figure(**{**row, "samples": tuple(row["samples"])})


def _figure_json(figure: Figure) -> dict[str, Any]:
    named = {name: getattr(figure, name) for name in ("part", "subject", "name", "unit", "at", "date")}
    return {**named, "samples": [_rounded(s) for s in figure.samples]}


def _absent_json(absent: Absent) -> dict[str, Any]:
    return {name: getattr(absent, name) for name in ("part", "subject", "stage", "why", "cannot", "at")}


def _rounded(sample: float) -> float:
    """Keep five digits: more is noise, and makes each line of a diff."""
    return int(sample) if float(sample).is_integer() else float(f"{sample:.5g}")
