"""What coverage is asked about: limits, graph mode and capture sizes, from settings and from what a model's spec says.

Coverage is about the GPU that will serve, so a machine without one is taken for one that has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from precast.aot.capture_settings import batch_limits, planned_sizes
from precast.aot.graph_facts import graph_facts
from precast.aot.settings import Settings, settle_graph_mode
from precast.aot.spec import ModelSpec
from precast.aot.target_list import one_of_several, settings_by_target
from precast.cache.records import LoweringRecord
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.sizes import CaptureSizes, capture_sizes, default_top
from precast.errors import NoGpuError

__all__ = ["CoverageRequest", "coverage_request", "coverage_settings"]

_CODE_ONLY = "compile_sizes"  # may stand for the capture sizes, for which the GPU would have to be known


@dataclass(frozen=True, slots=True)
class CoverageRequest:
    """What coverage is asked about.

    Attributes:
        limits: Limits of a batch.
        asked: Graph mode before any rule.
        mode: Graph mode as rules left it.
        lowered: What each rule did to the mode, in order.
        sizes: Capture sizes, and what rules left out of them.
        target: The target that was named; `cuda` where none was.
        gpu_known: Whether the sizes are those of any GPU that may be meant. Where they are not, they are those of all
            but data-center Blackwell, whose default maximum is higher.
    """

    limits: BatchLimits
    asked: CUDAGraphMode
    mode: CUDAGraphMode
    lowered: tuple[LoweringRecord, ...]
    sizes: CaptureSizes
    target: str
    gpu_known: bool


def coverage_settings(flags: Mapping[str, object], environ: Mapping[str, str], file: Mapping[str, object]) -> Settings:
    """Resolve settings for a command that compiles nothing and needs no GPU.

    A target that nobody named is this machine's GPU, and a GPU that is not known where it has none.

    Args:
        flags: Values given on the command line, by field name.
        environ: Environment.
        file: Values of a configuration file, by field name.

    Raises:
        ConfigKeyError: A name that is no setting.
        ConfigValueError: A value of the wrong type or out of range.
    """
    variable = f"PRECAST_{_CODE_ONLY.upper()}"
    flags, file = ({n: v for n, v in given.items() if n != _CODE_ONLY} for given in (flags, file))
    environ = {n: v for n, v in environ.items() if n != variable}
    found = settings_by_target(flags, environ, file, detect_target=lambda: "cuda")
    return one_of_several(found, environ)


def coverage_request(settings: Settings, environ: Mapping[str, str], spec: ModelSpec | None = None) -> CoverageRequest:
    """Say what coverage is about.

    Args:
        settings: What `coverage_settings` returned.
        environ: Environment; it decides which GPU is this machine's.
        spec: The model's spec, whose kind, splitting ops and graph support may lower the mode; None for no model.
            The model is neither built nor traced: it counts as one with compiled pieces.

    Raises:
        ConfigValueError: Sizes are wrong; or FULL was asked for, and attention can be captured for nothing.
    """
    if spec is not None:
        settings = settle_graph_mode(settings, graph_facts(spec, None, settings.splitting_ops))
    record = next(r for r in settings.record if r.name == "cudagraph_mode")
    asked = record.value if record.lowered_from is None else record.lowered_from
    sizes, known = _sizes(settings, environ)
    return CoverageRequest(
        batch_limits(settings),
        CUDAGraphMode[str(asked)],
        CUDAGraphMode[settings.cudagraph_mode],
        record.lowerings,
        sizes,
        settings.target,
        known,
    )


def _sizes(settings: Settings, environ: Mapping[str, str]) -> tuple[CaptureSizes, bool]:
    """Return the capture sizes, and whether they are those of every GPU that may be meant."""
    try:
        return planned_sizes(settings, environ), True
    except NoGpuError:  # only where the user gave neither sizes nor their maximum
        limits, mode = batch_limits(settings), CUDAGraphMode[settings.cudagraph_mode]
        plain, blackwell = (
            capture_sizes(limits, mode, interactivity=settings.interactivity, default_top=default_top(capability))
            for capability in (None, (10, 0))
        )
        return plain, plain == blackwell
