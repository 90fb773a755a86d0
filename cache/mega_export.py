"""Export: an entry's mega artifact as one file to ship, with the entry's signatures in its header.

The store's own copy holds no signatures, because they come later and its digest is in the manifest. An export differs
from it in the header alone.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from precast.cache.atomic import TEMPORARY_SUFFIX, refused, sync_folder, unique
from precast.cache.container import header_with
from precast.cache.manifest import Manifest
from precast.cache.mega import SIGNATURES
from precast.cache.signing import stored_signatures
from precast.cache.store import Store
from precast.errors import CorruptError, NoEntryError, StoreAccessError

__all__ = ["export_mega"]

_CHUNK = 2**20
_REBUILD = "Run `precast precompile` again: it rebuilds a damaged entry"


def export_mega(store: Store, key: str, output: Path) -> None:
    """Write an entry's mega artifact to a file, which appears whole or not at all.

    Args:
        store: The store.
        key: The entry's full key.
        output: The file to write; its mode is what the umask leaves, as of any new file.

    Raises:
        NoEntryError: There is no such entry, or it has no mega artifact.
        CorruptError: The manifest, the mega artifact or the signatures are damaged; nothing is written.
        StoreAccessError: The file cannot be written, or the mega artifact cannot be read.
    """
    manifest = store.manifest(key)
    metadata = _signatures(store, manifest)
    temporary = output.with_name(f".{unique(output.name)}{TEMPORARY_SUFFIX}")
    source = _opened(store.layout.mega(key))
    try:
        with source, temporary.open("xb") as target:
            _copy(source, target, manifest, metadata)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(output)
        sync_folder(output.parent)
    except OSError as error:
        raise _unwritable(output, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _signatures(store: Store, manifest: Manifest) -> Mapping[str, str]:
    signatures = stored_signatures(store, manifest.key)
    if signatures.damage or signatures.unread:
        raise CorruptError(
            f"The signatures of entry {manifest.key[:12]} cannot be shipped",
            signatures.damage or f"they are {signatures.unread}, which this version of precast does not read",
            "Run `precast precompile` again: it takes damaged signatures away",
            entry=manifest.key,
        )
    return {SIGNATURES: signatures.to_json().decode("utf-8")} if signatures.items else {}


def _copy(source: BinaryIO, target: BinaryIO, manifest: Manifest, metadata: Mapping[str, str]) -> None:
    """Copy the artifact under another header, and check the bytes that are copied against the manifest."""
    if manifest.mega is None:
        raise NoEntryError(f"Entry {manifest.key[:12]} has no mega artifact", entry=manifest.key)
    try:
        old, new = header_with(source, metadata)
    except ValueError as error:
        raise _damaged(manifest, str(error)) from error
    seen, size = hashlib.sha256(old), len(old)
    target.write(new)
    while chunk := source.read(_CHUNK):
        seen.update(chunk)
        size += len(chunk)
        target.write(chunk)
    if (seen.hexdigest(), size) != (manifest.mega.sha256, manifest.mega.bytes):
        raise _damaged(manifest, "its bytes have another digest")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NoEntryError(
            f"{path} does not exist", "the entry has no mega artifact", _REBUILD, path=str(path)
        ) from error
    except OSError as error:
        raise StoreAccessError(
            f"{path} cannot be read", error.strerror or str(error), "Let this user read it", path=str(path)
        ) from error


def _damaged(manifest: Manifest, why: str) -> CorruptError:
    what = f"The mega artifact of entry {manifest.key[:12]} is damaged"
    return CorruptError(what, why, _REBUILD, entry=manifest.key)


def _unwritable(output: Path, error: OSError) -> StoreAccessError:
    told = refused(error, output)
    return StoreAccessError(
        told.what, told.why, "Free space or give access there, or name another file", path=str(output)
    )
