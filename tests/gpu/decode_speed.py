"""Time a decode step of two entries of one model in one CUDA graph each, in turns; print the ratio of the medians.

python -m tests.gpu.decode_speed FOLDER KEY_OR_MEGA OTHER [--layers N]
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import precast
from precast.examples.decoder.kv_cache import RequestTokens
from precast.examples.decoder.spec import from_config, new_context

SIZES = (1, 8, 64, 256)
ROUNDS, REPLAYS = 9, 10
CONTEXT = 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("entries", nargs=2)
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    overrides = {"num_hidden_layers": options.layers} if options.layers else {}
    spec = from_config(json.loads((options.folder / "config.json").read_text()), overrides, options.folder)
    with torch.device("cuda"):
        module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)
    runs = [precast.load(entry, module) for entry in options.entries]
    for size in SIZES:
        steps = [_captured(run, module, size) for run in runs]
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for at, step in enumerate(steps):
                times[at].append(_milliseconds(step))
        first, second = map(statistics.median, times)
        spread = max(max(t) / min(t) - 1 for t in times)
        print(f"batch {size:4}: {first:.3f} and {second:.3f} ms, ratio {first / second:.4f}, spread {spread:.3f}")


def _captured(run: Callable[..., Any], module: torch.nn.Module, size: int) -> torch.cuda.CUDAGraph:
    width = -(-(CONTEXT + 1) // 16)
    context = new_context(module, num_blocks=size * width, max_tokens=size, max_requests=size, max_blocks=width)
    requests = [RequestTokens(CONTEXT, 1, tuple(range(i * width, (i + 1) * width))) for i in range(size)]
    positions = context.fill(requests)
    ids = torch.ones(size, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), context.use():
        run(ids, positions)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run(ids, positions)
    graph.precast_reads = (context, ids, positions)  # a graph keeps nothing alive that it reads
    return graph


def _milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / REPLAYS


if __name__ == "__main__":
    main()
