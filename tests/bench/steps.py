"""Time steps, and capture a forward in CUDA graphs as a user does by hand."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.bench.session import Session

__all__ = ["HandGraphs", "cpu_microseconds", "milliseconds"]

_ROUNDS, _ROUND_SECONDS, _MOST_STEPS = 5, 0.05, 50
_CPU_STEPS = 30


def milliseconds(step: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the median time of a step over some rounds, of which the first sets the number of steps and is left out.

    Args:
        step: One step; inputs lie ready.
        wait: Waits for the device.
    """
    count, times = 1, []
    for number in range(_ROUNDS + 1):
        step()  # caches and an idle clock are no part of a step
        wait()
        started = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        each = (time.perf_counter() - started) / count
        if number:
            times.append(each * 1e3)
        else:
            count = max(1, min(_MOST_STEPS, round(_ROUND_SECONDS / max(each, 1e-9))))
    return statistics.median(times)


def cpu_microseconds(step: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the median time until a step's call returns, with an idle device: what a step costs the CPU.

    One step at a time, because a launch waits once too many are queued.
    """
    times = []
    for _ in range(_CPU_STEPS):
        wait()
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    wait()
    return statistics.median(times) * 1e6


class HandGraphs:
    """A forward in one CUDA graph per size, captured without precast.

    Args:
        session: The model and its buffers.
        forward: What is captured.
        lean: Without a warm-up per size and without `torch.cuda.graph`, which empties the allocator's cache for each
            graph. Else as torch's documentation says: a warm-up on a side stream, then `torch.cuda.graph`.

    Attributes:
        seconds: What the capture of all sizes took.
        size: Bytes of device memory that it took.
    """

    def __init__(self, session: Session, forward: Callable[..., Any], *, lean: bool) -> None:
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._outputs: dict[int, Any] = {}
        torch.cuda.empty_cache()
        session.wait()
        free = torch.cuda.mem_get_info()[0]
        started = time.perf_counter()
        capture = self._capture_lean if lean else self._capture
        with torch.no_grad(), session.state.use():
            capture(session, forward)
        session.wait()
        self.seconds = time.perf_counter() - started
        torch.cuda.empty_cache()
        self.size = free - torch.cuda.mem_get_info()[0]

    def step(self, size: int) -> Callable[[], Any]:
        """Return what replays the graph of a size."""
        replay: Callable[[], Any] = self._graphs[size].replay
        return replay

    def release(self) -> None:
        """Free the graphs and their memory."""
        self._graphs.clear()
        self._outputs.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def _capture(self, session: Session, forward: Callable[..., Any]) -> None:
        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for size in sorted(session.sizes, reverse=True):
            inputs = session.stand_in_inputs(size)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                forward(*inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._outputs[size] = forward(*inputs)
            self._graphs[size] = graph

    def _capture_lean(self, session: Session, forward: Callable[..., Any]) -> None:
        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with _without_collector(), torch.cuda.stream(side):
            for size in sorted(session.sizes, reverse=True):
                inputs = session.stand_in_inputs(size)
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                self._outputs[size] = forward(*inputs)
                graph.capture_end()
                self._graphs[size] = graph
        torch.cuda.current_stream().wait_stream(side)


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
