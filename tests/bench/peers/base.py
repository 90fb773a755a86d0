"""What every peer can be told to do in a child process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.session import Session
from tests.bench.steps import HandGraphs

__all__ = ["CannotError", "Captured", "Forward", "Peer", "first_token_dims", "size_of"]

Forward = Callable[..., Any]


class CannotError(Exception):
    """A peer cannot do what is asked of it; tables say so."""


@dataclass(frozen=True, slots=True)
class Captured:
    """Graphs of all sizes.

    Attributes:
        seconds: What the capture took.
        size: Bytes of device memory that it took.
        step: Returns what runs the decode step of so many requests, which lies in the buffers.
        release: Frees them.
    """

    seconds: float
    size: int
    step: Callable[[int], Callable[[], Any]]
    release: Callable[[], None]


class Peer:
    """One way to run the model. What it keeps between processes lies in the session's folder."""

    in_process = True
    """Whether `compile` needs the model, and its first call completes it; else `compile` is all."""

    plain = True
    """Whether steps without graphs are another thing than those of its first way to capture."""

    def compile(self, session: Session) -> Forward:
        """Compile with empty caches, and return what to call; the first call of it counts too."""
        return self.load(session)

    def compile_apart(self, folder: Path, work: Any) -> dict[str, float]:
        """Compile without a model in this process, and return figures; for peers that are not `in_process`."""
        raise NotImplementedError

    def keep(self, session: Session) -> None:
        """Write what a later process loads; not timed as a part of the compile."""

    def stored(self, folder: Path) -> int:
        """Return the bytes on disk that a later start reads."""
        raise NotImplementedError

    def load(self, session: Session) -> Forward:
        """Make the forward in a fresh process; the imports that this takes count."""
        raise NotImplementedError

    def captures(self, session: Session, forward: Forward) -> "dict[str, Callable[[], Captured]]":
        """Return the ways to capture CUDA graphs of all sizes, by name; the first one makes the process ready."""

        def by_hand(*, lean: bool) -> Captured:
            graphs = HandGraphs(session, forward, lean=lean)
            return Captured(graphs.seconds, graphs.size, graphs.step, graphs.release)

        return {"full": lambda: by_hand(lean=False), "lean": lambda: by_hand(lean=True)}


def first_token_dims(inputs: tuple[Any, ...]) -> None:
    """Mark the tokens of inputs as a dim of any size, with torch's own public name."""
    import torch

    for tensor in inputs:
        torch._dynamo.mark_dynamic(tensor, 0)


def size_of(*places: Path) -> int:
    """Return the bytes of files, and of all files below folders."""
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())
