"""The bytes of an entry on their way between a local store and a remote."""

from collections.abc import Iterator, Mapping

from precast.cache.canonical import sha256
from precast.cache.frames import compress, decompress
from precast.cache.manifest import Manifest
from precast.cache.mega import write_mega
from precast.cache.remote_store import RemoteObject, RemoteStore, manifest_name, mega_name, object_name
from precast.cache.store import Store
from precast.errors import CorruptError, NoEntryError, StoreAccessError

__all__ = ["receive", "send_objects", "stored_manifest"]


def receive(remote: RemoteStore, store: Store, manifest: Manifest) -> tuple[int, int]:
    """Read an entry's objects, those apart that the store has, and publish the entry.

    Args:
        remote: Where from.
        store: Where to.
        manifest: The entry's manifest, read from the remote and checked.

    Returns:
        Objects and bytes that were read.

    Raises:
        CorruptError: Something of it is missing or damaged; nothing of it is visible in the store.
        RemoteError: The remote cannot be reached or refuses.
        StoreAccessError: The store cannot be written.
    """
    raws = dict(_present(store, manifest))
    absent = {name: size for name, size in manifest.objects.items() if name not in raws}
    got = remote.objects(absent, manifest.key)
    raws.update({name: found.raw for name, found in got.items()})
    for raw in raws.values():
        store.put_object(raw)
    mega, more = _mega(remote, manifest, raws, got)
    store.publish(manifest, mega)
    return len(got) + len(more), sum(len(found.frame) for found in (*got.values(), *more.values()))


def _present(store: Store, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    for name, size in manifest.objects.items():
        try:
            yield name, store.read_object(name, size)
        except (NoEntryError, CorruptError, StoreAccessError):
            continue


def _mega(
    remote: RemoteStore, manifest: Manifest, raws: Mapping[str, bytes], got: Mapping[str, RemoteObject]
) -> tuple[bytes | None, Mapping[str, RemoteObject]]:
    """Make the mega artifact as it was made, and return what had to be read for it.

    Objects that the store had may have been compressed by another version of zstd; then the remote's are taken.
    """
    if manifest.mega is None:
        return None, {}
    made = _made(manifest, raws, {name: found.frame for name, found in got.items()})
    if made is not None:
        return made, {}
    stored = remote.mega(manifest)
    if stored is not None:
        return stored, {}
    more = remote.objects({name: size for name, size in manifest.objects.items() if name not in got}, manifest.key)
    made = _made(manifest, raws, {name: found.frame for name, found in (*got.items(), *more.items())})
    if made is None:
        remote.fail(mega_name(manifest.key), "the objects do not make the file that the manifest names", manifest.key)
    return made, more


def _made(manifest: Manifest, raws: Mapping[str, bytes], frames: Mapping[str, bytes]) -> bytes | None:
    """Make a mega artifact, and return it if it is the one that the manifest names."""
    if manifest.mega is None or manifest.constants:  # no object holds the constants
        return None
    made = write_mega(manifest, raws, {}, frames)
    return made if sha256(made) == manifest.mega.sha256 else None


def send_objects(remote: RemoteStore, store: Store, manifest: Manifest) -> tuple[int, int]:
    """Write the objects of an entry that a remote lacks, and the mega artifact where they would not make it again.

    An object that is there and sound stays as it is, for the sake of entries that were made of its bytes. The right
    size is taken for soundness, unless the entry was found damaged.

    Returns:
        Objects and bytes that were written.

    Raises:
        NoEntryError: An object is missing in the store.
        CorruptError: An object in the store is damaged.
        RemoteError: The remote cannot be reached or refuses.
    """
    objects = {name: _object(store, name, size) for name, size in manifest.objects.items()}
    frames = {name: found.frame for name, found in objects.items()}
    sizes = remote.sizes([object_name(name) for name in objects])
    absent = {}
    suspect = manifest_name(manifest.key) in remote.damaged
    for name, frame in objects.items():
        place = object_name(name)
        theirs = None
        if sizes[place] == len(frame.frame) and not suspect:
            continue
        if sizes[place] is not None:
            theirs = remote.sound_frame(name, len(frame.raw))
        if theirs is None:
            absent[place] = frame.frame
        else:
            frames[name] = theirs
    remote.write(absent)
    moved = sum(map(len, absent.values()))
    if manifest.mega is not None and _made(manifest, {n: o.raw for n, o in objects.items()}, frames) is None:
        data = _stored_mega(store, manifest)
        remote.write({mega_name(manifest.key): data})
        moved += len(data)
    return len(absent), moved


def stored_manifest(store: Store, manifest: Manifest) -> bytes:
    """Return the bytes of an entry's manifest as they are stored: a later version may have put more into it.

    Raises:
        NoEntryError: The entry is gone or was replaced by another one.
        CorruptError: It was damaged since it was read.
    """
    try:
        data = store.layout.manifest(manifest.key).read_bytes()
        if Manifest.from_json(data).digest == manifest.digest:
            return data
    except FileNotFoundError:
        pass
    what = f"Entry {manifest.key[:12]} is not the one that was to be pushed any more"
    raise NoEntryError(what, "another process removed or replaced it", "Run the command again", entry=manifest.key)


def _stored_mega(store: Store, manifest: Manifest) -> bytes:
    path = store.layout.mega(manifest.key)
    try:
        data = path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = "its bytes have another digest"
        if manifest.mega is not None and sha256(data) == manifest.mega.sha256:
            return data
    what = f"The mega artifact of entry {manifest.key[:12]} is damaged"
    raise CorruptError(what, why, "Run `precast precompile` again", entry=manifest.key, path=str(path))


def _object(store: Store, name: str, size: int) -> RemoteObject:
    """Read an object of the store and its file, both of the same moment."""
    try:
        frame = store.layout.object(name).read_bytes()
        raw = decompress(frame, size)
        if sha256(raw) == name:
            return RemoteObject(raw, frame)
    except (OSError, ValueError):
        pass
    raw = store.read_object(name, size)  # raises what is wrong with it, or finds it mended
    return RemoteObject(raw, compress(raw))
