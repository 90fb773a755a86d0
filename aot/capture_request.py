"""What level `capture` is to do, from settings, entry and model; or what stands in its way."""

import os
from dataclasses import dataclass

from precast.aot.capture_settings import batch_limits
from precast.aot.graph_facts import graph_facts
from precast.aot.loaded import LoadedEntry
from precast.aot.settings import Settings, settle_graph_mode, settle_settings
from precast.aot.spec import Json
from precast.aot.target import detect_device
from precast.cache.manifest import Manifest
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.errors import NoGpuError, PrecastError, UsageError

__all__ = ["CaptureRequest", "Obstacle", "capture_request", "require_gpu"]

_MODE = "cudagraph_mode"
_CANNOT = "graphs cannot be captured"
_BUILD_FOR_GPU = "precompile the model for a GPU: `--target cuda`, or a GPU's name"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What the level is to do.

    Attributes:
        limits: What a step may hold.
        mode: Which graphs to capture; lowered already.
        sizes: Capture sizes that the user gave.
        largest: Largest size that the user gave.
        interactivity: Capture every size from 1 to 32.
        lowered: Each rule that lowered the mode: from what, to what, and why.
        bench: Time decode steps too.
        batches: How many random batches go through dispatch.
        seed: Of the batches and of what they hold.
    """

    limits: BatchLimits
    mode: CUDAGraphMode
    sizes: tuple[int, ...] | None = None
    largest: int | None = None
    interactivity: bool = False
    lowered: tuple[dict[str, Json], ...] = ()
    bench: bool = False
    batches: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why nothing is captured.

    Attributes:
        why: One line.
        problem: What to tell where the level was asked for by name; None where nothing was to be captured anyway.
    """

    why: str
    problem: PrecastError | None


def require_gpu(manifest: Manifest, settings: Settings | None) -> None:
    """Refuse to capture where that cannot work, before anything else is done.

    Raises:
        NoGpuError: Graphs are asked for, and the entry was compiled for the CPU, or no GPU is usable.
    """
    obstacle = _no_gpu(manifest, settle_settings(settings, os.environ))
    if obstacle is not None and obstacle.problem is not None:
        raise obstacle.problem


def capture_request(entry: LoadedEntry, settings: Settings | None, *, bench: bool) -> CaptureRequest | Obstacle:
    """Say what the level is to do with a loaded entry, whose model is at hand.

    Args:
        entry: The loaded entry.
        settings: Settings of the verify; None for those of the environment.
        bench: Whether decode steps are timed too.
    """
    settings = settle_settings(settings, os.environ)
    obstacle = _no_gpu(entry.subject.manifest, settings)
    if obstacle is not None:
        return obstacle
    spec = entry.model().spec
    if spec.graph_state is None:
        why = "the model's spec has no `graph_state`: nothing says how to allocate the buffers that graphs read"
        return Obstacle(why, UsageError(_CANNOT, why, "give the ModelSpec a `graph_state`"))
    try:
        settled = settle_graph_mode(settings, graph_facts(spec, entry.pieces.plan, _cut_at(entry.subject.manifest)))
    except PrecastError as error:
        return Obstacle(str(error), error)
    lowered = next(r for r in settled.record if r.name == _MODE).lowerings
    if settled.cudagraph_mode == CUDAGraphMode.NONE.name:
        why = "; ".join(f"mode {r.before} became {r.after}: {r.reason}" for r in lowered)
        return Obstacle(why, UsageError(_CANNOT, why, "choose another mode with --cudagraph-mode"))
    return CaptureRequest(
        batch_limits(settled),
        CUDAGraphMode[settled.cudagraph_mode],
        sizes=settled.cudagraph_capture_sizes,
        largest=settled.max_cudagraph_capture_size,
        interactivity=settled.interactivity,
        lowered=tuple(r.json() for r in lowered),
        bench=bench,
    )


def _cut_at(manifest: Manifest) -> tuple[str, ...] | None:
    """Return the ops at which an entry was asked to be cut; None for those of its spec."""
    value = next((r.value for r in manifest.settings if r.name == "splitting_ops"), None)
    return tuple(map(str, value)) if isinstance(value, list) else None


def _no_gpu(manifest: Manifest, settings: Settings) -> Obstacle | None:
    """Return why this node cannot capture an entry, if it cannot."""
    if _asked_mode(settings) is CUDAGraphMode.NONE:
        return Obstacle("mode NONE captures no graphs", None)
    device, key = manifest.target["device"], manifest.key[:12]
    if device != "cuda":
        why = f"entry {key} is compiled for the {device}, which has no CUDA graphs"
        return Obstacle(why, NoGpuError(_CANNOT, why, _BUILD_FOR_GPU))
    if detect_device(os.environ) != "cuda":
        why = f"entry {key} is compiled for a GPU and none is usable here"
        hint = "run it on a node with the GPU; `--level env` says what the entry needs"
        return Obstacle(why, NoGpuError(_CANNOT, why, hint))
    return None


def _asked_mode(settings: Settings) -> CUDAGraphMode:
    """Return the mode before any rule lowered it: on a CPU every mode is lowered to NONE."""
    record = next(r for r in settings.record if r.name == _MODE)
    return CUDAGraphMode[str(record.value if record.lowered_from is None else record.lowered_from)]
