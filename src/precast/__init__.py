"""precast: compile PyTorch decoder models ahead of time, and let every serving process load the result.

The names below are imported on first use, so that `import precast` costs nothing and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.aot.load import load
    from precast.aot.precompile import precompile
    from precast.aot.settings import Settings
    from precast.aot.spec import ModelSpec, TensorInput
    from precast.aot.verify import verify
    from precast.cache.options import RemoteOptions, StoreOptions

__version__ = "0.1.0"

__all__ = [
    "ModelSpec",
    "RemoteOptions",
    "Settings",
    "StoreOptions",
    "TensorInput",
    "__version__",
    "load",
    "precompile",
    "verify",
]

_HOMES = {
    "ModelSpec": "precast.aot.spec",
    "RemoteOptions": "precast.cache.options",
    "Settings": "precast.aot.settings",
    "StoreOptions": "precast.cache.options",
    "TensorInput": "precast.aot.spec",
    "load": "precast.aot.load",
    "precompile": "precast.aot.precompile",
    "verify": "precast.aot.verify",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'precast' has no attribute {name!r}")
    return getattr(import_module(home), name)
