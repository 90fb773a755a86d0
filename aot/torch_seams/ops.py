"""Seam to the dispatcher: tells which ops run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["watched"]


@contextmanager
def watched(told: Callable[[str], None]) -> Iterator[None]:
    """Tell the name of each op that this thread dispatches while the block runs, before it runs.

    Names are qualified and without the overload, such as `aten::add`. Ops that torch decomposes are told as their
    parts; kernels that are launched without the dispatcher are not told at all. An error that `told` raises comes out
    of the op.

    Tried on torch 2.11.0 and 2.13.0 (`torch.utils._python_dispatch.TorchDispatchMode`).

    Args:
        told: Called with each name.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Watch():
        yield
