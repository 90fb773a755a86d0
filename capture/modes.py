"""CUDA graph modes: three that a step can run in, and two pairs of them (seed step 7).

A pair has one mode for uniform decode batches and one for mixed batches; a mode that is no pair stands for both.
"""

from enum import Enum

__all__ = ["CUDAGraphMode"]


class CUDAGraphMode(Enum):
    """Which graphs are captured; a tuple is (decode mode, mixed mode)."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)

    @property
    def decode_mode(self) -> "CUDAGraphMode":
        """Mode of a batch in which every request has the same number of new tokens."""
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self

    @property
    def mixed_mode(self) -> "CUDAGraphMode":
        """Mode of any other batch."""
        return CUDAGraphMode(self.value[1]) if isinstance(self.value, tuple) else self

    @property
    def is_pair(self) -> bool:
        """Tell whether decode and mixed batches have modes of their own."""
        return isinstance(self.value, tuple)

    def needs_pieces(self) -> bool:
        """Tell whether any batch runs piece by piece, which needs a split graph."""
        return CUDAGraphMode.PIECEWISE in (self.decode_mode, self.mixed_mode)
