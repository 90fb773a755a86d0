"""precast: compile PyTorch decoder models ahead of time, and let every serving process load the result.

The names below are imported on first use, so that `import precast` costs nothing and never imports torch.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.aot.decorator import compiled_model, ignore_torch_compile, support_torch_compile
    from precast.aot.graphs import capture_graphs
    from precast.aot.load import load
    from precast.aot.precompile import precompile
    from precast.aot.settings import Settings
    from precast.aot.spec import ModelSpec, TensorInput
    from precast.aot.verify import verify
    from precast.cache.options import RemoteOptions, StoreOptions
    from precast.capture.agreement import Agreement
    from precast.capture.breakable import eager_break_during_capture
    from precast.capture.limits import BatchLimits
    from precast.capture.segmented import BreakableModel
    from precast.capture.support import AttentionGraphSupport

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "AttentionGraphSupport",
    "BatchLimits",
    "BreakableModel",
    "ModelSpec",
    "RemoteOptions",
    "Settings",
    "StoreOptions",
    "TensorInput",
    "__version__",
    "capture_graphs",
    "compiled_model",
    "eager_break_during_capture",
    "ignore_torch_compile",
    "load",
    "precompile",
    "support_torch_compile",
    "verify",
]

_HOMES = {
    "Agreement": "precast.capture.agreement",
    "AttentionGraphSupport": "precast.capture.support",
    "BatchLimits": "precast.capture.limits",
    "BreakableModel": "precast.capture.segmented",
    "ModelSpec": "precast.aot.spec",
    "RemoteOptions": "precast.cache.options",
    "Settings": "precast.aot.settings",
    "StoreOptions": "precast.cache.options",
    "TensorInput": "precast.aot.spec",
    "capture_graphs": "precast.aot.graphs",
    "compiled_model": "precast.aot.decorator",
    "eager_break_during_capture": "precast.capture.breakable",
    "ignore_torch_compile": "precast.aot.decorator",
    "load": "precast.aot.load",
    "precompile": "precast.aot.precompile",
    "support_torch_compile": "precast.aot.decorator",
    "verify": "precast.aot.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'precast' has no attribute {name!r}")
    # A full collection amid the import would walk all that torch made, and take longer than the import.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(home), name)
    finally:
        if was_enabled:
            gc.enable()
