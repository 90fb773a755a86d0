"""Time decode steps: as one graph, piece by piece, without graphs and eager, beside the weight-read floor.

A step is the forward alone, inputs filled beforehand. The ways take turns, so that a change of clocks meets all of
them, and the median of their rounds counts.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from precast.aot.batches import TrialBatch, decode_batch
from precast.aot.floor import copy_bandwidth, floor_ms, read_bytes
from precast.aot.loaded import LoadedEntry
from precast.aot.spec import Json
from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode

if TYPE_CHECKING:
    from precast.capture.manager import GraphManager
    from precast.capture.state import GraphState

__all__ = ["BENCH_SIZES", "Bench", "BenchRow", "graph_for", "run_bench"]

BENCH_SIZES = (1, 8, 64, 256)
_ROUNDS, _ROUND_SECONDS, _MOST_STEPS = 5, 0.03, 50


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One batch size.

    Attributes:
        batch: Requests of the decode step.
        tokens: Their tokens, drafts included.
        ms: Milliseconds of a step by way: `full`, `piecewise`, `none` and `eager`; a way without a graph is left out.
        floor: The weight-read floor in milliseconds.
    """

    batch: int
    tokens: int
    ms: Mapping[str, float]
    floor: float

    def json(self) -> dict[str, Json]:
        """Give the row for machines."""
        ms: dict[str, Json] = {way: round(value, 4) for way, value in self.ms.items()}
        return {"batch": self.batch, "tokens": self.tokens, "ms": ms, "floor_ms": round(self.floor, 4)}


@dataclass(frozen=True, slots=True)
class Bench:
    """What was timed.

    Attributes:
        rows: By batch size.
        bandwidth: Measured copy bandwidth, bytes a second.
    """

    rows: tuple[BenchRow, ...]
    bandwidth: float

    def json(self) -> dict[str, Json]:
        """Give it for machines."""
        return {"copy_bytes_per_second": round(self.bandwidth), "rows": [row.json() for row in self.rows]}


def run_bench(entry: LoadedEntry, manager: "GraphManager", state: "GraphState", found: Candidates) -> Bench:
    """Time decode steps of each of `BENCH_SIZES` requests that the limits allow.

    Args:
        entry: The loaded entry.
        manager: Its graphs, captured.
        state: What they were captured over.
        found: What was captured.
    """
    import torch

    model, limits = entry.model(), found.limits
    bandwidth = copy_bandwidth(entry.device)
    sizes = [n for n in BENCH_SIZES if n <= limits.max_num_seqs]
    rows = []
    with torch.no_grad(), state.use():
        for batch in sizes:
            trial = decode_batch(batch, limits)
            if trial.num_tokens > limits.max_num_batched_tokens:
                continue
            ms = _time_all(_ways(entry, manager, state, found, trial), _waiter(entry.device))
            floor = floor_ms(read_bytes(model.bound, model.module, trial.num_tokens), bandwidth)
            rows.append(BenchRow(batch, trial.num_tokens, ms, floor))
    return Bench(tuple(rows), bandwidth)


def graph_for(found: Candidates, mode: CUDAGraphMode, trial: TrialBatch) -> BatchDescriptor | None:
    """Return the smallest graph of a mode that serves a batch, whatever dispatch would prefer; None for none."""
    asked = trial.asked()

    def serves(d: BatchDescriptor) -> bool:
        return (
            d.num_tokens >= asked.num_tokens
            and (d.num_reqs is None or d.num_reqs >= asked.num_reqs)
            and d.uniform_token_count in (None, asked.uniform_token_count)
            and (d.max_query_len is None or (asked.max_query_len or d.max_query_len + 1) <= d.max_query_len)
            and (d.num_active_loras, d.num_ubatches) == (0, 1)
        )

    return min((d for d in found.of(mode) if serves(d)), key=lambda d: d.num_tokens, default=None)


def _ways(
    entry: LoadedEntry, manager: "GraphManager", state: "GraphState", found: Candidates, trial: TrialBatch
) -> dict[str, Callable[[], Any]]:
    """Return how to prepare and run the batch in each way."""
    none = BatchDescriptor(CUDAGraphMode.NONE, trial.num_tokens, len(trial.query_lens))
    ways: dict[str, Callable[[], Any]] = {}
    graphs = {"full": CUDAGraphMode.FULL, "piecewise": CUDAGraphMode.PIECEWISE}
    for way, descriptor in [(way, graph_for(found, mode, trial)) for way, mode in graphs.items()] + [("none", none)]:
        if descriptor is not None:
            ways[way] = _prepared(state, trial, descriptor, partial(manager.run, descriptor))
    inputs = state.inputs(trial.num_tokens)
    ways["eager"] = _prepared(state, trial, none, lambda: entry.eager(*inputs))
    return ways


def _prepared(
    state: "GraphState", trial: TrialBatch, descriptor: BatchDescriptor, run: Callable[[], Any]
) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        state.fill(trial.shape(descriptor), 0)
        return run

    return prepare


def _time_all(ways: Mapping[str, Callable[[], Callable[[], Any]]], wait: Callable[[], None]) -> dict[str, float]:
    """Time each way in turns; the first round finds out how many steps make up a round, and does not count."""
    steps = dict.fromkeys(ways, 1)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(_ROUNDS + 1):
        for way, prepare in ways.items():
            run = prepare()
            run()  # caches, lazy loading and an idle clock are no part of a step
            wait()
            started = time.perf_counter()
            for _ in range(steps[way]):
                run()
            wait()
            seconds = (time.perf_counter() - started) / steps[way]
            if round_:
                times[way].append(seconds * 1e3)
            else:
                steps[way] = max(1, min(_MOST_STEPS, round(_ROUND_SECONDS / max(seconds, 1e-9))))
    return {way: statistics.median(measured) for way, measured in times.items()}


def _waiter(device: str) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None
