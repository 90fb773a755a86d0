"""`torch.compile(mode="reduce-overhead")`: Inductor's own CUDA graphs, recorded at the first calls of each size."""

import time
from collections.abc import Callable
from typing import Any

import torch
from tests.bench.peers.base import Captured, Forward
from tests.bench.peers.compiled import Compiled, compile_module
from tests.bench.session import Session

__all__ = ["ReduceOverhead"]

_CALLS = 2  # a size is warmed up at its first call, and recorded at its second


class ReduceOverhead(Compiled):
    """The options of that mode, since a mode and options exclude each other."""

    plain = False

    def load(self, session: Session) -> Forward:
        """Wrap the module; the work is done at the first call."""
        compiled = compile_module(session.module, **{"triton.cudagraphs": True})

        def forward(*inputs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(*inputs)

        return forward

    def keep(self, session: Session) -> None:
        """Keep nothing but the caches."""

    def captures(self, session: Session, forward: Forward) -> "dict[str, Callable[[], Captured]]":
        """Call each size until it is recorded."""

        def record() -> Captured:
            torch.cuda.empty_cache()
            session.wait()
            free = torch.cuda.mem_get_info()[0]
            started = time.perf_counter()
            with torch.no_grad(), session.state.use():
                for size in sorted(session.sizes, reverse=True):
                    inputs = session.stand_in_inputs(size)
                    for _ in range(_CALLS):
                        forward(*inputs)
            session.wait()
            seconds = time.perf_counter() - started
            torch.cuda.empty_cache()
            taken = free - torch.cuda.mem_get_info()[0]
            return Captured(seconds, taken, lambda size: _step(session, forward, size), lambda: None)

        return {"full": record}


def _step(session: Session, forward: Forward, size: int) -> Callable[[], Any]:
    inputs = session.state.inputs(size)
    return lambda: forward(*inputs)
