"""The model's own code, without a compiler; and in CUDA graphs."""

from pathlib import Path

from tests.bench.peers.base import Forward, Peer
from tests.bench.session import Session

__all__ = ["Eager"]


class Eager(Peer):
    """Runs the module itself."""

    def load(self, session: Session) -> Forward:
        """Return the module."""
        forward: Forward = session.module
        return forward

    def stored(self, folder: Path) -> int:
        return 0
