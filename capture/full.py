"""FULL graphs: one graph for a whole forward, which copies its outputs into buffers that all sizes share."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from precast.capture.backend import Graph, GraphBackend
from precast.capture.descriptor import BatchDescriptor
from precast.capture.trees import map_tensors

__all__ = ["FullGraphs"]


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: Graph
    replay: Callable[[], None]
    outputs: Any


class FullGraphs:
    """The FULL graphs of a manager.

    The outputs of a graph are copied, inside the graph, into buffers outside of what graphs share: all else in the
    pool may be overwritten by the next graph (vllm-behaviour.md step 8). A buffer is as large as the largest size,
    which is recorded first, and a smaller size uses its first part.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._recorded: dict[BatchDescriptor, _Recorded] = {}

    def __len__(self) -> int:
        """Return how many graphs are held."""
        return len(self._recorded)

    def __contains__(self, descriptor: BatchDescriptor) -> bool:
        """Tell whether there is a graph for a descriptor."""
        return descriptor in self._recorded

    def record(self, backend: GraphBackend, descriptor: BatchDescriptor, forward: Callable[[], Any]) -> None:
        """Record a forward.

        Args:
            backend: Where recording is under way on the side stream.
            descriptor: What the graph is for; it has none yet.
            forward: Runs the whole forward; returns a tree of tensors.
        """

        def run() -> Any:
            places = itertools.count()
            return map_tensors(lambda output: self._keep(next(places), output), forward())

        graph, outputs = backend.record(run)
        self._recorded[descriptor] = _Recorded(graph, graph.replay, outputs)

    def replay(self, descriptor: BatchDescriptor) -> Any:
        """Replay the graph of a descriptor.

        Returns:
            The outputs, for as many rows as the descriptor has tokens; valid until the next step.

        Raises:
            KeyError: There is no such graph.
        """
        recorded = self._recorded[descriptor]
        recorded.replay()
        return recorded.outputs

    def release(self) -> None:
        """Free graphs and buffers. Twice is harmless."""
        for recorded in self._recorded.values():
            recorded.graph.reset()
        self._recorded.clear()
        self._buffers.clear()

    def _keep(self, index: int, output: torch.Tensor) -> torch.Tensor:
        """Copy an output into the first part of its buffer; flat, so that any dim may grow with the size."""
        buffer = self._buffers.get((index, output.dtype))
        if buffer is None or buffer.numel() < output.numel():
            buffer = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
            self._buffers[index, output.dtype] = buffer
        kept = buffer[: output.numel()].view(output.shape)
        kept.copy_(output)
        return kept
