"""The form that a tensor's content has in a key: dtype, shape, and a digest of its bits."""

import ctypes
from collections.abc import Sequence

from torch import Tensor

from precast.cache.canonical import Json, sha256

__all__ = ["constant_form"]


def constant_form(tensor: Tensor, dtype: str, shape: Sequence[int | None]) -> dict[str, Json]:
    """Return a tensor's content as it stands in a key.

    Args:
        tensor: The tensor, on any device.
        dtype: Its dtype's name.
        shape: Its shape.
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""
    return {"dtype": dtype, "shape": list(shape), "digest": sha256(data)}
