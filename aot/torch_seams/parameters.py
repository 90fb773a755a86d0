"""Seam to `nn.Module`: build a module whose parameters take no memory, and whose buffers are real.

Tried on torch 2.11.0 and 2.13.0.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

__all__ = ["fake_on", "parameters_diverted"]


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


@contextmanager
def fake_on(module: nn.Module, device: str) -> Iterator[FakeTensorMode]:
    """Let every tensor of a module stand on a device that may not exist, as a fake one, while the block runs.

    Parameters, buffers and plain tensor attributes alike; shapes, strides, dtypes and shared storage names stay.

    Args:
        module: The module, built on the CPU.
        device: torch device type.

    Yields:
        The mode that all of its fake tensors belong to; inputs must be made in it.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twins: dict[int, Tensor] = {}

    def twin(tensor: Tensor) -> Tensor:
        if id(tensor) not in twins:
            with mode:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                is_parameter = isinstance(tensor, nn.Parameter)
                twins[id(tensor)] = nn.Parameter(made, requires_grad=False) if is_parameter else made
        return twins[id(tensor)]

    with ExitStack() as stack:
        for part in module.modules():
            for held in (part._parameters, part._buffers, vars(part)):
                stack.enter_context(mock.patch.dict(held, _twins(held, twin)))
        yield mode


def _twins(held: Any, twin: Any) -> dict[str, Tensor]:
    return {name: twin(value) for name, value in held.items() if isinstance(value, Tensor)}
