"""Where an entry's bytes come from: the store, or one mega file. Both hand out a manifest and checked payloads."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from precast.cache.damage import ALTERED, Damage
from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.mega import MegaFile
from precast.cache.options import StoreOptions
from precast.cache.signatures import Signatures, require_signature
from precast.cache.signing import stored_signatures
from precast.cache.signing_keys import PublicKey
from precast.cache.store import Store
from precast.cache.tags import all_tags, is_tag, resolve_entry
from precast.cache.trust import require_trusted, require_trusted_file
from precast.errors import AmbiguousKeyError, CorruptError, NoEntryError, PrecastError

if TYPE_CHECKING:
    from precast.cache.remote_tier import RemoteTier

__all__ = [
    "Degradation",
    "EntrySource",
    "MegaSource",
    "StoreSource",
    "names_file",
    "open_source",
    "require_own",
    "require_signed",
]

_KEY = re.compile(r"[0-9a-fA-F]{6,64}")


@dataclass(frozen=True, slots=True)
class Degradation:
    """A payload that had to come from somewhere else.

    Attributes:
        payload: Name of the payload.
        reason: Why the first place would not do.
    """

    payload: str
    reason: str


class EntrySource(Protocol):
    """A manifest and the payloads that it names. It is read once, and all that is handed out is held to it."""

    @property
    def manifest(self) -> Manifest:
        """The entry's manifest."""

    def payload(self, record: PayloadRecord) -> bytes:
        """Return the raw bytes of a payload, their digest checked."""

    def damage(self) -> tuple[Damage, ...]:
        """Read every member that the manifest names, and say which are not what they must be."""

    def signatures(self) -> Signatures:
        """Return what lies beside the manifest about who signed it."""

    def require_trusted(self, options: StoreOptions) -> None:
        """Refuse it where another user could have written it, unless the options trust it."""

    def touch(self) -> None:
        """Stamp the entry's last use, where something keeps such stamps."""


@dataclass(frozen=True)
class MegaSource:
    """One mega file."""

    path: Path
    manifest: Manifest
    file: MegaFile

    @classmethod
    def open(cls, path: Path) -> "MegaSource":
        """Open a mega file; only its header is read."""
        file = MegaFile(path)
        return cls(path, file.manifest, file)

    def payload(self, record: PayloadRecord) -> bytes:
        """Return a payload's raw bytes, their digest checked."""
        return self.file.payload(record.object)

    def damage(self) -> tuple[Damage, ...]:
        """Read every member of the file, and say which are not what they must be."""
        return tuple(Damage(self.path.name, str(self.path), why, ALTERED) for why in self.file.damage())

    def signatures(self) -> Signatures:
        """Return the signatures in the file's header."""
        return self.file.signatures

    def require_trusted(self, options: StoreOptions) -> None:
        """Refuse the file where another user could have written it, unless the options trust it."""
        require_trusted_file(self.path, options)

    def touch(self) -> None:
        """Do nothing: a file that was shipped is in nobody's cache."""


@dataclass(frozen=True)
class StoreSource:
    """An entry of a store. A missing or damaged object may come from the entry's mega file, and is then reported.

    Attributes:
        store: The store.
        manifest: The entry's manifest.
        strict: Refuse a missing or damaged object instead.
        on_degraded: Is told of each payload that came from the mega file.
    """

    store: Store
    manifest: Manifest
    strict: bool
    on_degraded: Callable[[Degradation], None] = field(default=lambda _: None)

    def payload(self, record: PayloadRecord) -> bytes:
        """Return a payload's raw bytes, their digest checked.

        Raises:
            CorruptError: The object is missing or damaged, and the source is strict or the mega file does not have it.
            NoEntryError: The whole entry was removed since its manifest was read.
        """
        try:
            return self.store.read_object(record.object, record.bytes)
        except (CorruptError, NoEntryError) as error:
            if self.strict:
                raise self._gone(record, error.what) from error
            data = self._from_mega(record, error.what)
            self.on_degraded(Degradation(record.name, error.what))
            return data

    def damage(self) -> tuple[Damage, ...]:
        """Read the objects and the mega artifact, and say which are not what they must be.

        Raises:
            NoEntryError: The entry was replaced by another one since its manifest was read.
        """
        key = self.manifest.key
        damaged = self.store.check(key)
        if not damaged and self.store.manifest(key).digest != self.manifest.digest:
            raise NoEntryError(
                f"Entry {key[:12]} was replaced while it was looked at",
                "another process built it again",
                "Run the command again",
                entry=key,
            )
        return damaged

    def signatures(self) -> Signatures:
        """Return the signatures beside the manifest."""
        return stored_signatures(self.store, self.manifest.key)

    def require_trusted(self, options: StoreOptions) -> None:
        """Refuse the entry where another user could have written it, unless the options trust its store."""
        require_trusted(self.store.layout, options, self.manifest.key)

    def touch(self) -> None:
        """Stamp the entry's last use."""
        self.store.touch(self.manifest.key)

    def _from_mega(self, record: PayloadRecord, reason: str) -> bytes:
        path = self.store.layout.entry(self.manifest.key) / "model.mega"
        try:
            file = MegaFile(path)
            if file.manifest.content_digest != self.manifest.content_digest:
                raise CorruptError(f"The mega artifact {path} is of another entry", path=str(path))
            return file.payload(record.object)
        except (CorruptError, NoEntryError) as error:
            raise self._gone(record, f"{reason}; in the mega file: {error.what}") from error

    def _gone(self, record: PayloadRecord, why: str) -> PrecastError:
        key = self.manifest.key
        if not self.store.layout.entry(key).exists():  # it goes before any of its objects does
            return NoEntryError(
                f"Entry {key[:12]} was removed while it was loaded",
                "`precast prune` or a repair took it away",
                "run `precast precompile` again",
                entry=key,
            )
        return CorruptError(
            f"payload {record.name} of entry {self.manifest.key[:12]} cannot be read",
            why,
            "run `precast precompile` again: it rebuilds this entry",
            entry=self.manifest.key,
        )


def names_file(what: str | Path) -> bool:
    """Tell whether an entry is named by a mega file; opening one needs no store."""
    return Path(what).is_file()


def require_signed(source: EntrySource, keys: Sequence[PublicKey]) -> None:
    """Refuse an entry that none of some keys signed; without keys, nothing is asked for.

    Raises:
        SignatureError: It is not signed by any of them.
    """
    if keys:
        require_signature(source.manifest, source.signatures(), keys)


def require_own(source: EntrySource, options: StoreOptions) -> None:
    """Refuse an entry that another user could have written, before any of its payloads is loaded.

    Where a signature is asked for, the place does not matter: `require_signed` has bound the manifest in memory to a
    key, and every byte that a source hands out is held to that manifest.

    Raises:
        UntrustedError: Another user could have; it names each folder and file with owner and mode.
    """
    if not options.required_signatures:
        source.require_trusted(options)


def open_source(
    what: str | Path,
    store: Store,
    *,
    strict: bool = True,
    on_degraded: Callable[[Degradation], None] | None = None,
    tier: "RemoteTier | None" = None,
) -> EntrySource:
    """Open an entry by key, key prefix, tag or path of a mega file.

    Args:
        what: A key or a prefix of at least 6 hex digits, a tag, or a path.
        store: Where keys are looked up.
        strict: Refuse an entry with a missing or damaged object.
        on_degraded: Is told of each payload that did not come from its object.
        tier: What stands behind the store; an entry that only it has is pulled.

    Raises:
        NoEntryError: There is no such entry or file.
        CorruptError: The manifest is damaged.
    """
    text = str(what)
    if names_file(text):
        return MegaSource.open(Path(text))
    manifest = store.manifest(_resolved(text, store, tier))
    return StoreSource(store, manifest, strict, on_degraded or (lambda _: None))


def _resolved(text: str, store: Store, tier: "RemoteTier | None") -> str:
    if not _KEY.fullmatch(text):
        key = all_tags(store).get(text) if is_tag(text) else None
        if key is None:
            raise NoEntryError(f"there is no entry, tag or file `{text}`", "", "see `precast inspect ls`", path=text)
        return key
    try:
        return resolve_entry(store, text)
    except AmbiguousKeyError:
        raise
    except NoEntryError:
        pulled = None if tier is None else tier.pull_named(text)
        if pulled is None:
            raise
        return pulled.key
