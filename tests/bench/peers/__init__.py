"""What a user can take to have a model compiled, one module each; every one runs in processes of its own."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.peers.base import Peer

__all__ = ["PEERS", "Entry", "entry", "make_peer"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A peer in the list; its module is imported in child processes alone, since it imports torch.

    Attributes:
        name: What it is called on the command line.
        title: What it is called in tables.
        place: Its class, `module:class`.
        wave: Peers of wave 1 are measured first, those of waves 3 and 4 after all other parts.
        slow: Few repeats must do: it starts slowly, or matters less.
        after: Peer from whose process its artifact comes; it has no compile of its own then.
        keeps_caches: Starts with the compile caches of the process that compiled; else they are empty, but for the
            kernels of the attention op, so that no other peer pays for those either.
        devices: Where it exists.
    """

    name: str
    title: str
    place: str
    wave: int
    slow: bool = False
    after: str | None = None
    keeps_caches: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")


_HERE = "tests.bench.peers"

PEERS = (
    Entry("eager", "eager", f"{_HERE}.eager:Eager", 1, keeps_caches=True),
    Entry("precast-aoti", "precast, aoti", f"{_HERE}.precast_entry:Aoti", 1),
    Entry("compile", "torch.compile", f"{_HERE}.compiled:Compiled", 1, slow=True, keeps_caches=True),
    Entry("precast-inductor", "precast, inductor", f"{_HERE}.precast_entry:Inductor", 2, slow=True),
    Entry("cache-artifacts", "save_cache_artifacts", f"{_HERE}.cache_artifacts:CacheArtifacts", 2, True, "compile"),
    Entry("precast-one-row", "precast, aoti, --compile-sizes 1", f"{_HERE}.precast_entry:OneRow", 2, slow=True),
    Entry("aot-compile", "aot_compile", f"{_HERE}.aot_compiled:AotCompiled", 3, slow=True),
    Entry(
        "reduce-overhead",
        "torch.compile, reduce-overhead",
        f"{_HERE}.reduce_overhead:ReduceOverhead",
        3,
        slow=True,
        keeps_caches=True,
        devices=("cuda",),
    ),
    Entry("aoti-package", "AOTInductor, whole model", f"{_HERE}.packaged:Packaged", 4, slow=True),
    Entry(
        "aoti-c-loader", "the same, torch's private loader", f"{_HERE}.packaged:LeanPackaged", 4, True, "aoti-package"
    ),
)


def entry(name: str) -> Entry:
    """Return a peer's entry by its name.

    Raises:
        KeyError: There is none.
    """
    return {peer.name: peer for peer in PEERS}[name]


def make_peer(name: str) -> "Peer":
    """Import a peer."""
    module, _, kind = entry(name).place.partition(":")
    peer: Peer = getattr(import_module(module), kind)()
    return peer
