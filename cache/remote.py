"""A remote: the store behind the local one. Entries are fetched from it and pushed to it, whole or not at all.

A push writes objects first, then signatures, the manifest last of an entry, and after that the pointers of requests;
whoever reads meanwhile finds no entry. A fetch puts objects into the local store, and then publishes as a build does.
The mega artifact is made again from the objects; it travels only where that would give other bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precast.cache.manifest import SCHEMA, TOO_NEW, Manifest
from precast.cache.remote_calls import Limits
from precast.cache.remote_files import Files
from precast.cache.remote_store import RemoteStore, manifest_name, object_name, pointer_name, signatures_name
from precast.cache.remote_transfer import receive, send_objects, stored_manifest
from precast.cache.signatures import Signatures, faults, require_signature
from precast.cache.signing import add_signatures, stored_signatures
from precast.cache.signing_keys import PublicKey
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, NoEntryError

__all__ = ["Pulled", "Pushed", "Remote"]

_ABSENT, _SAME, _OTHER = "absent", "same", "other"


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a fetch did.

    Attributes:
        manifest: The entry, as the local store has it now.
        objects: Objects that were read; those that the store had are not among them.
        bytes: Their bytes.
        new: Whether the entry was published here; a sound one that was here stays.
    """

    manifest: Manifest
    objects: int
    bytes: int
    new: bool = True


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did.

    Attributes:
        objects: Objects that were written; those that the remote had are not among them.
        bytes: Bytes that were written.
        kept: Whether the remote holds another build of the entry, which stays.
    """

    objects: int = 0
    bytes: int = 0
    kept: bool = False


class Remote:
    """One remote.

    Attributes:
        store: Its files.

    Args:
        url: Its address.
        limits: How long it may take.
        files: Its files, if not those of the address.

    Raises:
        ConfigValueError: It is no address of a remote, or it holds credentials.
    """

    def __init__(self, url: str, limits: Limits | None = None, files: Files | None = None) -> None:
        self.store = RemoteStore(url, limits, files)

    @property
    def url(self) -> str:
        """Its address as it may be shown."""
        return self.store.url

    def has(self, key: str) -> bool:
        """Tell whether there is such an entry.

        Raises:
            RemoteError: The remote cannot be reached or refuses.
        """
        return self.store.sizes([manifest_name(key)])[manifest_name(key)] is not None

    def keys(self, prefix: str = "") -> tuple[str, ...]:
        """Return the keys that start with `prefix`, sorted.

        Raises:
            RemoteError: The remote cannot be reached or refuses.
        """
        if len(prefix) == 64:
            return (prefix,) if self.has(prefix) else ()
        return tuple(key for key in self.store.entries() if key.startswith(prefix))

    def candidates(self, request_digest: str) -> tuple[str, ...]:
        """Return the keys of entries that answered a request, the latest first where the remote tells; 16 at most.

        Raises:
            RemoteError: The remote cannot be reached or refuses.
        """
        return self.store.candidates(request_digest)

    def manifest(self, key: str, trusted: Sequence[PublicKey] = ()) -> Manifest:
        """Read an entry's manifest.

        Args:
            key: The entry's key.
            trusted: Keys of which one must have signed it; empty where anybody may have made it.

        Raises:
            NoEntryError: There is no such entry.
            CorruptError: It is damaged or another entry's.
            FormatError: It has a format that this version does not read.
            SignatureError: None of the keys signed it.
            RemoteError: The remote cannot be reached or refuses.
        """
        manifest = self.store.manifest(key)
        if manifest is None:
            raise NoEntryError(f"There is no entry {key[:12]} in {self.url}", entry=key)
        if trusted:
            require_signature(manifest, self.store.signatures(key), trusted)
        return manifest

    def missing(self, manifest: Manifest) -> tuple[str, ...]:
        """Name the objects of an entry that are not there, without reading them.

        Raises:
            RemoteError: The remote cannot be reached or refuses.
        """
        sizes = self.store.sizes([object_name(name) for name in manifest.objects])
        return tuple(name for name, size in sizes.items() if not size)

    def fetch(self, store: Store, key: str, trusted: Sequence[PublicKey] = ()) -> Pulled:
        """Bring an entry into a local store; a damaged copy there is put aside, a sound one stays.

        Args:
            store: The local store.
            key: The entry's key.
            trusted: Keys of which one must have signed it; empty where anybody may have made it.

        Raises:
            NoEntryError: There is no such entry.
            CorruptError: Something of it is missing or damaged; nothing of it is visible in the local store.
            FormatError: It has a format that this version does not read, or could not store unchanged.
            SignatureError: None of the keys signed it.
            RemoteError: The remote cannot be reached or refuses.
            StoreAccessError: The local store cannot be written.
            LockedError: Another process held the entry's lock all the time.
        """
        manifest = self.manifest(key)
        signatures = self.store.signatures(key)
        if trusted:
            require_signature(manifest, signatures, trusted)
        if store.layout.entry(key).is_dir() and not store.check(key):
            pulled = Pulled(store.manifest(key), 0, 0, new=False)
        else:
            # What is published is written anew from what was read, and that must give the same bytes.
            self._require_storable(manifest)
            try:
                objects, moved = receive(self.store, store, manifest)
            finally:
                store.close()
            pulled = Pulled(store.manifest(key), objects, moved)
        if signatures.items and pulled.manifest.content_digest == manifest.content_digest:
            add_signatures(store, manifest, signatures)
        return pulled

    def _require_storable(self, manifest: Manifest) -> None:
        try:
            same = manifest.sealed().digest == manifest.digest
        except ValueError as error:
            self.store.fail(manifest_name(manifest.key), str(error), manifest.key)
        if not same:
            why = f"it has fields beyond {SCHEMA} as this version knows it"
            raise FormatError(TOO_NEW, why, "Update precast", entry=manifest.key)

    def push(self, store: Store, key: str, request_digests: Sequence[str] = (), *, built: bool = True) -> Pushed:
        """Bring an entry of a local store into the remote. The first build of an entry stays, unless it is damaged.

        Args:
            store: The local store.
            key: The entry's key.
            request_digests: Requests that the entry answers.
            built: Whether the entry was built just now, so that the remote may have another build of it; else it is
                only looked whether the remote has one.

        Raises:
            NoEntryError: The store has no such entry.
            CorruptError: The local entry is damaged.
            RemoteError: The remote cannot be reached or refuses; readers see no half an entry.
        """
        manifest = store.manifest(key)
        signatures = stored_signatures(store, key)
        signed = signatures.to_json() if signatures.items else b""
        pointers = [pointer_name(digest, key) for digest in request_digests]
        sizes = self.store.sizes([manifest_name(key), signatures_name(key), *pointers])
        there = sizes[manifest_name(key)] is not None and manifest_name(key) not in self.store.damaged
        look = built or (signed != b"" and len(signed) != sizes[signatures_name(key)])
        standing = self._compare(manifest) if there and look else _SAME if there else _ABSENT
        if standing == _ABSENT:
            pushed = self._send(store, manifest, signatures)
        else:
            pushed = Pushed(kept=standing == _OTHER)
            if standing == _SAME and signed and look:
                self._sign(manifest, signatures)
        self.store.point(pointer for pointer in pointers if sizes[pointer] is None)
        return pushed

    def _compare(self, manifest: Manifest) -> str:
        """Say what the remote has in the place of an entry."""
        try:
            theirs = self.store.manifest(manifest.key)
        except FormatError:
            return _OTHER
        except CorruptError:
            return _ABSENT
        if theirs is None:
            return _ABSENT
        return _SAME if theirs.content_digest == manifest.content_digest else _OTHER

    def _send(self, store: Store, manifest: Manifest, signatures: Signatures) -> Pushed:
        """Write an entry, its manifest last."""
        name, data = manifest_name(manifest.key), stored_manifest(store, manifest)
        objects, moved = send_objects(self.store, store, manifest)
        self._sign(manifest, signatures)
        if name in self.store.damaged:
            self.store.write({name: data})
        elif not self.store.create(name, data):
            standing = self._compare(manifest)
            if standing == _ABSENT:
                self.store.write({name: data})
            elif standing == _OTHER:
                return Pushed(objects, moved, kept=True)
        return Pushed(objects, moved + len(data))

    def _sign(self, manifest: Manifest, signatures: Signatures) -> None:
        """Add signatures to those that the remote has of an entry; before its manifest, if that is written too.

        Signatures of another build stay: it may be the one whose manifest comes first. Those of a damaged one go.
        """
        theirs = self.store.signatures(manifest.key)
        kept = theirs.items
        if manifest_name(manifest.key) in self.store.damaged:
            kept = tuple(item for item in kept if not faults(manifest, Signatures((item,))))
        joined = Signatures((*kept, *signatures.items))
        if not theirs.unread and (theirs.damage or set(joined.items) != set(theirs.items)):
            self.store.write({signatures_name(manifest.key): joined.to_json()})
