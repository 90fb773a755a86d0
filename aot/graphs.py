"""A loaded model with CUDA graphs: every piece wrapped where it stands in the graph, and a manager over them.

Pieces that share their code do not share graphs: each position has its own inputs and outputs, so each is wrapped
apart, once for every compile range.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precast.aot.binding import BoundState, bind_forward, resolve_op
from precast.aot.load import CompiledModel
from precast.capture.candidates import Candidates, candidates
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphedPiece
from precast.capture.sizes import capture_sizes, default_top
from precast.errors import ConfigValueError, NoGpuError, UsageError
from precast.splitter.plan import CallOp, Compute, SplitPlan
from precast.splitter.stitch import PieceCallable

if TYPE_CHECKING:
    from precast.capture.backend import GraphBackend
    from precast.capture.manager import Agree, CaptureProgress
    from precast.capture.state import GraphState

__all__ = ["GraphedModel", "capture_graphs", "cuda_backend", "graph_candidates", "graph_manager", "omissible"]


class GraphedModel:
    """Loaded pieces bound to a module twice: with all splitting ops, and without those that no capture needs.

    Args:
        bound: Pieces and state.
        debug: Compare all that is known of a piece's inputs at each replay, not only addresses.

    Attributes:
        forward: The whole forward; chooses the compile range by the token count and checks its arguments.
        pieces_only: The same pieces without the splitting ops that need not run; see `omissible`.
    """

    def __init__(self, bound: BoundState, *, debug: bool = False) -> None:
        self._plan = bound.pieces.plan
        self._moving = _moving_values(self._plan)
        self._debug = debug
        self._wrapped: dict[tuple[tuple[int, int], int], GraphedPiece] = {}
        self.forward: Callable[..., Any] = bind_forward(bound, self._wrap)
        self.pieces_only: Callable[..., Any] = bind_forward(bound, self._wrap, omissible(self._plan))

    @property
    def pieces(self) -> Sequence[GraphedPiece]:
        """Every wrapped piece, by compile range and position."""
        return tuple(self._wrapped.values())

    def _wrap(self, span: tuple[int, int], position: int, piece: PieceCallable) -> GraphedPiece:
        found = self._wrapped.get((span, position))
        if found is None:
            inputs = self._plan.pieces[position].inputs
            moving = [at for at, name in enumerate(inputs) if name in self._moving]
            found = GraphedPiece(piece, f"piece {position}", inputs=inputs, moving=moving, debug=self._debug)
            self._wrapped[span, position] = found
        return found


def omissible(plan: SplitPlan, resolve: Callable[[str, str], Any] = resolve_op) -> frozenset[int]:
    """Return the splitting ops that need not run while pieces are captured, by index of the step.

    What a recording reads and writes follows from where tensors lie, not from what they hold. So an op may be left out
    when nothing uses its result and the tensors that it was given stay where they are, which torch's tag
    `inplace_view` would deny.

    Args:
        plan: The plan.
        resolve: Returns the op overload of (qualified name, overload).
    """
    import torch

    def needless(step: CallOp) -> bool:
        return step.output is None and torch.Tag.inplace_view not in getattr(
            resolve(step.op, step.overload), "tags", ()
        )

    return frozenset(at for at, step in enumerate(plan.steps) if isinstance(step, CallOp) and needless(step))


def capture_graphs(
    model: CompiledModel,
    state: "GraphState",
    limits: BatchLimits,
    *,
    mode: CUDAGraphMode | str = CUDAGraphMode.FULL_AND_PIECEWISE,
    sizes: Sequence[int] | None = None,
    largest: int | None = None,
    interactivity: bool = False,
    agree: "Agree | None" = None,
    backend: "GraphBackend | None" = None,
    progress: "CaptureProgress | None" = None,
    debug: bool = False,
) -> GraphManager:
    """Capture the CUDA graphs of a loaded model, and return what dispatches and runs steps on them.

    Args:
        model: What `precast.load` returned.
        state: Buffers of the serving process: inputs, KV cache, attention metadata. Graphs read them where they lie.
        limits: What a step may hold; of tokens, at most what the entry was compiled for counts.
        mode: Which graphs. What the model's attention can be captured in is the caller's to know (`aot.levels`).
        sizes: Capture sizes in tokens; by default those of `capture.sizes`.
        largest: Largest capture size, where sizes are left to the rule.
        interactivity: Capture every size from 1 to 32, for less padding in small batches.
        agree: Agrees with other data-parallel ranks on each step.
        backend: What records graphs; by default CUDA graphs on the current device.
        progress: Is told what goes on.
        debug: Compare all that is known of a piece's inputs at each replay.

    Raises:
        NoGpuError: No GPU is usable, or the entry was compiled for the CPU.
        CaptureError: Graphs cannot be captured; nothing is held then.
        ConfigValueError: Sizes or mode are wrong.
        UsageError: The model was not made by `precast.load`, or has no token dim.
    """
    if model.bound is None:
        raise UsageError("this model has no pieces to capture", "it is a bare forward", "load it with `precast.load`")
    found = graph_candidates(
        model.bound, limits, mode=_mode(mode), sizes=sizes, largest=largest, interactivity=interactivity
    )
    manager = graph_manager(model.bound, state, found, backend or cuda_backend(model.bound), agree=agree, debug=debug)
    manager.capture(progress)
    return manager


def graph_candidates(
    bound: BoundState,
    limits: BatchLimits,
    *,
    mode: CUDAGraphMode,
    sizes: Sequence[int] | None = None,
    largest: int | None = None,
    interactivity: bool = False,
) -> Candidates:
    """List what to capture of a loaded model.

    Args:
        bound: The model.
        limits: What a step may hold; of tokens, at most what the entry was compiled for counts.
        mode: Which graphs.
        sizes: Capture sizes that the user gave.
        largest: Largest size that the user gave.
        interactivity: Capture every size from 1 to 32.

    Raises:
        ConfigValueError: Sizes are wrong.
        UsageError: The model has no token dim.
    """
    if bound.pieces.plan.token_input is None:
        why = "none of its inputs has a dim of tokens, so there is nothing to choose a graph by"
        raise UsageError("a model with static shapes has no batch sizes", why, "capture it with torch.cuda.graph")
    budget = min(limits.max_num_batched_tokens, max(high for _, high in bound.pieces.ranges))
    limits = replace(limits, max_num_batched_tokens=budget)
    top = default_top(_capability(bound))
    chosen = capture_sizes(limits, mode, largest=largest, sizes=sizes, interactivity=interactivity, default_top=top)
    return candidates(mode, chosen.sizes, limits)


def graph_manager(
    bound: BoundState,
    state: "GraphState",
    found: Candidates,
    backend: "GraphBackend",
    *,
    agree: "Agree | None" = None,
    debug: bool = False,
) -> GraphManager:
    """Return a manager over a model's wrapped pieces; nothing is captured yet."""
    model = GraphedModel(bound, debug=debug)
    return GraphManager(model, state, found, backend, ranges=bound.pieces.ranges, agree=agree)


def cuda_backend(bound: BoundState) -> "GraphBackend":
    """Return what records CUDA graphs.

    Raises:
        NoGpuError: The model is compiled for the CPU, or no GPU is usable.
    """
    import torch

    key = bound.pieces.manifest.key[:12]
    if bound.device != "cuda":
        why = f"entry {key} is compiled for the {bound.device}, which has no CUDA graphs"
        raise NoGpuError("graphs cannot be captured", why, "precompile the model with `--target cuda` or a GPU's name")
    if not torch.cuda.is_available():
        raise NoGpuError("graphs cannot be captured", f"entry {key} needs a GPU and none is usable", "run it on a GPU")
    from precast.aot.torch_seams.graphs import CudaGraphs

    return CudaGraphs(next((t.device.index for t in bound.values.values() if t.is_cuda), None))


def _moving_values(plan: SplitPlan) -> frozenset[str]:
    """Return the values that may lie elsewhere in each step: what is made between the pieces, outside of any graph."""
    return frozenset(s.output for s in plan.steps if isinstance(s, CallOp | Compute) and s.output is not None)


def _mode(mode: CUDAGraphMode | str) -> CUDAGraphMode:
    if isinstance(mode, CUDAGraphMode):
        return mode
    if mode not in CUDAGraphMode.__members__:
        choices = ", ".join(CUDAGraphMode.__members__)
        raise ConfigValueError(f"`mode` cannot be {mode!r}", f"choices: {choices}", "choose one of these")
    return CUDAGraphMode[mode]


def _capability(bound: BoundState) -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if bound.device == "cuda" and torch.cuda.is_available() else None
