"""Calls to a remote that end: each within a bound, several side by side, and none that keeps the process alive.

A driver's own timeouts come first; the bounds here hold whatever a driver does. A call runs in a daemon thread, so one
that never returns costs its thread and nothing else.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from precast.cache.remote_errors import is_refused, remote_error
from precast.errors import PrecastError

__all__ = ["Calls", "Limits"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a remote may take.

    Attributes:
        connect_s: Seconds for a connection, for drivers that take a limit.
        read_s: Seconds between two pieces of an answer, for drivers that take a limit.
        attempts: How often a call is made that fails for no lasting reason.
        pause_s: Seconds between two attempts.
        call_s: Seconds for one call, or several side by side.
        total_s: Seconds for all calls of a process together.
        mib_s: Seconds that each MiB that moves adds to both; a line that is slower than that is too slow.
        workers: Calls side by side.
    """

    connect_s: float = 5.0
    read_s: float = 20.0
    attempts: int = 2
    pause_s: float = 0.5
    call_s: float = 60.0
    total_s: float = 300.0
    mib_s: float = 4.0
    workers: int = 8


class Calls:
    """Makes the calls to one remote, and keeps count of the time that they took.

    Args:
        url: The remote's address, for errors.
        limits: How long it may take.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        self._left_s = limits.total_s

    def one(self, doing: str, job: Callable[[], _T]) -> _T:
        """Make one call.

        Args:
            doing: What it does, such as `reading v1/entries`.
            job: The call.

        Raises:
            RemoteError: The remote cannot be reached, refuses or is too slow.
        """
        return self.all(doing, [job])[0]

    def all(self, doing: str, jobs: Sequence[Callable[[], _T]], size: int = 0) -> list[_T]:
        """Make several calls side by side; the first failure ends it.

        Args:
            doing: What they do.
            jobs: The calls.
            size: Bytes that they move together.

        Raises:
            RemoteError: The remote cannot be reached, refuses or is too slow.
            PrecastError: A job raised one.
        """
        more = size / 2**20 * self._limits.mib_s
        self._left_s += more
        within = min(self._limits.call_s + more, self._left_s)
        started = time.monotonic()
        try:
            return _run([partial(self._tried, job) for job in jobs], self._limits.workers, within)
        except PrecastError:
            raise
        except Exception as error:
            raise remote_error(error, self._url, doing) from error
        finally:
            self._left_s -= time.monotonic() - started

    def _tried(self, job: Callable[[], _T]) -> _T:
        for _ in range(self._limits.attempts - 1):
            try:
                return job()
            except PrecastError:
                raise
            except Exception as error:
                if is_refused(error):
                    raise
                time.sleep(self._limits.pause_s)
        return job()


def _run(jobs: Sequence[Callable[[], _T]], workers: int, within_s: float) -> list[_T]:
    results: list[_T | None] = [None] * len(jobs)
    done: queue.SimpleQueue[tuple[int, _T | None, BaseException | None]] = queue.SimpleQueue()
    waiting = _Waiting(jobs)
    for number in range(min(workers, len(jobs))):
        threading.Thread(target=_work, args=(waiting, done), name=f"precast-remote-{number}", daemon=True).start()
    end = time.monotonic() + within_s
    try:
        for _ in jobs:
            try:
                index, value, error = done.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"there was no answer within {within_s:.0f} s") from None
            if error is not None:
                raise error
            results[index] = value
    finally:
        waiting.close()
    return cast("list[_T]", results)


class _Waiting:
    """The jobs that nobody has begun."""

    def __init__(self, jobs: Sequence[Callable[[], object]]) -> None:
        self._jobs: Iterator[tuple[int, Callable[[], object]]] = iter(list(enumerate(jobs)))
        self._lock = threading.Lock()

    def take(self) -> tuple[int, Callable[[], object]] | None:
        with self._lock:
            return next(self._jobs, None)

    def close(self) -> None:
        with self._lock:
            self._jobs = iter(())


def _work(waiting: _Waiting, done: "queue.SimpleQueue[tuple[int, object, BaseException | None]]") -> None:
    while (item := waiting.take()) is not None:
        index, job = item
        try:
            done.put((index, job(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the calls were asked for
            waiting.close()
            done.put((index, None, error))
