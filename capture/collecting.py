"""Garbage collection, held off while graphs are captured.

A collection in the middle of a recording can free memory of the device, which the recording does not survive, and
collections between thousands of recordings cost more than the recordings (vllm-behaviour.md step 8, `freeze_gc`).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_held_off"]

_OF_PYTHON = 1_000  # Python 3.12 freezes some hundred objects when it starts; who freezes on purpose has many thousands


@contextmanager
def collection_held_off() -> Iterator[None]:
    """Collect once, then hold off garbage collection while the block runs; it is as before after any way out.

    What is alive is frozen too, so that a collection that the block asks for itself is cheap. Where the process has
    frozen objects already, as servers do before they fork, nothing is frozen: `gc.unfreeze` would free theirs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    freezes = gc.get_freeze_count() < _OF_PYTHON
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
