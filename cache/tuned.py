"""What nodes chose where an entry leaves a choice: `tuned.json` beside its manifest, by GPU and by kernel.

It is no part of the entry: no digest or signature covers it, and it goes with the entry. It names things that the entry
holds, and what it names otherwise counts as not chosen; so the worst that a wrong one can do is a slower choice.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precast.cache.atomic import write_atomic
from precast.cache.canonical import canonical_json, decode_json, digest
from precast.cache.manifest import Manifest
from precast.cache.store import Store
from precast.errors import PrecastError

__all__ = ["keep_tuned", "read_tuned"]

_NAME, _SCHEMA = "tuned.json", "precast.tuned/1"
_MAX_BYTES = 2**20
_PATIENCE_S = 5.0  # a process that serves waits for it
_LOG = logging.getLogger("precast")


def read_tuned(store: Store, manifest: Manifest, gpu: str) -> dict[str, str]:
    """Return what was chosen for an entry on a kind of GPU; nothing where no such record is there, or it is damaged.

    Args:
        store: The store.
        manifest: The entry; a record of other content under its key does not count.
        gpu: What the driver calls the GPU: two GPUs that run the same code may choose otherwise.

    Returns:
        Choices by kernel, both as digests.
    """
    return dict(_all(store, manifest).get(gpu, {}))


def keep_tuned(store: Store, manifest: Manifest, gpu: str, chosen: Mapping[str, str]) -> bool:
    """Add choices to an entry's record, so that later processes take them over; what is there already stays.

    Returns:
        Whether anything was written. A store that cannot be written, or an entry that is gone, is no error: the
        choice holds for this process. The log tells it.
    """
    try:
        with store.lock(f"entry-{manifest.key}", _PATIENCE_S):
            if store.manifest(manifest.key).content_digest != manifest.content_digest:
                _LOG.info("choices for entry %s are not kept: it was replaced", manifest.key[:12])
                return False
            present = _all(store, manifest)
            mine = {**chosen, **present.get(gpu, {})}
            if mine == present.get(gpu):
                return False
            document: dict[str, Any] = {
                "schema": _SCHEMA,
                "content": manifest.content_digest,
                "chosen": {**present, gpu: mine},
            }
            data = canonical_json({**document, "digest": digest(document)})
            write_atomic(_file(store, manifest), data, staging=store.layout.staging)
    except PrecastError as error:
        _LOG.info("choices for entry %s are not kept: %s", manifest.key[:12], error)
        return False
    return True


def _file(store: Store, manifest: Manifest) -> Path:
    return store.layout.entry(manifest.key) / _NAME


def _all(store: Store, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Read the record of an entry, by GPU."""
    try:
        with _file(store, manifest).open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        _LOG.info("choices for entry %s cannot be read: %s", manifest.key[:12], error)
        return {}
    try:
        return _read(data, manifest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _LOG.info("choices for entry %s do not count: %s", manifest.key[:12], error)
        return {}


def _read(data: bytes, manifest: Manifest) -> dict[str, dict[str, str]]:
    document: Any = decode_json(data[:_MAX_BYTES])
    found = document.pop("digest")
    if document["schema"] != _SCHEMA or found != digest(document):
        raise ValueError("the record is damaged, or of a later version")
    if document["content"] != manifest.content_digest:
        raise ValueError("they are of another build under this key")
    return {str(gpu): {str(k): str(v) for k, v in chosen.items()} for gpu, chosen in document["chosen"].items()}
