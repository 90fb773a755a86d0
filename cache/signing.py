"""Signing: put signatures beside an entry of a store, read them there, and take away those that are worth nothing."""

from pathlib import Path

from precast.cache.atomic import refused, sync_folder, write_atomic
from precast.cache.manifest import Manifest
from precast.cache.root import CacheRoot
from precast.cache.signatures import (
    ALGORITHM,
    MAX_BYTES,
    SCHEMA,
    UNSIGNED,
    VALID,
    Signature,
    Signatures,
    faults,
    judge,
    read_signatures,
    signed_message,
)
from precast.cache.signing_keys import PrivateKey, PublicKey
from precast.cache.store import Store
from precast.errors import NoEntryError, SignatureError, StoreAccessError

__all__ = ["add_signatures", "mend_signatures", "sign_entry", "signatures_in", "signers", "stored_signatures"]

_NAME = "signatures.json"
_ATTEMPTS = 3


def stored_signatures(store: Store, key: str) -> Signatures:
    """Read the signatures of an entry in a store; none where it is not signed."""
    return signatures_in(store.layout.entry(key))


def signatures_in(folder: Path) -> Signatures:
    """Read the signatures in the folder of an entry, wherever it lies."""
    try:
        with (folder / _NAME).open("rb") as stream:
            return read_signatures(stream.read(MAX_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        return UNSIGNED
    except OSError as error:
        return Signatures(damage=error.strerror or str(error))


def signers(store: Store, key: str) -> tuple[str, ...]:
    """Return what people call the keys that signed an entry as it is; none where that cannot be checked."""
    signatures = stored_signatures(store, key)
    if not signatures.items:
        return ()
    return tuple(judged.id for judged in judge(store.manifest(key), signatures) if judged.verdict == VALID)


def sign_entry(store: Store, manifest: Manifest, key: PrivateKey) -> bool:
    """Sign an entry of a store, beside the signatures that it has.

    Args:
        store: The store.
        manifest: The manifest that the signer has seen; an entry that changed meanwhile is not signed.
        key: The key.

    Returns:
        Whether anything was written; an entry that the key has signed already is left alone.

    Raises:
        SignatureError: The entry is another one by now, or a later version signed it in a way that is not known here.
        StoreAccessError: The store cannot be written.
        LockedError: Another process held the entry's lock all the time.
    """
    message = signed_message(manifest)
    if _has_signed(key.public, message, stored_signatures(store, manifest.key)):
        return False
    with store.lock(f"entry-{manifest.key}"):
        present = stored_signatures(store, manifest.key)
        if present.unread:
            raise _unsigned(
                manifest,
                f"its signatures are {present.unread}, and this version of precast writes {SCHEMA}",
                "Update precast",
            )
        _require_same(store, manifest)
        others = [item for item in present.items if not _is_of(item, key.public)]
        made = Signature(ALGORITHM, key.public.raw, key.sign(message))
        _write(store.layout, manifest.key, Signatures((*others, made)))
    return True


def add_signatures(store: Store, manifest: Manifest, others: Signatures) -> bool:
    """Put signatures that came along with an entry beside those that it has; what does not fit its content is left out.

    Args:
        store: The store.
        manifest: The entry that they are over.
        others: The signatures.

    Returns:
        Whether anything was written.

    Raises:
        SignatureError: The entry is another one by now.
        StoreAccessError: The store cannot be written.
        LockedError: Another process held the entry's lock all the time.
    """
    fitting = tuple(item for item in others.items if not faults(manifest, Signatures((item,))))
    if not set(fitting) - set(stored_signatures(store, manifest.key).items):
        return False
    with store.lock(f"entry-{manifest.key}"):
        present = stored_signatures(store, manifest.key)
        _require_same(store, manifest)
        if present.unread:
            return False
        _write(store.layout, manifest.key, Signatures((*present.items, *fitting)))
    return True


def mend_signatures(store: Store, manifest: Manifest) -> tuple[str, ...]:
    """Take away signatures of an entry that are damaged or do not fit it: nobody can make use of them.

    Returns:
        What was wrong, in words; empty where all was well and nothing was done.

    Raises:
        SignatureError: The entry is another one by now.
        StoreAccessError: The store cannot be written.
        LockedError: Another process held the entry's lock all the time.
    """
    if not faults(manifest, stored_signatures(store, manifest.key)):
        return ()
    with store.lock(f"entry-{manifest.key}"):
        present = stored_signatures(store, manifest.key)
        found = faults(manifest, present)
        _require_same(store, manifest)
        good = tuple(item for item in present.items if not faults(manifest, Signatures((item,))))
        if found and good:
            _write(store.layout, manifest.key, Signatures(good))
        elif found:
            _remove(store.layout, manifest.key)
    return found


def _is_of(item: Signature, key: PublicKey) -> bool:
    return item.algorithm == ALGORITHM and item.public_key == key.raw


def _has_signed(key: PublicKey, message: bytes, signatures: Signatures) -> bool:
    own = [item for item in signatures.items if _is_of(item, key)]
    return bool(own) and all(key.verifies(message, item.signature) for item in own)


def _require_same(store: Store, manifest: Manifest) -> None:
    if store.manifest(manifest.key).content_digest != manifest.content_digest:
        raise _unsigned(manifest, "it was replaced by another one since it was looked at", "Run the command again")


def _unsigned(manifest: Manifest, why: str, hint: str) -> SignatureError:
    return SignatureError(f"Entry {manifest.key[:12]} is not signed", why, hint, entry=manifest.key)


def _file(layout: CacheRoot, key: str) -> Path:
    return layout.entry(key) / _NAME


def _write(layout: CacheRoot, key: str, signatures: Signatures) -> None:
    """Put signatures beside the manifest, all at once. The caller holds the entry's lock.

    They are staged where the leftovers of killed processes are looked for; who tidies up may take them meanwhile.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return write_atomic(_file(layout, key), signatures.to_json(), staging=layout.staging)
        except StoreAccessError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if not layout.entry(key).is_dir():
                raise NoEntryError(f"Entry {key[:12]} is gone", "it was pruned", "Run the command again") from error
            if attempt == _ATTEMPTS - 1:
                raise
    return None


def _remove(layout: CacheRoot, key: str) -> None:
    try:
        _file(layout, key).unlink(missing_ok=True)
        sync_folder(layout.entry(key))
    except OSError as error:
        raise refused(error, _file(layout, key)) from error
