"""Seam to `nn.Module`: build a module whose parameters take no memory, and whose buffers are real.

Tried on torch 2.11.0 and 2.13.0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode

__all__ = ["parameters_diverted"]


@contextmanager
def parameters_diverted() -> Iterator[None]:
    """Divert each parameter to a fake tensor as soon as a module registers it; buffers stay real.

    Building wholly on the meta device gives wrong buffers for some models (tracing-traps), so only parameters are
    diverted. The memory that a constructor takes for a parameter is never touched, and freed at once.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    register = nn.Module.register_parameter

    def diverted(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not isinstance(param.data, FakeTensor):
            with mode:
                param = nn.Parameter(mode.from_tensor(param.detach()), requires_grad=False)
        register(self, name, param)

    with mock.patch.object(nn.Module, "register_parameter", diverted):
        yield
