"""The tensors that compiled code was bound to: whether a module still holds these very ones, in these very layouts.

Compiled code takes each tensor of the module by reference and checks nothing. Values that were changed in place are
simply used. A tensor or layer that was replaced, or a parameter whose `.data` has another layout now, would be read
wrongly or not at all, so a call looks first. That costs about 0.3 us a tensor.
"""

from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn

from precast.aot.torch_seams.twins import holders

__all__ = ["Watched"]

_METADATA = attrgetter("dtype", "shape")


class Watched:
    """What a module holds under some paths at the time when this is made.

    Args:
        module: The module.
        paths: Dotted paths of tensors.
    """

    __slots__ = ("_held", "_metadata", "_names", "_places", "_strides", "_tensors")

    def __init__(self, module: nn.Module, paths: Iterable[str]) -> None:
        steps = {(id(place), name): (place, name, held) for p in paths for place, name, held in holders(module, p)}
        self._places: list[dict[str, Any]] = [place for place, _, _ in steps.values()]
        self._names = [name for _, name, _ in steps.values()]
        self._held = [held for _, _, held in steps.values()]
        self._tensors = [held for held in self._held if isinstance(held, Tensor)]
        self._metadata = list(map(_METADATA, self._tensors))
        self._strides = list(map(Tensor.stride, self._tensors))

    def unchanged(self) -> bool:
        """Tell whether each step of each path still leads to the same object, and each tensor has the same layout."""
        return (
            all(map(is_, map(dict.get, self._places, self._names), self._held))
            and list(map(_METADATA, self._tensors)) == self._metadata
            and list(map(Tensor.stride, self._tensors)) == self._strides
        )
