"""Where code for a target is made: for a GPU under its description, with or without a GPU here; for a CPU as it is."""

from collections.abc import Iterator
from contextlib import contextmanager

from precast.aot.target import Target
from precast.errors import NoGpuError

__all__ = ["compiling_for"]


@contextmanager
def compiling_for(target: Target) -> Iterator[None]:
    """Let torch make code for a target while the block runs.

    Code for a GPU is always made from its description, also where the GPU is present, so that every machine makes the
    same.

    Args:
        target: What the code must run on.

    Raises:
        NoGpuError: The target is a GPU without a description, or this torch is a build for the CPU alone.
        IncompatibleError: This torch lacks a private name that the description answers for.
    """
    if target.device == "cpu":
        yield
        return
    if target.description is None:
        raise NoGpuError(f"{target.arch} is not described", "code depends on more than the architecture", "name a GPU")
    from precast.aot.torch_seams.described import described_device

    with described_device(target.description):
        yield
