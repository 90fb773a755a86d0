"""How long work tells what it is doing: a protocol that the command line draws and everything else ignores."""

import logging
from typing import Protocol

__all__ = ["Progress", "Silent"]

_LOG = logging.getLogger("precast")


class Progress(Protocol):
    """Receives the stages of long work.

    A stage starts once, advances `total` times at most, and finishes once.
    """

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of `total` items; 0 when the number is not known."""

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Report that the item `label` took `seconds` and made `size` bytes."""

    def finish(self, stage: str) -> None:
        """End a stage."""

    def note(self, text: str) -> None:
        """Tell one line that belongs to no stage."""

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Tell what went wrong although the work goes on.

        Args:
            code: A dotted, stable name, such as `remote.unreachable`.
            message: One line that says what happened.
            hint: One line that says what to do about it, or empty.
        """


class Silent:
    """A progress that says nothing."""

    def start(self, stage: str, total: int) -> None:
        """Ignore."""

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Ignore."""

    def finish(self, stage: str) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Log: nobody looks at a progress that says nothing, and a warning must not be lost."""
        _LOG.warning("%s: %s%s", code, message, f"; {hint}" if hint else "")
