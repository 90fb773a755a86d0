"""Repair: mend a damaged entry from its second copy, byte for byte, with nothing compiled.

An entry holds everything twice: as manifest and objects, and as the mega artifact, which holds the manifest as well.
What is put in place has been checked against the digests before, what was there goes to the quarantine, and what
cannot be mended takes the whole entry there. Nothing of another entry changes; an object that both share was just as
bad for the other.
"""

from dataclasses import dataclass
from pathlib import Path

from precast.cache.atomic import write_atomic
from precast.cache.canonical import sha256
from precast.cache.container import RawTensor
from precast.cache.copies import is_canonical, manifest_from_mega, mega_from_frames
from precast.cache.damage import ALTERED, UNREADABLE, Damage
from precast.cache.frames import compress, decompress
from precast.cache.manifest import Manifest
from precast.cache.mega import MegaFile
from precast.cache.objects import ObjectStore
from precast.cache.quarantine import keep_copy, new_folder, note_reason
from precast.cache.signatures import faults
from precast.cache.signing import stored_signatures
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, NoEntryError, PrecastError, StoreAccessError

__all__ = ["Mended", "Repaired", "repair"]

_MANIFEST, _MEGA = "manifest.json", "model.mega"

# A mended manifest shows what else is damaged; while `prune` runs, an object may go once more.
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Mended:
    """One member that was mended.

    Attributes:
        damage: What was wrong with it.
        kept: Where its bad copy is now; None where there was none.
    """

    damage: Damage
    kept: Path | None


@dataclass(frozen=True, slots=True)
class Repaired:
    """An entry that is sound now.

    Attributes:
        manifest: Its manifest.
        mended: What was mended; empty where nothing had to be.
    """

    manifest: Manifest
    mended: tuple[Mended, ...]


def repair(store: Store, key: str) -> Repaired | None:
    """Mend an entry; what cannot be mended is put into the quarantine, to be built again.

    Args:
        store: The store.
        key: The entry's key.

    Returns:
        The sound entry; None where there is none any more.

    Raises:
        FormatError: The manifest has a format that this version does not read, and the mega artifact is no help.
        StoreAccessError: A file cannot be read or written; nothing is known to be wrong with it.
        LockedError: Another process held a lock all the time.
    """
    try:
        with store.writing(), store.hold(key), store.lock(f"entry-{key}"):
            return _Mending(store, key).run()
    except NoEntryError:
        return None


class _HopelessError(Exception):
    """The second copy is no help."""


class _Mending:
    """One repair, under the entry's lock."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._layout = store.layout
        self._objects = ObjectStore(store.layout)
        self._mended: list[Mended] = []

    def run(self) -> Repaired | None:
        damage = self._damage()
        try:
            for _ in range(_ROUNDS):
                if not damage:
                    return Repaired(self._store.manifest(self._key), tuple(self._mended))
                self._mend(damage)
                damage = self._damage()
            why = "it is damaged again and again"
        except _HopelessError as hopeless:
            why = str(hopeless)
        told = "; ".join(map(str, damage))
        self._store.quarantine(self._key, f"{told}; it cannot be mended: {why}", damage)
        return None

    def _damage(self) -> tuple[Damage, ...]:
        try:
            found = self._store.check(self._key)
        except FormatError as error:
            # A changed digit in the schema looks like another format. The mega artifact knows better.
            try:
                self._manifest_again()
            except _HopelessError:
                raise error from None
            return (Damage(_MANIFEST, str(self._layout.manifest(self._key)), error.why, ALTERED),)
        for item in found:
            if item.code == UNREADABLE:
                raise StoreAccessError(
                    f"{item.path} cannot be checked",
                    item.reason,
                    "Let this user read the cache folder, or look at the disk",
                    entry=self._key,
                    path=item.path,
                )
        return found

    def _mend(self, damage: tuple[Damage, ...]) -> None:
        by_member = {item.member: item for item in damage}
        if _MANIFEST in by_member:
            self._put(by_member[_MANIFEST], self._layout.manifest(self._key), self._manifest_again())
            return  # what else is damaged is looked at with the manifest in place
        manifest = self._store.manifest(self._key)
        for name, size in manifest.objects.items():
            item = by_member.get(f"object {name}")
            if item is not None:
                kept = self._objects.replace(name, self._frame_again(name, size), str(item))
                self._mended.append(Mended(item, kept))
        if _MEGA in by_member:
            self._put(by_member[_MEGA], self._layout.mega(self._key), self._mega_again(manifest))

    def _put(self, damage: Damage, path: Path, data: bytes) -> None:
        """Put a file of the entry's folder in place; the bad one is kept in the quarantine."""
        aside = new_folder(self._layout, self._key)
        kept = keep_copy(path, aside)
        if kept is None:
            aside.rmdir()
        else:
            note_reason(self._layout, aside, {"entry": self._key, **damage.json()})
        write_atomic(path, data, staging=self._layout.staging)
        self._mended.append(Mended(damage, kept))

    def _manifest_again(self) -> bytes:
        """Make the manifest from the mega artifact, if that is sound through and through and of this entry."""
        mega = self._mega_file()
        try:
            sound = not mega.damage() and is_canonical(mega)
            document = manifest_from_mega(mega)
        except (PrecastError, OSError) as error:
            raise _HopelessError(str(error)) from error
        if not sound or mega.manifest.key != self._key:
            raise _HopelessError("the mega artifact is damaged as well, or another entry's")
        if faults(Manifest.from_json(document), stored_signatures(self._store, self._key)):
            raise _HopelessError("the entry's signatures are not over what its mega artifact holds")
        return document

    def _frame_again(self, name: str, size: int) -> bytes:
        """Take an object from the mega artifact."""
        try:
            frame = self._mega_file().frame(name)
            if sha256(decompress(frame, size)) != name:
                raise ValueError("its bytes have another digest")
        except (CorruptError, ValueError) as error:
            raise _HopelessError(f"object {name} is damaged in the mega artifact too: {error}") from error
        return frame

    def _mega_again(self, manifest: Manifest) -> bytes:
        """Make the mega artifact from the manifest and the objects."""
        record = manifest.mega
        assert record is not None, "an entry without one cannot have a damaged one"
        document = self._layout.manifest(self._key).read_bytes()
        raw = {name: self._store.read_object(name, size) for name, size in manifest.objects.items()}
        constants = self._constants(manifest)
        # As a rule both copies hold the same frames; a version of zstd that came in between makes others.
        stored = {name: self._layout.object(name).read_bytes() for name in raw}
        for frames in (stored, {name: compress(data) for name, data in raw.items()}):
            data = mega_from_frames(document, frames, constants)
            if (sha256(data), len(data)) == (record.sha256, record.bytes):
                return data
        raise _HopelessError("the mega artifact that the objects make has another digest")

    def _constants(self, manifest: Manifest) -> dict[str, RawTensor]:
        """Take the baked constants from the damaged mega artifact: no object holds them."""
        if not manifest.constants:
            return {}
        mega = self._mega_file()
        if mega.manifest.constants != manifest.constants:
            raise _HopelessError("the constants are in the mega artifact alone")
        try:
            return {record.name: mega.constant(record.name) for record in manifest.constants}
        except CorruptError as error:
            raise _HopelessError(error.why) from error

    def _mega_file(self) -> MegaFile:
        try:
            return MegaFile(self._layout.mega(self._key))
        except (CorruptError, NoEntryError) as error:
            raise _HopelessError(f"the mega artifact is no help: {error.why or error.what}") from error
