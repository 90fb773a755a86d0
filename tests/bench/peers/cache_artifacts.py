"""`torch.compile` in a process that first loads what `torch.compiler.save_cache_artifacts` gave in another one."""

from pathlib import Path

import torch
from tests.bench.peers.base import CannotError, Forward, Peer, size_of
from tests.bench.peers.compiled import ARTIFACTS, compile_module
from tests.bench.session import Session

__all__ = ["CacheArtifacts"]


class CacheArtifacts(Peer):
    """Loads the artifacts into empty caches, then traces and compiles as always."""

    def load(self, session: Session) -> Forward:
        """Load the artifacts; what they save is saved at the first call."""
        path = session.folder / ARTIFACTS
        if not path.is_file():
            raise CannotError("save_cache_artifacts returned nothing")
        torch.compiler.load_cache_artifacts(path.read_bytes())
        return compile_module(session.module)

    def stored(self, folder: Path) -> int:
        """Return the size of the artifacts."""
        return size_of(folder / ARTIFACTS)
