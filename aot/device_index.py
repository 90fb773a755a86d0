"""Which of several GPUs a loaded model runs on: the one where the module lies.

An `aoti` package takes the device that is current while it is loaded (`AOTInductorModelBase` asks `cudaGetDevice`), and
stays there. The text of an `inductor` artifact names index 0, so it is refused anywhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from precast.cache.manifest import Manifest
from precast.errors import IncompatibleError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["loading_on", "module_index"]


def module_index(module: "nn.Module") -> int | None:
    """Return the index of the device where a module lies; None on the CPU, or for a module without tensors.

    Whether all of its tensors lie there is looked at when they are bound.
    """
    devices = (tensor.device for tensor in (*module.parameters(), *module.buffers()))
    return next((device.index for device in devices if device.index is not None), None)


@contextmanager
def loading_on(manifest: Manifest, index: int | None) -> Iterator[int | None]:
    """Load an entry's payloads for a device while the block runs.

    Args:
        manifest: The entry.
        index: Index of the device; None for the current one.

    Yields:
        The index; None where the entry is for the CPU.

    Raises:
        IncompatibleError: A payload of the entry runs on index 0 alone, and this is another one.
    """
    if manifest.target.get("device") != "cuda":
        yield None
        return
    import torch

    index = torch.cuda.current_device() if index is None else index
    if index != 0 and any(payload.kind == "inductor" for payload in manifest.payloads):
        raise IncompatibleError(
            f"entry {manifest.key[:12]} runs on cuda:0, not on cuda:{index}",
            "the text of an inductor payload names the device by index",
            f"start with CUDA_VISIBLE_DEVICES={index}, so that this GPU is cuda:0, or precompile with --payload aoti",
            entry=manifest.key,
        )
    with torch.cuda.device(index):
        yield index
