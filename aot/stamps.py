"""Stamps: what a payload needs of the node that loads it, and what the node offers. Compared before any byte is loaded.

torch's own checks are bare asserts, late, or absent (torch-aot.md section 9), and `python -O` strips them.

Each kind of payload is stamped with what it depends on and nothing more. An `aoti` package is machine code around
torch's C++ library: it does not depend on Python, it does on the C and C++ libraries that it was linked against. An
`inductor` artifact is a pickle of Python text: it depends on Python's minor version and, on a GPU, on Triton; on a CPU
it is compiled where it is loaded, so it depends on a compiler and not on libraries.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from precast.aot.libraries import FIELDS, MARKERS, highest, reaches
from precast.aot.node import GPU_FACT, Facts, node_facts, python_minor, system, version
from precast.aot.target import Target, host_isa, isa_runs_on, torch_cuda
from precast.cache.canonical import Json
from precast.cache.lookup import MissReason
from precast.cache.manifest import Manifest
from precast.errors import IncompatibleError, OptimizedModeError

__all__ = [
    "Mismatch",
    "incompatible",
    "mismatches",
    "outgrown",
    "payload_stamps",
    "refuse_optimized_mode",
    "require_compatible",
    "stamp_misses",
]

UNKNOWN = "unknown to this precast"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One stamp that does not fit.

    Attributes:
        field: Name of the stamp.
        entry: The entry's value.
        node: This node's value.
    """

    field: str
    entry: str
    node: str

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"field": self.field, "entry": self.entry, "node": self.node}


def payload_stamps(kind: str, target: Target, needs: Iterable[Mapping[str, str]] = ()) -> dict[str, str]:
    """Return what payloads made here need of a node; per kind only what it really depends on.

    Args:
        kind: Payload kind.
        target: What the code was generated for.
        needs: What the bytes of each payload say (`PayloadKind.needs`); of two versions the higher one counts.
    """
    stamps = {"torch": version("torch"), "system": system(), "device": target.device, "arch": target.arch}
    if target.device == "cuda":
        stamps["driver"] = _driver_needed(target)
        if target.description is not None:
            stamps |= {f"{GPU_FACT}{fact}": str(value) for fact, value in target.description.code_facts().items()}
    if kind == "triton":
        stamps["triton"] = version("triton")  # its text for argument types is the name that a kernel is found by
    elif kind == "inductor":
        stamps["python"] = python_minor()
        stamps |= {"triton": version("triton")} if target.device == "cuda" else {"compiler": "c++"}
    elif target.device == "cuda":
        stamps["isa"] = host_isa(target)
    for found in needs:
        for field, value in found.items():
            stamps[field] = _both(field, stamps.get(field), value)
    return stamps


def mismatches(manifest: Manifest, environ: Mapping[str, str], facts: Facts | None = None) -> tuple[Mismatch, ...]:
    """Return every stamp of an entry that this node does not meet.

    Args:
        manifest: The entry.
        environ: Environment, for the visible GPU and the compiler.
        facts: What the node offers; by default it is asked, and only for what the entry has stamps of.
    """
    device = str(manifest.target.get("device", ""))
    facts = node_facts(device, environ) if facts is None else facts
    found: dict[str, Mismatch] = {}
    for kind, wanted in manifest.stamps.items():
        for field, value in wanted.items():
            node = facts[field]() if field in facts else UNKNOWN
            if not _fits(kind, device, field)(value, node):
                found[field] = Mismatch(field, value, node)
    return tuple(found.values())


def outgrown(manifest: Manifest, environ: Mapping[str, str], facts: Facts | None = None) -> tuple[Mismatch, ...]:
    """Return the misfits of an entry that a build on this node would not have, although its key would be the same.

    These are the system's libraries alone: everything else that is stamped is in the key or follows from it, and a
    machine that compiles for another one need not have its GPU or driver.
    """
    return tuple(m for m in mismatches(manifest, environ, facts) if m.field in (*FIELDS, MARKERS))


def stamp_misses(manifest: Manifest) -> tuple[MissReason, ...]:
    """Return why a lookup that may build must pass an entry over on this node: what `outgrown` finds."""
    return tuple(
        MissReason("target_mismatch", manifest.key, m.field, m.entry, m.node) for m in outgrown(manifest, os.environ)
    )


def refuse_optimized_mode() -> None:
    """Refuse to go on under `python -O`.

    Raises:
        OptimizedModeError: Python runs with -O.
    """
    if sys.flags.optimize:
        raise OptimizedModeError(
            "precast does not run under `python -O`",
            "it strips the checks in torch's compiler and loaders",
            "run without -O, and unset PYTHONOPTIMIZE",
        )


def require_compatible(manifest: Manifest, environ: Mapping[str, str]) -> None:
    """Refuse an entry that does not fit this node, with all differing fields at once.

    Raises:
        OptimizedModeError: Python runs with -O.
        IncompatibleError: A stamp does not fit.
    """
    refuse_optimized_mode()
    differing = mismatches(manifest, environ)
    if differing:
        raise incompatible(manifest, differing)


def incompatible(manifest: Manifest, differing: Iterable[Mismatch]) -> IncompatibleError:
    """Return the error that names every differing field with both values."""
    differing = tuple(differing)
    return IncompatibleError(
        f"entry {manifest.key[:12]} does not fit this node",
        "; ".join(f"{m.field}: entry {m.entry}, node {m.node}" for m in differing),
        "precompile on this stack, or load the entry on the stack that made it",
        entry=manifest.key,
        details={"differing": [m.json() for m in differing]},
    )


def _fits(kind: str, device: str, field: str) -> Callable[[str, str], bool]:
    """Return the rule of a field: at least, all of, a level that runs on another, or equal."""
    if field in (*FIELDS, "driver"):
        return reaches
    if field == MARKERS:
        return lambda needed, offered: set(needed.split()) <= set(offered.split())
    # An inductor artifact is text for one vector width, and its load compiles it for the width of the node.
    if field == "isa" or (field == "arch" and device == "cpu" and kind == "aoti"):
        return isa_runs_on
    return str.__eq__


def _both(field: str, one: str | None, other: str) -> str:
    if one is None:
        return other
    if field == MARKERS:
        return " ".join(sorted({*one.split(), *other.split()}))
    return highest(one, other)


def _driver_needed(target: Target) -> str:
    """Return the CUDA version that a driver must support at least.

    Machine code of any toolkit of a major release runs on every driver of that major release or a later one (NVIDIA,
    CUDA Compatibility, "Minor version compatibility"). Two toolkits count: the one torch is built with, and the one
    that Triton's assembler comes from, which may be of another major release.
    """
    from precast.aot.torch_seams.triton import assembler_version

    made_with = [v for v in (torch_cuda(), assembler_version(target.arch)) if v]
    return f"{max((int(v.partition('.')[0]) for v in made_with), default=0)}.0"
