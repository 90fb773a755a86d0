"""Publish a compile: objects first, then the entry with its manifest and mega artifact, all or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precast.aot.compile import Compiled
from precast.cache.canonical import canonical_json
from precast.cache.manifest import Manifest, PayloadRecord, SourcesRecord
from precast.cache.masking import mask_source
from precast.cache.mega import write_mega
from precast.cache.store import Store
from precast.splitter.plan import SplitPlan

__all__ = ["publish"]


def publish(
    store: Store, draft: Manifest, compiled: Sequence[Compiled], plan: SplitPlan, sources: Mapping[str, str]
) -> Manifest:
    """Store payloads as objects and publish the entry.

    Args:
        store: Where to.
        draft: The manifest without payloads.
        compiled: The payloads.
        plan: The split plan, for how often a piece is used.
        sources: Text of the model's own modules, by name; what is assigned to names of secrets is masked.

    Returns:
        The manifest as the store has it.

    Raises:
        StoreAccessError: The store cannot be written; nothing of the entry is visible.
    """
    records = []
    raw = {}
    for made in compiled:
        stored = store.put_object(made.data)
        raw[stored.sha256] = made.data
        records.append(
            PayloadRecord(
                name=f"{made.key}:{made.range[0]}-{made.range[1]}",
                kind=next(iter(draft.stamps)),
                object=stored.sha256,
                bytes=stored.bytes,
                stored_bytes=stored.stored_bytes,
                seconds=made.seconds,
                range=made.range,
                used_by=plan.uses(made.key),
            )
        )
    text = canonical_json({name: "\n".join(mask_source(source)) for name, source in sources.items()})
    stored = store.put_object(text)
    raw[stored.sha256] = text
    record = SourcesRecord(stored.sha256, stored.bytes, stored.stored_bytes)
    manifest = replace(draft, payloads=tuple(records), sources=record)
    store.publish(manifest, write_mega(manifest, raw, {}))
    return store.manifest(draft.key)
