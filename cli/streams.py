"""Keeping stdout for the answer: what models, compilers and their workers print there goes to stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import UnsupportedOperation
from typing import TextIO

__all__ = ["stdout_kept_clean"]

_STDOUT_FD = 1


@contextmanager
def stdout_kept_clean(answer: TextIO) -> Iterator[None]:
    """Send everything that others print to stdout to stderr while the block runs.

    Python's `print` is caught by replacing `sys.stdout`; worker processes and C code inherit descriptor 1,
    which is pointed at descriptor 2 when the answer goes to that very descriptor. The answer is written
    after the block.

    Args:
        answer: The stream that the answer goes to.
    """
    with redirect_stdout(sys.stderr):
        target = _descriptor(sys.stderr)
        if _descriptor(answer) != _STDOUT_FD or target is None:
            yield
            return
        answer.flush()
        real = os.dup(_STDOUT_FD)
        os.dup2(target, _STDOUT_FD)
        try:
            yield
        finally:
            os.dup2(real, _STDOUT_FD)
            os.close(real)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (UnsupportedOperation, AttributeError, ValueError):
        return None
