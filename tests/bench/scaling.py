"""Part `scaling`: how compile, load, capture and bytes grow with the number of equal layers."""

from collections.abc import Sequence
from dataclasses import replace

from tests.bench.peers import entry
from tests.bench.recording import Bench
from tests.bench.workload import Workload

__all__ = ["LAYERS", "PART", "measure_scaling"]

PART = "scaling"
LAYERS = (4, 8, 16, 32, 64)
_LEAST = 25.0


def measure_scaling(bench: Bench, work: Workload, layers: Sequence[int], names: Sequence[str]) -> None:
    """Compile and start models of several depths; no decode steps.

    Args:
        bench: The run.
        work: The model; its depth is replaced.
        layers: Depths.
        names: Peers.
    """
    work = replace(work, batches=(), piecewise=False)
    bench.results.models[PART] = work.to_json()
    for depth in layers:
        deep, label = work.with_layers(depth), f"layers-{depth}"
        for name in names:
            if not bench.has_time(PART, name, _LEAST, at=depth):
                continue
            peer = entry(name)
            if bench.record(PART, name, "compile", bench.runner.compile(peer, deep, label), at=depth):
                for _ in range(bench.slow_repeats):
                    if bench.has_time(PART, name, _LEAST, at=depth):
                        bench.record(PART, name, "start", bench.runner.start(peer, deep, label), at=depth)
        bench.runner.discard(label)
