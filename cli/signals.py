"""Signals that end a command by raising through the stack, so that temporary work is removed on the way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["Terminated", "raising_signals"]


class Terminated(BaseException):
    """The process was asked to end by SIGTERM."""


def _interrupt(signum: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signum, signal.SIG_DFL)  # a second Ctrl-C kills at once
    raise KeyboardInterrupt


def _terminate(signum: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signum, signal.SIG_DFL)
    raise Terminated


@contextmanager
def raising_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into exceptions while the block runs.

    A signal that the parent process told us to ignore stays ignored, as shell background jobs expect.
    Outside the main thread nothing is changed, since Python allows handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: _interrupt, signal.SIGTERM: _terminate}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
