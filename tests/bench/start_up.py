"""Part `peers`: compile each peer once in empty caches, then start serving processes of all of them in turns."""

from collections.abc import Sequence

from tests.bench.peers import PEERS, Entry, entry
from tests.bench.recording import Bench
from tests.bench.results import Absent
from tests.bench.workload import Workload

__all__ = ["PART", "PeersPart"]

PART = "peers"
_LABEL = "model"
# Fewer seconds than these are not begun with on a GPU: only to be ended half-way.
_LEAST, _LEAST_SLOW = 15.0, 45.0
_CHECKSUM_PART = 0.02
_OF_ALL = ("weight bytes", "copy bandwidth")


class PeersPart:
    """The part, some waves at a time.

    Args:
        bench: The run.
        work: The model.
        names: Peers; the eager one is compiled in any case on a GPU, since others need its kernels.
    """

    def __init__(self, bench: Bench, work: Workload, names: Sequence[str]) -> None:
        self._bench = bench
        self._work = work
        self._chosen = [peer for peer in PEERS if peer.name in names and work.device in peer.devices]
        self._compiled: set[str] = set()
        self._checks: dict[str, float] = {}
        bench.results.models[PART] = work.to_json()

    def run(self, *waves: int) -> None:
        """Measure the peers of some waves, one wave after another."""
        for wave in waves:
            chosen = [peer for peer in self._chosen if peer.wave == wave]
            if chosen and self._needs_kernels():
                self._bench.runner.compile(entry("eager"), self._work, _LABEL)
            ready = [peer for peer in chosen if peer.name in self._compiled or self._compile(peer)]
            for number in range(self._bench.repeats):
                for peer in ready:
                    if number < (self._bench.slow_repeats if peer.slow else self._bench.repeats):
                        self._start(peer)
        self._compare()

    def _needs_kernels(self) -> bool:
        """Tell whether the attention op's kernels are not there, and will not be by measuring eager."""
        there = self._bench.runner.has_kernels(_LABEL) or "eager" in [peer.name for peer in self._chosen]
        return self._work.device == "cuda" and not there

    def _compile(self, peer: Entry) -> bool:
        bench = self._bench
        if peer.after is not None:
            if peer.after in self._compiled:
                return True
            bench.note(PART, peer.name, "budget", f"`{peer.after}`, which makes its artifact, was not compiled")
            return False
        if not bench.has_time(PART, peer.name, self._least(peer)):
            return False
        done = bench.record(PART, peer.name, "compile", bench.runner.compile(peer, self._work, _LABEL))
        self._compiled |= {peer.name} if done else set()
        return done

    def _start(self, peer: Entry) -> None:
        bench = self._bench
        if bench.budget.left() < self._least(peer):
            if bench.results.find(PART, peer.name, "ready") is None:
                bench.results.note(Absent(PART, peer.name, "budget", "no time was left for its start"))
            return
        ran = bench.runner.start(peer, self._work, _LABEL)
        shared = {name: ran.found["figures"].pop(name) for name in _OF_ALL if name in ran.found.get("figures", {})}
        if bench.record(PART, peer.name, "start", ran):
            self._checks[peer.name] = ran.found["checksum"]
            for name, value in shared.items():
                bench.add(PART, "machine", name, value)

    def _least(self, peer: Entry) -> float:
        return _LEAST if self._work.device == "cpu" or not peer.slow else _LEAST_SLOW

    def _compare(self) -> None:
        """Note peers whose first call gave other numbers than eager: what they measured would be of another model."""
        expected = self._checks.get("eager")
        for name, found in self._checks.items():
            if expected is not None and abs(found - expected) > _CHECKSUM_PART * abs(expected):
                why = f"mean size of the result {found:.5g}, eager {expected:.5g}"
                self._bench.note(PART, name, "numbers", why)
        self._bench.save()
