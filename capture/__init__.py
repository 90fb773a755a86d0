"""CUDA graphs: modes, and later capture sizes, the wrapper, the manager and dispatch. Imports no sibling package."""

from precast.capture.modes import CUDAGraphMode

__all__ = ["CUDAGraphMode"]
