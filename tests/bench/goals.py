"""The numbers to reach: each is worked out from the figures of one run, and is reached, missed or not measured."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.results import Results

__all__ = ["GOALS", "Goal", "Verdict", "judge"]

PEERS, SCALING = "peers", "scaling"


@dataclass(frozen=True, slots=True)
class Goal:
    """One number to reach.

    Attributes:
        name: What is compared.
        where: `cpu` or `gpu`; empty for both.
        bound: The largest value that reaches it.
        unit: `x` for a ratio, `s`, or `count`.
        find: Works it out; None where a figure is missing.
        words: How the bound is said.
        extra: Not one of the numbers to reach, but a stricter or fairer way to look at one of them.
    """

    name: str
    where: str
    bound: float
    unit: str
    find: Callable[[Results], float | None]
    words: str
    extra: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was found.

    Attributes:
        goal: The goal.
        value: What was found; None if it was not measured.
    """

    goal: Goal
    value: float | None

    @property
    def word(self) -> str:
        """`reached`, `missed` or `not measured`."""
        if self.value is None:
            return "not measured"
        return "reached" if self.value <= self.goal.bound else "missed"


def judge(results: Results) -> list[Verdict]:
    """Judge every goal of this kind of machine. A quick run has small models, so it reaches and misses nothing."""
    goals = [goal for goal in GOALS if goal.where in ("", results.where)]
    return [Verdict(goal, None if results.quick else goal.find(results)) for goal in goals]


def _sum(results: Results, subject: str, *names: str) -> float | None:
    found = [results.value(PEERS, subject, name) for name in names]
    return None if None in found else sum(value for value in found if value is not None)


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _ratio(one: str, other: str, *names: str) -> Callable[[Results], float | None]:
    """Compare the sums of some figures of two peers."""
    return lambda results: _over(_sum(results, one, *names), _sum(results, other, *names))


def _ready_against_cold(results: Results) -> float | None:
    ready = _sum(results, "precast-aoti", "ready")
    return _over(ready, _sum(results, "compile", "compile", "capture full"))


def _ready_against_lean(results: Results) -> float | None:
    return _over(
        _sum(results, "precast-aoti", "ready"), _sum(results, "compile", "load and first call", "capture lean")
    )


def _deep(results: Results) -> float | None:
    deep, shallow = (results.value(SCALING, "precast-aoti", "compile", layers) for layers in (64, 8))
    return _over(deep, shallow)


def _bytes(name: str) -> Callable[[Results], float | None]:
    return lambda results: _over(_sum(results, "precast-aoti", name), _artifacts(results))


def _artifacts(results: Results) -> float | None:
    return results.value(PEERS, "cache-artifacts", "bytes")


_START = "load and first call"

GOALS = (
    Goal(
        "ready, precast aoti against torch.compile with a warm cache",
        "gpu",
        1 / 12,
        "x",
        _ratio("precast-aoti", "compile", "ready"),
        "1/12",
    ),
    Goal(
        "the same, both with `import torch`",
        "gpu",
        1 / 12,
        "x",
        _ratio("precast-aoti", "compile", "import", "ready"),
        "1/12",
        extra=True,
    ),
    Goal(
        "the same, torch.compile captured without a warm-up per size",
        "gpu",
        1 / 12,
        "x",
        _ready_against_lean,
        "1/12",
        extra=True,
    ),
    Goal(
        "ready, precast aoti against torch.compile cold",
        "gpu",
        1 / 40,
        "x",
        _ready_against_cold,
        "1/40",
    ),
    Goal(
        "load and first call, precast aoti against torch.compile with a warm cache",
        "cpu",
        1 / 10,
        "x",
        _ratio("precast-aoti", "compile", _START),
        "1/10",
    ),
    Goal(
        "load and first call, precast aoti against AOTInductor's package of the whole model, torch's private loader",
        "cpu",
        1.2,
        "x",
        _ratio("precast-aoti", "aoti-c-loader", _START),
        "1.2",
    ),
    Goal(
        "the same, `aoti_load_package`, which is the public one",
        "cpu",
        1.2,
        "x",
        _ratio("precast-aoti", "aoti-package", _START),
        "1.2",
        extra=True,
    ),
    Goal(
        "load and first call, precast aoti",
        "gpu",
        0.2,
        "s",
        lambda results: results.value(PEERS, "precast-aoti", _START),
        "0.2 s",
    ),
    Goal(
        "of torch._dynamo, torch._inductor, sympy and triton, imported by the load of precast aoti",
        "",
        0,
        "count",
        lambda results: results.value(PEERS, "precast-aoti", "heavy modules after load"),
        "0",
    ),
    Goal(
        "the same by its first call too, which imports what the example's own attention op needs",
        "",
        0,
        "count",
        lambda results: results.value(PEERS, "precast-aoti", "heavy modules after first call"),
        "0",
        extra=True,
    ),
    Goal(
        "cold compile of 32 layers, precast inductor against torch.compile",
        "gpu",
        1 / 3,
        "x",
        _ratio("precast-inductor", "compile", "compile"),
        "1/3",
    ),
    Goal(
        "cold compile of 32 layers, precast aoti against torch.compile",
        "gpu",
        1 / 2,
        "x",
        _ratio("precast-aoti", "compile", "compile"),
        "1/2",
    ),
    Goal("cold compile, precast aoti, 64 layers against 8", "", 1.3, "x", _deep, "1.3"),
    Goal(
        "bytes on disk, a precast aoti entry with its mega file against save_cache_artifacts",
        "",
        1 / 2,
        "x",
        _bytes("bytes"),
        "1/2",
    ),
    Goal(
        "the same, the mega file alone, which is what is shipped",
        "",
        1 / 2,
        "x",
        _bytes("mega bytes"),
        "1/2",
        extra=True,
    ),
)
