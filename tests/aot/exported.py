"""A stand-in for the compiler with right numbers: a payload is the exported program of its piece, run eagerly.

All else is real: trace, split, key, store, load, binding. The functions are importable by child processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import precast.aot.compile as compile_module
from precast.aot.compile import Compiled
from precast.aot.payloads.aoti import AotiPayload
from precast.splitter.split import Piece

__all__ = ["exported_payloads"]


@contextmanager
def exported_payloads() -> Iterator[list[str]]:
    """Let payloads be exported programs while the block runs; yields the key of each piece that was `compiled`."""
    made: list[str] = []

    def compile_pieces(
        pieces: Sequence[Piece], ranges: Sequence[tuple[int, int]], request: object, progress: object
    ) -> tuple[Compiled, ...]:
        from precast.aot.torch_seams.export import export_piece, program_bytes

        made.extend(piece.key for piece in pieces)
        return tuple(
            Compiled(p.key, span, program_bytes(export_piece(p.graph_module, *span)), 0.1)
            for p in pieces
            for span in ranges
        )

    def load(self: object, data: bytes, folder: Path | None, name: str) -> Callable[[list[Any]], Sequence[Any]]:
        from precast.aot.torch_seams.export import program_from

        module = program_from(data).module()
        return lambda inputs: module(*inputs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(compile_module, "compile_pieces", compile_pieces))
        stack.enter_context(mock.patch.object(AotiPayload, "load", load))
        yield made
