"""The weight-read floor: how fast a decode step could be if it did nothing but read the weights once.

    floor seconds = (bytes of the parameters and buffers that the plan reads) / (copy bandwidth of the device)

Of an embedding table a step reads one row a token, so that much of it counts and not the table. The copy bandwidth is
bytes read plus bytes written in a second, measured on blocks far larger than any cache. What a step reads besides, such
as the KV cache, is left out: the floor is for short contexts.
"""

import time
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

from precast.aot.binding import BoundState

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["copy_bandwidth", "floor_ms", "read_bytes"]

_BLOCK = 2**30
_BLOCK_CPU = 2**26
_ROUNDS, _COPIES = 5, 8


def read_bytes(bound: BoundState, module: "nn.Module", num_tokens: int) -> int:
    """Return the bytes of parameters and buffers that a step of so many tokens reads; a tensor used twice counts once.

    Args:
        bound: The pieces, bound to the module.
        module: The module.
        num_tokens: Rows of the step.
    """
    from torch import nn

    total = 0
    for path, tensor in _state_of(bound):
        owner = reduce(getattr, path.split(".")[:-1], module)
        if isinstance(owner, nn.Embedding) and tensor.dim() == 2:
            total += min(num_tokens, tensor.shape[0]) * tensor.shape[1] * tensor.element_size()
        else:
            total += tensor.numel() * tensor.element_size()
    return total


def copy_bandwidth(device: str) -> float:
    """Measure the copy bandwidth of a device, in bytes a second, read and written ones together: the best of five."""
    import torch

    elements = min(_BLOCK, torch.cuda.mem_get_info()[0] // 4) if device == "cuda" else _BLOCK_CPU
    source = torch.ones(elements, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(_ROUNDS + 1):  # the first one warms up, and is never the best
        _wait(device)
        started = time.perf_counter()
        for _ in range(_COPIES):
            target.copy_(source)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * elements * _COPIES / best


def floor_ms(read: int, bandwidth: float) -> float:
    """Return the floor in milliseconds, from bytes and bytes a second."""
    return read / bandwidth * 1e3


def _state_of(bound: BoundState) -> "Iterator[tuple[str, Tensor]]":
    """Yield each tensor of the module that a piece takes, once, with its dotted path."""
    used = {name for piece in bound.pieces.plan.pieces for name in piece.inputs}
    seen: set[tuple[int, int]] = set()
    for given in bound.pieces.plan.inputs:
        if given.kind != "state" or given.name not in used:
            continue
        tensor = bound.values[given.name]
        place = (tensor.data_ptr(), tensor.numel() * tensor.element_size())
        if place not in seen:
            seen.add(place)
            yield given.source, tensor


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
