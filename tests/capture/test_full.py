"""FULL graphs: outputs in shared buffers, by descriptor."""

from typing import Any

import pytest
import torch
from tests.capture.support import ReplayingBackend

from precast.capture.descriptor import BatchDescriptor
from precast.capture.full import FullGraphs
from precast.capture.modes import CUDAGraphMode


def full(size: int) -> BatchDescriptor:
    return BatchDescriptor(CUDAGraphMode.FULL, size, size)


def captured(x: torch.Tensor, *sizes: int) -> tuple[FullGraphs, ReplayingBackend]:
    backend, graphs = ReplayingBackend(), FullGraphs()

    def forward(size: int) -> Any:
        rows = x[:size]
        return {"rows": 2 * rows, "columns": (rows.t() + 1,), "name": "x", "sum": rows.sum()}

    with backend.side_stream():
        for size in sizes:
            graphs.record(backend, full(size), lambda size=size: forward(size))  # type: ignore[misc]
    return graphs, backend


def test_each_size_replays_into_its_part_of_one_buffer() -> None:
    x = torch.zeros(8, 3)
    graphs, _ = captured(x, 8, 4)
    x.copy_(torch.rand(8, 3))
    large = graphs.replay(full(8))
    assert torch.equal(large["rows"], 2 * x)
    assert torch.equal(large["columns"][0], x.t() + 1)
    assert large["name"] == "x"
    small = graphs.replay(full(4))
    assert torch.equal(small["rows"], 2 * x[:4])
    assert torch.equal(small["columns"][0], x[:4].t() + 1)
    assert torch.equal(small["sum"], x[:4].sum())
    assert small["rows"].data_ptr() == large["rows"].data_ptr()


def test_a_buffer_that_is_too_small_is_left_to_the_sizes_that_have_it() -> None:
    x = torch.zeros(8, 3)
    graphs, _ = captured(x, 4, 8)
    x.copy_(torch.rand(8, 3))
    for size in (4, 8, 4):
        assert torch.equal(graphs.replay(full(size))["rows"], 2 * x[:size])


def test_only_what_was_recorded_can_be_replayed() -> None:
    graphs, _ = captured(torch.zeros(8, 3), 8)
    assert full(8) in graphs
    assert full(4) not in graphs
    assert len(graphs) == 1
    with pytest.raises(KeyError):
        graphs.replay(full(4))


def test_release_frees_graphs_and_buffers_and_twice_is_harmless() -> None:
    graphs, backend = captured(torch.zeros(8, 3), 8, 4)
    for _ in range(2):
        graphs.release()
        assert all(graph.is_reset for graph in backend.graphs)
        assert len(graphs) == 0
    assert not graphs._buffers
