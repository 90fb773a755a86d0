"""A run: the order of processes, repeats, the budget, and what is kept of earlier runs; no process is started."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.bench.launch import Budget, Ran
from tests.bench.made import figure, results
from tests.bench.peers import PEERS, Entry
from tests.bench.recording import Bench, unit_of
from tests.bench.results import Results
from tests.bench.scaling import measure_scaling
from tests.bench.start_up import PeersPart
from tests.bench.workload import Workload

WORK = Workload("tiny-llama", "cpu", {"dtype": "float32"})


class Clock(Budget):
    """A budget that processes use up by the seconds that the test says."""

    used = 0.0

    def left(self) -> float:
        assert self.seconds is not None
        return self.seconds - self.used


@dataclass
class FakeRunner:
    """Notes what it is told to start, and gives figures without starting anything."""

    clock: Clock
    seconds: float = 10.0
    broken: dict[tuple[str, str], Ran] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)

    def compile(self, peer: Entry, work: Workload, label: str) -> Ran:
        return self._run(peer, "compile", {"compile": 30.0, "bytes": 100})

    def start(self, peer: Entry, work: Workload, label: str) -> Ran:
        figures = {"load": 1.0, "ready": 2.0, "weight bytes": 7, "host bytes": 3.0}
        return self._run(peer, "start", figures, checksum=0.5, steps=[["none", 1, 4.0], ["none", 8, 5.0]])

    def has_kernels(self, label: str) -> bool:
        return any(word.startswith("eager compile") for word in self.ran)

    def discard(self, label: str) -> None:
        self.ran.append(f"discard {label}")

    def _run(self, peer: Entry, stage: str, figures: dict[str, float], **found: Any) -> Ran:
        self.ran.append(f"{peer.name} {stage}")
        self.clock.used += self.seconds
        there = self.broken.get((peer.name, stage))
        return there or Ran({"figures": dict(figures), **found}, self.seconds)


@dataclass
class Made:
    bench: Bench
    runner: FakeRunner


def make(there: Results | None = None, *, budget: float = 1e9, repeats: int = 2) -> Made:
    clock = Clock(budget)
    runner = FakeRunner(clock)
    known: Any = runner
    return Made(Bench(there or results(), known, clock, lambda: None, repeats, 1, set()), runner)


def test_starts_take_turns_and_slow_peers_start_less_often() -> None:
    made = make()
    PeersPart(made.bench, WORK, ["eager", "precast-aoti", "compile", "cache-artifacts"]).run(1, 2, 3, 4)
    wave = ["eager start", "precast-aoti start", "compile start", "eager start", "precast-aoti start"]
    compiles = ["eager compile", "precast-aoti compile", "compile compile"]
    assert made.runner.ran == [*compiles, *wave, "cache-artifacts start"]
    ready = made.bench.results.find("peers", "eager", "ready")
    assert ready is not None
    assert ready.samples == (2.0, 2.0)
    assert made.bench.results.value("peers", "eager", "step none", 8) == 5.0
    assert made.bench.results.value("peers", "machine", "weight bytes") == 7
    assert made.bench.results.find("peers", "eager", "weight bytes") is None
    assert not made.bench.results.absent


def test_on_a_gpu_the_op_s_kernels_are_made_first() -> None:
    made = make(repeats=1)
    PeersPart(made.bench, Workload("tiny-llama", "cuda"), ["aot-compile"]).run(1, 2, 3, 4)
    assert made.runner.ran == ["eager compile", "aot-compile compile", "aot-compile start"]


def test_what_there_is_no_time_for_is_told_and_earlier_figures_stay() -> None:
    there = results(figure("precast-aoti", "ready", 9.0), figure("eager", "ready", 9.0))
    made = make(there, budget=30.0)
    PeersPart(made.bench, WORK, [peer.name for peer in PEERS]).run(1, 2)
    assert made.runner.ran == ["eager compile", "precast-aoti compile"]
    assert made.bench.results.value("peers", "precast-aoti", "compile") == 30.0
    absent = {a.subject: a.stage for a in made.bench.results.absent.values()}
    assert absent["compile"] == absent["cache-artifacts"] == absent["precast-aoti"] == "budget"


def test_a_peer_that_cannot_and_one_that_fails() -> None:
    made = make(repeats=1)
    made.runner.broken["compile", "compile"] = Ran({"cannot": "no such op", "figures": {}}, 1.0)
    made.runner.broken["precast-aoti", "start"] = Ran({}, 1.0, "exit 1: it burst")
    PeersPart(made.bench, WORK, ["precast-aoti", "compile", "cache-artifacts"]).run(1, 2)
    found = {(a.subject, a.stage): (a.why, a.cannot) for a in made.bench.results.absent.values()}
    assert found["compile", "compile"] == ("no such op", True)
    assert found["precast-aoti", "start"] == ("exit 1: it burst", False)
    assert ("cache-artifacts", "budget") in found
    assert made.runner.ran == ["precast-aoti compile", "compile compile", "precast-aoti start"]


def test_other_numbers_than_eager_are_told() -> None:
    made = make(repeats=1)
    made.runner.broken["compile", "start"] = Ran({"figures": {"ready": 1.0}, "checksum": 0.6, "steps": []}, 1.0)
    PeersPart(made.bench, WORK, ["eager", "precast-aoti", "compile"]).run(1)
    assert [(a.subject, a.stage) for a in made.bench.results.absent.values()] == [("compile", "numbers")]


def test_depths_are_measured_and_kept_apart() -> None:
    old = [figure("precast-aoti", "compile", 1.0, part="scaling", at=n) for n in (8, 64)]
    made = make(results(*old), repeats=3)
    measure_scaling(made.bench, WORK, (8,), ("precast-aoti",))
    assert made.runner.ran == ["precast-aoti compile", "precast-aoti start", "discard layers-8"]
    row = made.bench.results.row("scaling", "precast-aoti", "compile")
    assert {at: f.samples for at, f in row.items()} == {8: (30.0,), 64: (1.0,)}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("load", "s"), ("capture full", "s"), ("graphs full bytes", "B"), ("mega bytes", "B"), ("cpu full", "us")),
        ("host bytes compile", "B"),
        *(("pieces", "count"), ("heavy modules after load", "count"), ("copy bandwidth", "B/s")),
    ],
)
def test_units(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_a_workload_survives_its_way_to_a_child() -> None:
    work = WORK.with_layers(3)
    assert Workload.from_json(work.to_json()) == work
    assert work.assignments() == ["--set", 'dtype="float32"', "--set", "num_hidden_layers=3"]
