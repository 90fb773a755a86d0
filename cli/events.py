"""Progress as a file of events: one JSON object a line, for programs that follow long work."""

import json
from collections.abc import Callable, Mapping
from typing import TextIO

from precast.cache.canonical import Json

__all__ = ["EventLog"]


class EventLog:
    """A progress that writes events; every line is complete as soon as it is written.

    Args:
        file: Where the lines go.
        clock: Seconds of a monotonic clock; `at` counts from the creation of the log.
    """

    def __init__(self, file: TextIO, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._began = clock()

    def start(self, stage: str, total: int) -> None:
        """Write that a stage of `total` items begins."""
        self._write("stage_started", {"stage": stage, "total": total})

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Write that an item was finished."""
        self._write("item_finished", {"stage": stage, "label": label, "seconds": seconds, "bytes": size})

    def finish(self, stage: str) -> None:
        """Write that a stage ended."""
        self._write("stage_finished", {"stage": stage})

    def note(self, text: str) -> None:
        """Write one line of text."""
        self._write("note", {"text": text})

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Write what went wrong although the work goes on."""
        self._write("warning", {"code": code, "message": message, "hint": hint})

    def _write(self, event: str, fields: Mapping[str, Json]) -> None:
        at = round(self._clock() - self._began, 3)
        self._file.write(json.dumps({"event": event, "at": at, **fields}) + "\n")
        self._file.flush()
