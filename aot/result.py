"""What a precompile did or would do, as one value that a command line can show."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.factors import Factor, group_digests
from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.repair import Mended
from precast.splitter.plan import SplitPlan

if TYPE_CHECKING:
    from precast.splitter.split import Split

__all__ = ["PrecompileResult", "from_entry", "from_plan"]


@dataclass(frozen=True, slots=True)
class PrecompileResult:
    """What a precompile did, or would do.

    Attributes:
        status: `compiled`, `up_to_date`, `repaired`, or `pulled` from the remote; for a dry run also `planned` when it
            would compile and `pullable` when it would pull.
        key: The entry's key.
        model: The model's name.
        factors_digests: Digest of each factor group.
        pieces: Compiled pieces of the graph.
        unique: Unique ones among them.
        ranges: Compile ranges.
        splitting_ops: Calls of each splitting op.
        payloads: One a unique piece and range.
        mega_bytes: Size of the mega artifact.
        stored_bytes: Size of the objects as stored.
        seconds: Wall time of this call.
        saved_seconds: Wall time of the build that an up-to-date entry saves.
        root: The cache root.
        next_command: What to run next, or empty.
        remote: The remote in use, without anything secret, or empty.
        pulled_bytes: What was read from it for this entry.
        pushed_bytes: What was written to it.
        signed_by: What people call the keys that signed the entry.
        repaired: The damaged members that were mended, with nothing compiled.
    """

    status: str
    key: str
    model: str
    factors_digests: Mapping[str, str]
    pieces: int
    unique: int
    ranges: tuple[tuple[int, int], ...]
    splitting_ops: Mapping[str, int]
    payloads: tuple[PayloadRecord, ...]
    mega_bytes: int
    stored_bytes: int
    seconds: float
    saved_seconds: float
    root: Path
    next_command: str
    remote: str = ""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    signed_by: tuple[str, ...] = ()
    repaired: tuple[Mended, ...] = ()


def from_entry(status: str, manifest: Manifest, root: Path) -> PrecompileResult:
    """Describe an entry that is there: `compiled`, `repaired` or `pulled` now, `up_to_date`, or `pullable`."""
    plan = SplitPlan.from_json(manifest.plan)
    return PrecompileResult(
        status=status,
        key=manifest.key,
        model=manifest.model.name,
        factors_digests=group_digests(manifest.factors),
        pieces=len(plan.pieces),
        unique=len(plan.unique_keys),
        ranges=tuple(dict.fromkeys(p.range for p in manifest.payloads)),
        splitting_ops=plan.op_counts(),
        payloads=manifest.payloads,
        mega_bytes=manifest.mega.bytes if manifest.mega else 0,
        stored_bytes=sum({p.object: p.stored_bytes for p in manifest.payloads}.values()),
        seconds=0.0,
        saved_seconds=0.0 if status == "compiled" else manifest.build.seconds,
        root=root,
        next_command=f"precast verify {manifest.key[:12]}",
    )


def from_plan(
    key: str, name: str, factors: tuple[Factor, ...], split: "Split", ranges: tuple[tuple[int, int], ...], root: Path
) -> PrecompileResult:
    """Describe what a compile would make."""
    return PrecompileResult(
        status="planned",
        key=key,
        model=name,
        factors_digests=group_digests(factors),
        pieces=len(split.plan.pieces),
        unique=len(split.pieces),
        ranges=ranges,
        splitting_ops=split.plan.op_counts(),
        payloads=(),
        mega_bytes=0,
        stored_bytes=0,
        seconds=0.0,
        saved_seconds=0.0,
        root=root,
        next_command="precast precompile with the same arguments",
    )
