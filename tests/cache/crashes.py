"""Ends a 'process' at the n-th call that changes the disk, and leaves the disk as it is then.

Nothing that the code does after its death reaches the disk: no clean-up of its own, no further call. Its locks fall
free, as the kernel lets go of them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from filelock import BaseFileLock

__all__ = ["Crash", "dying_at", "steps_of"]

_CALLS = ("link", "mkdir", "open", "rename", "replace", "rmdir", "symlink", "truncate", "unlink", "utime", "write")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Crash(BaseException):
    """The process is dead."""


class _Disk:
    """Counts the calls, and dies at one."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.steps = 0
        self.dead = False
        self.locks: list[BaseFileLock] = []

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if name != "open" or args[1] & _WRITES:
                self._step(name, real, args)
            return real(*args, **named)

        return call

    def _step(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.dead:
            raise Crash
        self.steps += 1
        if self.left is not None and self.steps > self.left:
            self.dead = True
            if name == "write":  # half of it reached the disk
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            raise Crash

    def acquired(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def acquire(lock: BaseFileLock, *args: Any, **named: Any) -> Any:
            self.locks.append(lock)
            return real(lock, *args, **named)

        return acquire


@contextmanager
def _on(disk: _Disk) -> Iterator[None]:
    try:
        with ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(mock.patch.object(os, name, disk.wrapped(name, getattr(os, name))))
            acquire = disk.acquired(BaseFileLock.acquire)
            stack.enter_context(mock.patch.object(BaseFileLock, "acquire", acquire))
            yield
    finally:
        if disk.dead:
            for lock in disk.locks:
                lock.release(force=True)


@contextmanager
def dying_at(step: int) -> Iterator[None]:
    """Let the block die at one of its calls; a block of fewer calls runs to its end.

    Args:
        step: How many calls succeed before.
    """
    disk = _Disk(step)
    try:
        with _on(disk):
            yield
    except Crash:
        assert disk.dead


def steps_of(work: Callable[[], object]) -> int:
    """Run some work to its end, and return how many calls it makes."""
    disk = _Disk(None)
    with _on(disk):
        work()
    return disk.steps
