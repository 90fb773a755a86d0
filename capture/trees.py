"""Trees of tensors: what a forward may return, which is tuples, lists and dicts of tensors and of plain values."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["map_tensors"]


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return a tree of the same form in which each tensor is replaced; other values stay as they are.

    Args:
        function: Called once for each tensor, from left to right.
        tree: A tensor, or tuples (named ones too), lists and dicts of trees, or any other value.
    """
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        values = [map_tensors(function, value) for value in tree]
        if isinstance(tree, list):
            return values
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return tree
