"""Plain `torch.compile`, with the caches on disk that it writes by itself.

All guards are dropped, as serving engines do. Else a step of one token would be traced and compiled apart, and each
call would check guards: a start and a step would both be slower than here.
"""

from pathlib import Path
from typing import Any

import torch
from tests.bench.peers.base import Forward, Peer, first_token_dims, size_of
from tests.bench.session import Session

__all__ = ["ARTIFACTS", "Compiled", "compile_module"]

ARTIFACTS = "artifacts.bin"


def compile_module(module: Any, **options: Any) -> Forward:
    """Compile a module, or one of its methods, for any number of tokens."""
    compiled = torch.compile(
        module,
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe, **options},
    )
    marked = False

    def forward(*inputs: Any) -> Any:
        nonlocal marked
        if not marked:
            first_token_dims(inputs)
            marked = True
        return compiled(*inputs)

    return forward


class Compiled(Peer):
    """`torch.compile` with Inductor's defaults."""

    def load(self, session: Session) -> Forward:
        """Wrap the module; the work is done at the first call."""
        return compile_module(session.module)

    def keep(self, session: Session) -> None:
        """Write what `torch.compiler.save_cache_artifacts` gives, for the peer of that name."""
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            (session.folder / ARTIFACTS).write_bytes(saved[0])

    def stored(self, folder: Path) -> int:
        """Return the size of Inductor's and Triton's caches."""
        return size_of(folder / "inductor", folder / "triton")
