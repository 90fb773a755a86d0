"""A backend that records torch ops on the CPU as a GPU records kernels: what is recorded does not run."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from tests.capture.support import ReplayedGraph, ReplayingBackend
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from precast.capture.backend import Graph

_SYNCING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")


class DispatchGraphs(ReplayingBackend):
    """Records each op between `begin` and `end`, and replays them in place.

    While an op is recorded nothing is written into tensors that were there before, and what it makes is poisoned with
    NaN, so that whoever reads a result too early is found out. An op that would wait for the device is refused.

    Args:
        fails: What fails, such as `begin 2` or `end 1`, counted from 1.

    Attributes:
        begun: Every graph that was begun.
        weakened: Tensors that were asked for without their memory.
    """

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.begun: list[ReplayedGraph] = []
        self.weakened: list[Tensor] = []
        self._fails = fails
        self._calls: Counter[str] = Counter()
        self._mode: _Recorder | None = None

    def begin(self) -> Graph:
        self._fail("begin")
        graph = self._new()
        self.begun.append(graph)
        self._mode = _Recorder()
        self._mode.__enter__()
        return graph

    def end(self, graph: Graph) -> None:
        assert self._mode is not None
        again = self._mode.again
        self._stop_recording()
        self._fail("end")
        assert isinstance(graph, ReplayedGraph)
        graph.keep(again)
        self.graphs.append(graph)

    def abandon(self, graph: Graph) -> None:
        if self._mode is not None:
            self._stop_recording()
        graph.reset()

    def is_recording(self) -> bool:
        return self._mode is not None or super().is_recording()

    def weak(self, tree: Any) -> Any:
        pytree.tree_map_only(Tensor, self.weakened.append, tree)
        return super().weak(tree)

    def _stop_recording(self) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)
        self._mode = None

    def _fail(self, call: str) -> None:
        self._calls[call] += 1
        if f"{call} {self._calls[call]}" == self._fails:
            raise RuntimeError(f"the device refused {self._fails}")


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps ops, with what they were given and where their results lie."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in _SYNCING:
            raise RuntimeError(f"{func._schema.name} is not permitted while something is recorded")
        if func._schema.is_mutable:
            self._kept.append(lambda: _run(func, args, kwargs))
            return _written(func._schema, args, kwargs)
        result = func(*args, **kwargs)
        places = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = [
            (at, out)
            for at, out in enumerate(pytree.tree_leaves(result))
            if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in places
        ]
        for _, out in made:
            if out.is_floating_point():
                out.fill_(torch.nan)
        if made and not func._schema.name.startswith(("aten::empty", "aten::new_empty")):
            self._kept.append(lambda: _write(made, func(*args, **kwargs)))
        return result

    def again(self) -> None:
        for run in self._kept:
            run()


def _run(func: Any, args: Any, kwargs: Any) -> None:
    func(*args, **kwargs)


def _write(made: list[tuple[int, Tensor]], again: Any) -> None:
    leaves = pytree.tree_leaves(again)
    for at, out in made:
        out.copy_(leaves[at])


def _written(schema: Any, args: Any, kwargs: Any) -> Any:
    """Return what an op returns that writes into its arguments, without running it."""
    by_place = {}
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            by_place[frozenset(argument.alias_info.before_set)] = value
    results = [by_place[frozenset(r.alias_info.before_set)] for r in schema.returns]
    return None if not results else results[0] if len(results) == 1 else tuple(results)
