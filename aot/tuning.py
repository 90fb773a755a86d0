"""Entries that ship several configs of a kernel (`--tune keep`): the node times them once, and its entry remembers.

With one config a kernel, the default, nothing of this runs and no first call times anything.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from precast.aot.payloads.inductor import keeps_configs
from precast.aot.sources import EntrySource, StoreSource
from precast.cache.manifest import Manifest
from precast.cache.tuned import keep_tuned, read_tuned

__all__ = ["earlier_choices", "ships_configs"]


def ships_configs(manifest: Manifest) -> bool:
    """Tell whether an entry's kernels may have several configs, so that a node chooses."""
    options = next((f.value for f in manifest.factors if f.label == "compiler/inductor_config"), None)
    kept = isinstance(options, dict) and keeps_configs(options)
    return kept and any(payload.kind == "inductor" for payload in manifest.payloads)


@contextmanager
def earlier_choices(source: EntrySource) -> Iterator[None]:
    """Let the payloads that are loaded while the block runs take what was chosen before, and remember what they choose.

    A mega file is nobody's to write: loaded from it, each process chooses for itself.

    Args:
        source: The opened entry.
    """
    if not ships_configs(source.manifest):
        yield
        return
    import torch

    from precast.aot.torch_seams.tuning import configs_chosen

    gpu, manifest = torch.cuda.get_device_name(), source.manifest
    store = source.store if isinstance(source, StoreSource) else None
    chosen = {} if store is None else read_tuned(store, manifest, gpu)

    def remember(kernel: str, config: str) -> None:
        if store is not None:
            keep_tuned(store, manifest, gpu, {kernel: config})

    with configs_chosen(chosen, remember):
        yield
