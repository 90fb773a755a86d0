"""A serving engine's own compile cache on the same model shape: figures that are quoted, and not measured here.

vLLM 0.33, its Python source alone, on one H200 with torch 2.11.0+cu130: a Llama-shaped 8B model in bfloat16 with random
weights and attention as a splitting op, each row one fresh process.
"""

from dataclasses import dataclass

__all__ = ["DATE", "QUOTED", "SOURCE", "Quote"]

DATE = "2026-11-30"
SOURCE = f"vLLM 0.33 on one H200, torch 2.11.0+cu130, measured on {DATE} in one process each and quoted here"


@dataclass(frozen=True, slots=True)
class Quote:
    """One way to start it.

    Attributes:
        title: What it is called in tables.
        compile: Seconds of a first call with empty caches.
        first_call: Seconds of load and first call in a fresh process.
        capture: Seconds of a capture of 51 FULL graphs.
        piecewise: Seconds of a capture of 51 sizes piece by piece.
        stored: Bytes on disk.
        full: Milliseconds of a decode step in a FULL graph, by batch size.
        full_bytes: Bytes of device memory of the FULL graphs.
        piecewise_bytes: Bytes of device memory of the graphs of pieces.
    """

    title: str
    compile: float
    first_call: float
    capture: float
    piecewise: float
    stored: int
    full: dict[int, float]
    full_bytes: int = int(0.07 * 2**30)
    piecewise_bytes: int = int(0.35 * 2**30)


_FULL = {1: 4.61, 8: 4.68, 64: 5.46, 256: 9.1}

QUOTED = (
    Quote("vLLM, mega artifact (quoted)", 18.1, 1.1, 1.75, 5.8, 17_100_000, _FULL),
    Quote("vLLM, AOT file (quoted)", 15.2, 3.2, 1.75, 5.8, 18_000_000, _FULL),
    Quote("vLLM, hash folder (quoted)", 12.4, 5.9, 1.75, 5.8, 6_500_000, _FULL),
)
