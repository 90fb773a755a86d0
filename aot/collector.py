"""Garbage collection, held off while an artifact is loaded.

A load makes some ten thousand objects, enough for a full collection. In a process with torch that walks all that torch
made while it was imported, which takes a tenth of a second: ten times the load itself.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_held_off"]


@contextmanager
def collector_held_off() -> Iterator[None]:
    """Hold off garbage collection while the block runs; nothing is collected or frozen, and it is as before after."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
