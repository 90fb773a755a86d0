"""How long work tells what it is doing: a protocol that the command line draws and everything else ignores."""

from typing import Protocol

__all__ = ["Progress", "Silent"]


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
