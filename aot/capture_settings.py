"""What settings say about captures: the limits of a batch, and the capture sizes that follow from them."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from precast.aot.target import device_of, named_target
from precast.capture.limits import BatchLimits, DraftTier, LoraLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.sizes import CaptureSizes, capture_sizes, default_top

if TYPE_CHECKING:
    from precast.aot.settings import Settings

__all__ = ["batch_limits", "check_capture", "planned_sizes"]

_ARCH = re.compile(r"sm_(\d+)(\d)")


def batch_limits(settings: "Settings") -> BatchLimits:
    """Return what a serving process with these settings will ever put into one step.

    Raises:
        ConfigValueError: The draft schedule is one that no batch can follow.
    """
    return BatchLimits(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        drafts=settings.drafts,
        draft_schedule=tuple(DraftTier(reqs, drafts) for reqs, drafts in settings.draft_schedule),
        adaptive_verification=settings.adaptive_verification,
        lora=LoraLimits(settings.max_loras, settings.specialize_lora, settings.specialize_active_lora),
        num_ubatches=settings.num_ubatches,
        ubatch_decode_tokens=settings.ubatch_decode_tokens,
    )


def planned_sizes(settings: "Settings", environ: Mapping[str, str] | None = None) -> CaptureSizes:
    """Return the capture sizes for the mode, limits and target of resolved settings.

    Args:
        settings: The settings.
        environ: Environment, which decides the GPU that target `cuda` means; this process's by default.

    Raises:
        ConfigValueError: Sizes are wrong.
        NoGpuError: The rule has to know the GPU, the target is `cuda`, and there is none.
    """
    return capture_sizes(
        batch_limits(settings),
        CUDAGraphMode[settings.cudagraph_mode],
        largest=settings.max_cudagraph_capture_size,
        sizes=settings.cudagraph_capture_sizes,
        interactivity=settings.interactivity,
        default_top=default_top(_capability(settings, os.environ if environ is None else environ)),
    )


def check_capture(settings: "Settings") -> None:
    """Refuse limits and sizes that contradict each other, whatever is captured in the end.

    Raises:
        ConfigValueError: The draft schedule cannot be followed, or the largest size is not that of the list.
    """
    largest, sizes = settings.max_cudagraph_capture_size, settings.cudagraph_capture_sizes
    capture_sizes(batch_limits(settings), CUDAGraphMode.FULL_AND_PIECEWISE, largest=largest, sizes=sizes)


def _capability(settings: "Settings", environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the compute capability of the target, where the sizes are left to a rule that asks for it."""
    left_to_rule = settings.cudagraph_capture_sizes is None and settings.max_cudagraph_capture_size is None
    if not left_to_rule or settings.cudagraph_mode == "NONE" or device_of(settings.target) != "cuda":
        return None
    arch = _ARCH.match(named_target(settings.target, environ).arch)
    return (int(arch[1]), int(arch[2])) if arch else None
