"""A glance at a manifest: decoded and its digest checked, but not read field by field.

A hundred times as fast as `Manifest.from_json`, which matters where hundreds of entries are ranked or listed. Nothing
that is loaded or executed comes from a glance.
"""

import json
from typing import Any

from precast.cache.canonical import sha256
from precast.cache.manifest import Manifest, check_schema
from precast.errors import CorruptError

__all__ = ["glance"]


def glance(data: bytes) -> dict[str, Any]:
    """Decode a manifest's bytes; floats stay in their canonical form, `{"$float": "1.0"}`.

    Raises:
        CorruptError: The bytes are damaged.
        FormatError: They have a format that this version does not read.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not _digest_fits(data, document.get("digest")):
        # Either damaged, of another format, or not laid out as `Manifest.to_json` does: the full reading tells.
        Manifest.from_json(data)
    check_schema(document)
    if not isinstance(document, dict):
        raise CorruptError("The manifest is damaged", "it is not an object", "Run `precast precompile` again")
    return document


def _digest_fits(data: bytes, digest: object) -> bool:
    """Check the digest over the bytes as they are: canonical JSON without the digest is what was digested."""
    member = f'"digest":"{digest}",'.encode()
    place = data.find(member)
    while place >= 0:
        if sha256(data[:place] + data[place + len(member) :]) == digest:
            return True
        place = data.find(member, place + 1)
    return False
