"""The two copies of an entry, made one from the other: its manifest and objects, and its mega artifact.

Each is written in one way only, so a copy that is made anew has the bytes of the first one, or its digest shows that
it has not.
"""

import hashlib
from collections.abc import Mapping

from precast.cache.canonical import Json, canonical_json, decode_json, digest
from precast.cache.container import RawTensor
from precast.cache.factors import entry_key
from precast.cache.mega import MegaFile, pack_mega
from precast.cache.records import MegaRecord

__all__ = ["is_canonical", "manifest_from_mega", "mega_from_frames"]


def manifest_from_mega(mega: MegaFile) -> bytes:
    """Return the `manifest.json` that belongs beside a mega artifact.

    Fields that this version does not know stay as they are.

    Raises:
        OSError: The file cannot be read.
    """
    with mega.path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        record = MegaRecord(sha256, stream.tell())
    return _sealed(mega.document, record)


def mega_from_frames(document: bytes, frames: Mapping[str, bytes], constants: Mapping[str, RawTensor]) -> bytes:
    """Return the mega artifact that belongs beside a manifest.

    Args:
        document: The content of `manifest.json`, which has been checked.
        frames: The stored bytes of each object, by its SHA-256.
        constants: Each baked constant by name.
    """
    return pack_mega(_sealed(document, None), frames, constants)


def is_canonical(mega: MegaFile) -> bool:
    """Tell whether a mega artifact is byte for byte what its own content makes, under the key of its own factors.

    Raises:
        PrecastError: A member is damaged.
        OSError: The file cannot be read.
    """
    frames = {name: mega.frame(name) for name in mega.manifest.objects}
    constants = {record.name: mega.constant(record.name) for record in mega.manifest.constants}
    if pack_mega(mega.document, frames, constants) != mega.path.read_bytes():
        return False
    try:
        return entry_key(mega.manifest.factors) == mega.manifest.key
    except ValueError:  # a factor that this version does not know
        return False


def _sealed(document: bytes, record: MegaRecord | None) -> bytes:
    """Return a manifest's JSON with another record of the mega artifact, and with the digest that this makes."""
    fields: Json = decode_json(document)
    assert isinstance(fields, dict), "it was read as a manifest before"
    body = {name: value for name, value in fields.items() if name != "digest"}
    body["mega"] = None if record is None else record.json()
    return canonical_json({**body, "digest": digest(body)})
