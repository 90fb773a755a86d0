"""A loaded model with CUDA graphs: every piece wrapped where it stands in the graph, and a manager over them.

A breakable model, which has no compiled pieces, is captured by the same manager.

Pieces that share their code do not share graphs: each position has its own inputs and outputs, so each is wrapped
apart, once for every compile range.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from precast.aot.binding import BoundState, bind_forward, resolve_op
from precast.aot.load import CompiledModel
from precast.capture.candidates import Candidates, candidates
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphedPiece
from precast.capture.segmented import BreakableModel
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
    model: CompiledModel | BreakableModel,
    state: "GraphState",
    limits: BatchLimits,
    *,
    mode: CUDAGraphMode | str | None = None,
    sizes: Sequence[int] | None = None,
    largest: int | None = None,
    interactivity: bool = False,
    agree: "Callable[[Candidates], Agree] | None" = None,
    backend: "GraphBackend | None" = None,
    progress: "CaptureProgress | None" = None,
    debug: bool = False,
) -> GraphManager:
    """Capture the CUDA graphs of a model, and return what dispatches and runs steps on them.

    Args:
        model: What `precast.load` returned, or a forward that is recorded in segments.
        state: Buffers of the serving process: inputs, KV cache, attention metadata. Graphs read them where they lie.
        limits: What a step may hold; of tokens, at most what the entry was compiled for counts.
        mode: Which graphs; by default what the entry's settings came to when it was built, which every rule of
            `aot.levels` has lowered as far as the model's attention needs (`inspect show KEY --settings`). A mode that
            is given is taken as it is. A breakable model has no record: FULL_AND_PIECEWISE.
        sizes: Capture sizes in tokens; by default those of `capture.sizes`.
        largest: Largest capture size, where sizes are left to the rule.
        interactivity: Capture every size from 1 to 32, for less padding in small batches.
        agree: Is called once, before the capture, with what will be captured, and returns what agrees with other
            data-parallel ranks on each step: `lambda found: Agreement(found, group, store).agree`.
        backend: What records graphs; by default CUDA graphs on the model's device, or on the current one.
        progress: Is told what goes on.
        debug: Compare all that is known of a piece's inputs at each replay. A breakable model is told when it is made.

    Raises:
        NoGpuError: No GPU is usable, or the entry was compiled for the CPU.
        CaptureError: Graphs cannot be captured; nothing is held then.
        ConfigValueError: Sizes or mode are wrong.
        UsageError: The model was not made by `precast.load`, or has no token dim.
    """
    if isinstance(model, BreakableModel):
        bound = None
    elif model.bound is not None:
        bound = model.bound
    else:
        raise UsageError("this model has no pieces to capture", "it is a bare forward", "load it with `precast.load`")
    found = graph_candidates(
        bound, limits, mode=_mode(mode, bound), sizes=sizes, largest=largest, interactivity=interactivity
    )
    backend = backend or cuda_backend(bound)
    agreed = None if agree is None else agree(found)
    if bound is not None:
        manager = graph_manager(bound, state, found, backend, agree=agreed, debug=debug)
    else:
        manager = GraphManager(cast("BreakableModel", model), state, found, backend, agree=agreed)
    manager.capture(progress)
    return manager


def graph_candidates(
    bound: BoundState | None,
    limits: BatchLimits,
    *,
    mode: CUDAGraphMode,
    sizes: Sequence[int] | None = None,
    largest: int | None = None,
    interactivity: bool = False,
) -> Candidates:
    """List what to capture of a model.

    Args:
        bound: The loaded model; None for a breakable one, which runs any number of tokens.
        limits: What a step may hold; of tokens, at most what the entry was compiled for counts.
        mode: Which graphs.
        sizes: Capture sizes that the user gave.
        largest: Largest size that the user gave.
        interactivity: Capture every size from 1 to 32.

    Raises:
        ConfigValueError: Sizes are wrong.
        UsageError: The model has no token dim.
    """
    if bound is not None and bound.pieces.plan.token_input is None:
        why = "none of its inputs has a dim of tokens, so there is nothing to choose a graph by"
        raise UsageError("a model with static shapes has no batch sizes", why, "capture it with torch.cuda.graph")
    if bound is not None:
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


def cuda_backend(bound: BoundState | None = None) -> "GraphBackend":
    """Return what records CUDA graphs.

    Args:
        bound: The loaded model; None for a breakable one, which is captured on the current device.

    Raises:
        NoGpuError: The model is compiled for the CPU, or no GPU is usable.
    """
    import torch

    what, index = "a breakable model", None
    if bound is not None:
        what = f"entry {bound.pieces.manifest.key[:12]}"
        if bound.device != "cuda":
            why = f"{what} is compiled for the {bound.device}, which has no CUDA graphs"
            hint = "precompile the model with `--target cuda` or a GPU's name"
            raise NoGpuError("graphs cannot be captured", why, hint)
        index = next((t.device.index for t in bound.values.values() if t.is_cuda), None)
    if not torch.cuda.is_available():
        raise NoGpuError("graphs cannot be captured", f"{what} needs a GPU and none is usable", "run it on a GPU")
    from precast.aot.torch_seams.graphs import CudaGraphs

    return CudaGraphs(index)


def _moving_values(plan: SplitPlan) -> frozenset[str]:
    """Return the values that may lie elsewhere in each step: what is made between the pieces, outside of any graph."""
    return frozenset(s.output for s in plan.steps if isinstance(s, CallOp | Compute) and s.output is not None)


def _mode(mode: CUDAGraphMode | str | None, bound: BoundState | None) -> CUDAGraphMode:
    if mode is None:
        settings = bound.pieces.manifest.settings if bound is not None else ()
        mode = str(next((s.value for s in settings if s.name == "cudagraph_mode"), "FULL_AND_PIECEWISE"))
    if isinstance(mode, CUDAGraphMode):
        return mode
    if mode not in CUDAGraphMode.__members__:
        choices = ", ".join(CUDAGraphMode.__members__)
        raise ConfigValueError(f"`mode` cannot be {mode!r}", f"choices: {choices}", "choose one of these")
    return CUDAGraphMode[mode]


def _capability(bound: BoundState | None) -> tuple[int, int] | None:
    import torch

    on_gpu = (bound is None or bound.device == "cuda") and torch.cuda.is_available()
    return torch.cuda.get_device_capability() if on_gpu else None
