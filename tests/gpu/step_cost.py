"""Time the CPU's part of a PIECEWISE step, of `dispatch()` and of a FULL step, on the graphs of an entry.

python -m tests.gpu.step_cost FOLDER KEY_OR_MEGA [--tokens N]

A step is timed without waiting for the device, a few at a time, so that its queue never fills up. `pieces` runs
the wrapped pieces without the splitting ops between them; `bare` replays the same graphs and does nothing else.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import precast
from precast.aot.graphs import GraphedModel, cuda_backend, graph_candidates
from precast.capture.context import descriptor_number, forward_context
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.examples.decoder.spec import from_config

ROUNDS, STEPS = 30, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("entry")
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    spec = from_config(json.loads((options.folder / "config.json").read_text()), {}, options.folder)
    with torch.device("cuda"):
        module = spec.build()
    assert spec.load_weights is not None
    assert spec.graph_state is not None
    spec.load_weights(module)
    bound = precast.load(options.entry, module).bound
    assert bound is not None
    limits = precast.BatchLimits(max_num_seqs=64)
    found = graph_candidates(bound, limits, mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    state = spec.graph_state(module, found.limits)
    model = GraphedModel(bound)
    manager = GraphManager(model, state, found, cuda_backend(bound), ranges=bound.pieces.ranges)
    manager.capture()
    full = manager.dispatch(options.tokens, options.tokens, 1)
    piecewise = manager.dispatch(1, options.tokens)
    assert (full.mode, piecewise.mode) == (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)
    number = descriptor_number(piecewise)
    replays = [p._recorded[number].replay for p in model.pieces if number in p._recorded]
    inputs = state.inputs(piecewise.num_tokens)

    def bare() -> None:
        for replay in replays:
            replay()

    def pieces() -> None:
        with state.use(), forward_context(piecewise):
            model.pieces_only(*inputs)

    ways = {
        "bare": bare, "pieces": pieces, "piecewise": lambda: manager.run(piecewise), "full": lambda: manager.run(full),
    }  # fmt: skip
    times = {way: _microseconds(run) for way, run in ways.items()}
    each = (times["pieces"] - times["bare"]) / len(replays)
    print(f"{len(replays)} pieces at {options.tokens} tokens, CPU microseconds a step: "
          + ", ".join(f"{way} {value:.0f}" for way, value in times.items()))  # fmt: skip
    print(f"a piece above bare replay: {each:.2f} us; bare replay: {times['bare'] / len(replays):.2f} us")
    print(f"dispatch, a hit: {_dispatch_microseconds(manager, options.tokens):.3f} us")


def _microseconds(run: Callable[[], Any]) -> float:
    """Return the median of a step's time on the CPU."""
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(STEPS):
            run()
        times.append((time.perf_counter() - started) / STEPS)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def _dispatch_microseconds(manager: GraphManager, tokens: int) -> float:
    count, times = 20_000, []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(count):
            manager.dispatch(tokens, tokens, 1)
        times.append((time.perf_counter() - started) / count)
    return min(times) * 1e6


if __name__ == "__main__":
    main()
