"""Cut a traced graph at its splitting ops, recognize equal pieces, and stitch them together again.

`plan` and `stitch` need no torch, so that loading an artifact imports neither `torch.fx` nor the compiler; `split`
works on graphs and is imported only where a model is compiled.
"""

from precast.splitter.plan import CallOp, Compute, GraphInput, RunPiece, SplitPlan, Step, Template, references
from precast.splitter.stitch import PieceCallable, Stitched, bind, stitch

__all__ = [
    "CallOp",
    "Compute",
    "GraphInput",
    "PieceCallable",
    "RunPiece",
    "SplitPlan",
    "Step",
    "Stitched",
    "Template",
    "bind",
    "references",
    "stitch",
]
