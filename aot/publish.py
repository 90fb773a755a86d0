"""Publish a compile: objects first, then the entry with its manifest and mega artifact, all or nothing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from precast.aot.compile import Compiled
from precast.aot.kernels import KIND
from precast.aot.stamps import outgrown
from precast.cache.canonical import canonical_json
from precast.cache.manifest import Manifest, PayloadRecord, SourcesRecord
from precast.cache.masking import mask_source
from precast.cache.mega import write_mega
from precast.cache.store import Store
from precast.errors import CorruptError, NoEntryError
from precast.splitter.plan import SplitPlan

__all__ = ["publish"]


def publish(
    store: Store,
    draft: Manifest,
    compiled: Sequence[Compiled],
    plan: SplitPlan,
    sources: Mapping[str, str],
    kernels: Compiled | None = None,
) -> Manifest:
    """Store payloads as objects and publish the entry.

    Args:
        store: Where to.
        draft: The manifest without payloads.
        compiled: The payloads.
        plan: The split plan, for how often a piece is used.
        sources: Text of the model's own modules, by name; what is assigned to names of secrets is masked.
        kernels: The Triton kernels that splitting ops launch themselves, as one payload.

    Returns:
        The manifest as the store has it.

    Raises:
        StoreAccessError: The store cannot be written; nothing of the entry is visible.
    """
    records = []
    raw = {}
    for made in (*compiled, *([kernels] if kernels else [])):
        stored = store.put_object(made.data)
        raw[stored.sha256] = made.data
        records.append(
            PayloadRecord(
                name=f"{made.key}:{made.range[0]}-{made.range[1]}",
                kind=KIND if made is kernels else next(iter(draft.stamps)),
                object=stored.sha256,
                bytes=stored.bytes,
                stored_bytes=stored.stored_bytes,
                seconds=made.seconds,
                range=made.range,
                used_by=sum(plan.op_counts().values()) if made is kernels else plan.uses(made.key),
            )
        )
    text = canonical_json({name: "\n".join(mask_source(source)) for name, source in sources.items()})
    stored = store.put_object(text)
    raw[stored.sha256] = text
    record = SourcesRecord(stored.sha256, stored.bytes, stored.stored_bytes)
    manifest = replace(draft, payloads=tuple(records), sources=record)
    mega = write_mega(manifest, raw, {})
    _make_way(store, draft.key)
    store.publish(manifest, mega)
    return store.manifest(draft.key)


def _make_way(store: Store, key: str) -> None:
    """Put an entry aside that needs newer libraries of the system than this node has.

    The system's libraries are not in the key, else an entry could never move to a newer system. What was made here
    needs no more than this node has, so it runs there too, and takes the place of the entry that does not run here.
    """
    try:
        differing = outgrown(store.manifest(key), os.environ)
    except (NoEntryError, CorruptError):
        return  # the store knows what to do with those
    if differing:
        store.quarantine(key, "; ".join(f"it needs {m.field} {m.entry}, a node has {m.node}" for m in differing))
