"""The wrapper of one piece: replays the graph of the current batch descriptor, or runs the piece.

Why outputs kept as weak references are right. All graphs share one pool, and what a graph keeps afterwards is where
its outputs lie, not their memory. So a later graph may use that memory, and must do so only when nobody reads the
output any more. That holds:

- Within one size. While a size is captured, its forward runs as any other: it gets strong outputs and drops each
  after its last use. The allocator hands out only memory that nothing alive lies in, so a piece recorded later gets
  the memory of an output only when the forward has dropped it, which is after the last piece or splitting op that
  reads it. A replayed step replays the pieces in the order of their capture, so each write into that memory comes after
  those reads. The forward that captures must therefore keep every value as long as the forward that replays does, also
  where it leaves splitting ops out.
- Between sizes. A step replays the graphs of one size only, and reads nothing that an earlier step left in the pool.
  A caller who keeps an output longer than until the next step copies it.
- Between steps on the device: graphs replayed on one stream run in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from precast.capture.backend import Graph, GraphBackend
from precast.capture.context import FORWARD, current
from precast.errors import GraphAddressError

__all__ = ["GraphHolder", "GraphedPiece", "PieceCallable"]

PieceCallable = Callable[[list[Any]], Sequence[Any]]

_address = torch.Tensor.data_ptr


class GraphHolder(Protocol):
    """What holds graphs inside a model: a wrapped piece, or a forward that is recorded in segments.

    Attributes:
        uncaptured: Calls under a PIECEWISE descriptor without a graph; they ran as outside of graphs.
    """

    uncaptured: int

    @property
    def graphs(self) -> int:
        """How many graphs are held."""
        ...

    def release(self) -> None:
        """Free the graphs; calls run without graphs afterwards. Twice is harmless."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """How an input looked when its graph was recorded; kept for the full check only."""

    kind: type
    layout: object

    @classmethod
    def of(cls, value: Any) -> "_Seen":
        if isinstance(value, torch.Tensor):
            return cls(torch.Tensor, (tuple(value.shape), value.stride(), value.dtype, value.device))
        return cls(type(value), value)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One graph of the piece.

    Attributes:
        addresses: Where the inputs at fixed positions lay.
        replay: Replays the graph.
        outputs: Weak references to what the graph writes, in the piece's order.
        graph: The graph.
        copied: Where inputs at moving positions are copied to: position and buffer.
        seen: All inputs as they looked; empty without the full check.
    """

    addresses: list[int]
    replay: Callable[[], None]
    outputs: Sequence[Any]
    graph: Graph
    copied: tuple[tuple[int, torch.Tensor], ...]
    seen: tuple[_Seen, ...]


class GraphedPiece:
    """A piece that replays graphs in mode PIECEWISE, and is the piece itself in any other.

    Args:
        piece: Takes a list of tensors, which it may empty, and returns a sequence of tensors.
        name: What errors call it, such as `piece 3`.
        inputs: Names of its inputs in order, for errors; empty for their positions.
        moving: Positions of inputs that lie elsewhere in each step, because something between the pieces makes them
            anew. They are copied into buffers that stay. Inputs at all other positions must stay where they were
            when the graph was recorded: a replay reads there.
        debug: Compare shapes, strides, dtypes, devices and plain values too.

    Attributes:
        uncaptured: Calls under a PIECEWISE descriptor that had no graph; they ran the piece.
    """

    __slots__ = ("_buffers", "_debug", "_fixed", "_inputs", "_moving", "_name", "_piece", "_recorded", "uncaptured")

    def __init__(
        self,
        piece: PieceCallable,
        name: str,
        *,
        inputs: Sequence[str] = (),
        moving: Sequence[int] = (),
        debug: bool = False,
    ) -> None:
        self.uncaptured = 0
        self._piece = piece
        self._name = name
        self._inputs = tuple(inputs)
        self._moving = frozenset(moving)
        self._debug = debug
        self._fixed: tuple[int, ...] | None = None
        self._buffers: dict[int, torch.Tensor] = {}
        self._recorded: dict[int, _Recorded] = {}

    @property
    def graphs(self) -> int:
        """How many graphs are held."""
        return len(self._recorded)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the piece, or replay its graph for the current descriptor.

        Args:
            inputs: The piece's inputs.

        Returns:
            Its outputs. After a replay they are valid until the next step.

        Raises:
            GraphAddressError: An input does not lie where it lay when the graph was recorded.
        """
        number = FORWARD.pieces
        if number is None:
            return self._piece(inputs)
        recorded = self._recorded.get(number)
        if recorded is None:
            return self._without_graph(number, inputs)
        fixed = inputs if self._fixed is None else [inputs[position] for position in self._fixed]
        if list(map(_address, fixed)) != recorded.addresses:
            self._refuse(recorded, inputs)
        if recorded.copied or recorded.seen:
            self._prepare(recorded, inputs)
        recorded.replay()
        return recorded.outputs

    def release(self) -> None:
        """Free the graphs and buffers; calls run the piece afterwards. Twice is harmless."""
        for recorded in self._recorded.values():
            recorded.graph.reset()
        self._recorded.clear()
        self._buffers.clear()

    def _without_graph(self, number: int, inputs: list[Any]) -> Sequence[Any]:
        context = current()
        recorder = context.recorder if context else None
        if recorder is None:  # the capture phase is over: a graph that is missing stays so
            self.uncaptured += 1
            return self._piece(inputs)
        return self._record(recorder, number, inputs)

    def _record(self, recorder: GraphBackend, number: int, inputs: list[Any]) -> Sequence[Any]:
        copied = tuple((position, self._buffer(position, inputs[position])) for position in sorted(self._moving))
        given = list(inputs)
        for position, buffer in copied:
            given[position] = buffer
        self._fixed = _fixed_positions(inputs, self._moving)
        fixed = range(len(inputs)) if self._fixed is None else self._fixed
        addresses = [_address(inputs[position]) for position in fixed]
        seen = tuple(map(_Seen.of, inputs)) if self._debug else ()
        graph, outputs = recorder.record(lambda: self._piece(list(given)))
        kept = recorder.weak(tuple(outputs))
        self._recorded[number] = _Recorded(addresses, graph.replay, kept, graph, copied, seen)
        return outputs

    def _buffer(self, position: int, like: torch.Tensor) -> torch.Tensor:
        """Return a view of the position's buffer that looks as the input, and holds its values.

        The largest size is recorded first, so that one buffer serves all.
        """
        reach = sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)) + 1
        elements = reach if like.numel() else 0
        buffer = self._buffers.get(position)
        if buffer is None or buffer.numel() < elements or buffer.dtype != like.dtype:
            buffer = self._buffers[position] = torch.empty(elements, dtype=like.dtype, device=like.device)
        view = buffer.as_strided(like.shape, like.stride())
        view.copy_(like)
        return view

    def _prepare(self, recorded: _Recorded, inputs: list[Any]) -> None:
        if recorded.seen and recorded.seen != tuple(map(_Seen.of, inputs)):
            self._refuse(recorded, inputs)
        for position, buffer in recorded.copied:
            if _form(inputs[position]) != _form(buffer):
                self._refuse(recorded, inputs)  # a copy would repeat rows, or convert
            buffer.copy_(inputs[position])

    def _refuse(self, recorded: _Recorded, inputs: list[Any]) -> None:
        """Tell every input that is not as its graph needs it."""
        fixed = range(len(inputs)) if self._fixed is None else self._fixed
        pairs = zip(fixed, recorded.addresses, strict=True)
        wrong = [
            f"{self._input(position)} lies at {_address(inputs[position]):#x} and not at {address:#x}"
            for position, address in pairs
            if _address(inputs[position]) != address
        ]
        if not recorded.seen:
            forms = [(position, _form(inputs[position]), _form(buffer)) for position, buffer in recorded.copied]
            wrong += [
                f"{self._input(position)} is {now} and not {then}" for position, now, then in forms if now != then
            ]
        for position, seen in enumerate(recorded.seen):
            now = _Seen.of(inputs[position])
            if now != seen:
                wrong.append(f"{self._input(position)} is {now.layout} and not {seen.layout}")
        raise GraphAddressError(
            f"the graph of {self._name} cannot be replayed",
            "; ".join(wrong),
            "a graph reads the memory that it was recorded with: fill the same buffers in place, and capture again"
            " after weights were replaced",
        )

    def _input(self, position: int) -> str:
        named = position < len(self._inputs)
        return f"input `{self._inputs[position]}`" if named else f"input {position}"


def _form(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _fixed_positions(inputs: Sequence[Any], moving: frozenset[int]) -> tuple[int, ...] | None:
    """Return the positions of tensors that must not move; None if they are all positions, which is checked fastest."""
    fixed = tuple(i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and i not in moving)
    return None if len(fixed) == len(inputs) else fixed
