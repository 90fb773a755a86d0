"""What a server runs its steps on: a graph manager over the pieces of an artifact, or over eager code."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import precast
from precast.aot.graphs import capture_graphs, graph_manager
from precast.capture.candidates import candidates
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.pieces import GraphHolder
from precast.errors import NoGpuError, UsageError
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.serving import DecoderState

__all__ = ["EagerModel", "artifact_runner", "eager_runner"]


class EagerModel:
    """A module that is one whole, and no pieces: it runs without graphs, or as FULL graphs."""

    def __init__(self, module: DecoderModel) -> None:
        self.pieces: Sequence[GraphHolder] = ()
        self.forward: Callable[..., Any] = module
        self.pieces_only: Callable[..., Any] = module


class _NoBackend:
    """Stands where a manager that captures nothing has its backend."""

    def __getattr__(self, name: str) -> Any:
        raise NoGpuError("CUDA graphs need a GPU", f"`{name}` of a backend is asked for", "run with --mode NONE")


def artifact_runner(
    source: str,
    module: DecoderModel,
    state: DecoderState,
    limits: BatchLimits,
    *,
    mode: CUDAGraphMode | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> GraphManager:
    """Load an artifact and capture its graphs.

    Args:
        source: A key, a tag, or a mega file.
        module: The module whose weights it uses.
        state: Buffers that the graphs read.
        limits: Limits of a batch.
        mode: Which graphs; by default all on a GPU, and none on a CPU.
        cache_dir: The cache root.

    Raises:
        NoGpuError: Graphs are asked for on a CPU.
        UsageError: A step may hold more tokens than the artifact was compiled for.
        PrecastError: What `precast.load` and the capture raise.
    """
    loaded = precast.load(source, module, cache_dir=cache_dir)
    if loaded.bound is None:
        raise UsageError("This artifact has no pieces", "it is a bare forward", "load it from a key or a mega file")
    most = max(high for _, high in loaded.bound.pieces.ranges)
    if limits.max_num_batched_tokens > most:
        why = f"the artifact was compiled for {most}"
        hint = f"add --max-num-batched-tokens {most}, or precompile for more"
        raise UsageError(f"A step cannot have {limits.max_num_batched_tokens} tokens", why, hint)
    if mode is None:
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if _on_gpu(state) else CUDAGraphMode.NONE
    if mode is not CUDAGraphMode.NONE:
        return capture_graphs(loaded, state, limits, mode=mode)
    return graph_manager(loaded.bound, state, candidates(mode, (), limits), _no_backend())


def eager_runner(
    module: DecoderModel, state: DecoderState, limits: BatchLimits, *, mode: CUDAGraphMode | None = None
) -> GraphManager:
    """Run the module's own code, without graphs.

    Raises:
        UsageError: Graphs are asked for.
    """
    if mode not in (None, CUDAGraphMode.NONE):
        why = "graphs are captured over the pieces of an artifact"
        raise UsageError("Eager code is served without graphs", why, "add --artifact KEY, or take --mode NONE")
    found = candidates(CUDAGraphMode.NONE, (), limits)
    return GraphManager(EagerModel(module), state, found, _no_backend())


def _no_backend() -> Any:
    return _NoBackend()


def _on_gpu(state: DecoderState) -> bool:
    return bool(state.input_ids_T.is_cuda)
