"""Stamps: what a payload needs of the node that loads it, and what the node offers. Compared before any byte is loaded.

torch's own checks are bare asserts, late, or absent (torch-aot.md section 9), and `python -O` strips them.
"""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from precast.aot.target import Target, detect_target, isa_runs_on
from precast.cache.manifest import Manifest
from precast.errors import IncompatibleError, NoGpuError, OptimizedModeError

__all__ = ["Mismatch", "mismatches", "payload_stamps", "refuse_optimized_mode", "require_compatible"]


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


def payload_stamps(kind: str, target: Target) -> dict[str, str]:
    """Return what a payload made here needs of a node; per kind only what it really depends on.

    An AOTInductor package does not depend on Python's version; an Inductor artifact is a pickle, and does.

    Args:
        kind: Payload kind.
        target: What the code was generated for.
    """
    stamps = {
        "torch": _version("torch"),
        "system": f"{platform.system().lower()} {platform.machine()}",
        "device": target.device,
        "arch": target.arch,
    }
    if kind == "inductor":
        stamps["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
        if target.device == "cuda":
            stamps["triton"] = _version("triton")
    return stamps


def mismatches(manifest: Manifest, environ: Mapping[str, str]) -> tuple[Mismatch, ...]:
    """Return every stamp of an entry that this node does not meet.

    Args:
        manifest: The entry.
        environ: Environment, for the visible GPU.
    """
    found: dict[str, Mismatch] = {}
    device = str(manifest.target.get("device", ""))
    here = _node_target(device, environ)
    for kind, wanted in manifest.stamps.items():
        offered = payload_stamps(kind, here)
        for field, value in wanted.items():
            node = offered.get(field, "absent")
            fits = isa_runs_on(value, node) if field == "arch" and device == "cpu" else value == node
            if not fits:
                found[field] = Mismatch(field, value, node)
    return tuple(found.values())


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
        raise IncompatibleError(
            f"entry {manifest.key[:12]} does not fit this node",
            "; ".join(f"{m.field}: entry {m.entry}, node {m.node}" for m in differing),
            "precompile on this stack, or load the entry on the stack that made it",
            entry=manifest.key,
        )


def _node_target(device: str, environ: Mapping[str, str]) -> Target:
    try:
        return detect_target(device, environ)
    except NoGpuError:
        return Target("no gpu", "none")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
