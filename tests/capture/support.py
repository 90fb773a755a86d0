"""A backend that replays on the CPU, and a small model with state to capture over."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from precast.capture.backend import Graph
from precast.capture.context import current
from precast.capture.descriptor import BatchDescriptor
from precast.capture.pieces import GraphedPiece
from precast.capture.state import BatchShape
from precast.capture.trees import map_tensors

MEMORY = 1 << 40


class OutOfMemoryError(RuntimeError):
    """The replaying backend has no memory left."""


class ReplayedGraph:
    """Calls work again, and writes its results where those of the recording lie.

    Attributes:
        replays: How often it was replayed.
    """

    def __init__(self) -> None:
        self.replays = 0
        self.is_reset = False
        self._again: Callable[[], None] | None = None

    def keep(self, again: Callable[[], None]) -> None:
        self._again = again

    def replay(self) -> None:
        if self._again is None:
            raise RuntimeError("replay of a graph that was reset or not ended")
        self.replays += 1
        self._again()

    def reset(self) -> None:
        self.is_reset = True
        self._again = None


class _Ops(TorchDispatchMode):  # type: ignore[misc]
    """Keeps every op that runs, with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def again(self) -> None:
        for func, args, kwargs, result in self.calls:
            _write(result, func(*args, **kwargs))


class ReplayingBackend:
    """Stands in for CUDA graphs on the CPU.

    `record` keeps the function: a replay calls it again. `begin` and `end` keep the torch ops between them: a replay
    runs those, and no Python of the recording.

    Args:
        free: Bytes of memory.
        cost: Bytes that each graph takes; a graph that they do not suffice for cannot be recorded.

    Attributes:
        graphs: Every graph recorded.
        log: What was asked for, in order.
    """

    def __init__(self, free: int = MEMORY, cost: int = 1 << 20) -> None:
        self.graphs: list[ReplayedGraph] = []
        self.log: list[str] = []
        self.memory = free
        self.cost = cost
        self.on_side = False
        self._free = free
        self._recording: tuple[ReplayedGraph, _Ops] | None = None

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        self.log.append("side stream")
        outer, self.on_side = self.on_side, True
        try:
            yield
        finally:
            self.on_side = outer

    def record(self, function: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = self._new()
        self._recording = (graph, _Ops())
        try:
            result = function()
        finally:
            self._recording = None
        self._pay()
        graph.keep(lambda: _write(result, function()))
        self.graphs.append(graph)
        return graph, result

    def begin(self) -> Graph:
        graph = self._new()
        ops = _Ops()
        ops.__enter__()
        self._recording = (graph, ops)
        return graph

    def end(self, graph: Graph) -> None:
        assert self._recording is not None
        recorded, ops = self._recording
        assert recorded is graph
        self._stop()
        self._pay()
        recorded.keep(ops.again)
        self.graphs.append(recorded)

    def abandon(self, graph: Graph) -> None:
        if self._recording is not None:
            self._stop()
        graph.reset()

    def is_recording(self) -> bool:
        return self._recording is not None

    def weak(self, tree: Any) -> Any:
        return map_tensors(Tensor.detach, tree)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def free_bytes(self) -> int:
        return self._free

    def wanted_bytes(self, error: BaseException) -> int | None:
        return self.cost if isinstance(error, OutOfMemoryError) else None

    def release(self) -> None:
        assert all(graph.is_reset for graph in self.graphs)
        self.log.append("release")
        self.graphs.clear()
        self._free = self.memory

    def _new(self) -> ReplayedGraph:
        if not self.on_side:
            raise RuntimeError("recording outside of the side stream")
        if self._recording is not None:
            raise RuntimeError("recordings do not nest")
        return ReplayedGraph()

    def _stop(self) -> None:
        assert self._recording is not None
        self._recording[1].__exit__(None, None, None)
        self._recording = None

    def _pay(self) -> None:
        if self._free < self.cost:
            raise OutOfMemoryError("no memory left")
        self._free -= self.cost


def _write(old: Any, new: Any) -> None:
    """Write the tensors of a tree where those of another one lie; nothing to do where they are the same memory."""
    olds: list[Tensor] = []
    news: list[Tensor] = []
    map_tensors(olds.append, old)
    map_tensors(news.append, new)
    for at, value in zip(olds, news, strict=True):
        if at.data_ptr() != value.data_ptr():
            at.copy_(value)


class ToyState:
    """Tokens of several requests as numbers, and what the splitting op of the toy model reads and writes.

    Attributes:
        tokens: Input of the forward.
        scale: What the op multiplies by; changes between steps without a new capture.
        described: Shapes and descriptors of all captures.
    """

    def __init__(self, max_tokens: int = 64) -> None:
        self.tokens = torch.zeros(max_tokens)
        self.scale = torch.ones(1)
        self.described: list[tuple[BatchShape, BatchDescriptor | None]] = []
        self.uses = 0

    def inputs(self, num_tokens: int) -> tuple[Tensor, ...]:
        return (self.tokens[:num_tokens],)

    def describe(self, shape: BatchShape) -> None:
        context = current()
        self.described.append((shape, context.descriptor if context else None))
        self.tokens.fill_(0.5)

    def fill(self, shape: BatchShape, seed: int) -> None:
        self.tokens.copy_(torch.rand(len(self.tokens), generator=torch.Generator().manual_seed(seed)))

    def use(self) -> AbstractContextManager[object]:
        self.uses += 1
        return nullcontext()

    def written(self, shape: BatchShape) -> Sequence[Tensor]:
        return ()


class ToyModel:
    """Three pieces with an op between each two, which is not recorded: (x + 1) * scale, twice.

    Attributes:
        ops: How often an op ran.
        forwards: Token counts of all whole forwards.
    """

    def __init__(self, state: ToyState, *, debug: bool = False) -> None:
        self.state = state
        self.ops = 0
        self.forwards: list[int] = []
        self.pieces = [GraphedPiece(_piece, f"piece {i}", inputs=["x"], debug=debug) for i in range(3)]

    def forward(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.forwards.append(len(tokens))
        return self._run(tokens, runs_ops=True)

    def pieces_only(self, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self._run(tokens, runs_ops=False)

    def expected(self, tokens: Tensor) -> Tensor:
        """Compute the first output with no wrapper and no op."""
        x = (tokens + 1) * self.state.scale
        return (x + 1) * self.state.scale + 1

    def _run(self, tokens: Tensor, *, runs_ops: bool) -> tuple[Tensor, dict[str, Tensor]]:
        x = tokens
        for piece in self.pieces[:-1]:
            x, out = piece([x])
            if runs_ops:
                self._op(x, out)
            x = out
        x, twice = self.pieces[-1]([x])
        return x, {"twice": twice}

    def _op(self, x: Tensor, out: Tensor) -> None:
        self.ops += 1
        torch.mul(x, self.state.scale, out=out)


def _piece(inputs: list[Any]) -> Sequence[Any]:
    (x,) = inputs
    inputs.clear()  # as a loaded package may
    x = x + 1
    return [x, 2 * x]


class ToldProgress:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self.advanced: list[tuple[str, str]] = []
        self.finished: list[str] = []
        self.notes: list[str] = []

    def start(self, stage: str, total: int) -> None:
        self.started.append((stage, total))

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        assert min(seconds, size) >= 0
        self.advanced.append((stage, label))

    def finish(self, stage: str) -> None:
        self.finished.append(stage)

    def note(self, text: str) -> None:
        self.notes.append(text)
