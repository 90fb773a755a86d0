"""Where an entry's bytes come from: the store, or one mega file. Both hand out a manifest and checked payloads."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.mega import MegaFile
from precast.cache.store import Store
from precast.errors import CorruptError, NoEntryError

__all__ = ["Degradation", "EntrySource", "MegaSource", "StoreSource", "open_source"]

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
    """A manifest and the payloads that it names."""

    @property
    def manifest(self) -> Manifest:
        """The entry's manifest."""

    def payload(self, record: PayloadRecord) -> bytes:
        """Return the raw bytes of a payload, their digest checked."""


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
        """
        try:
            return self.store.read_object(record.object, record.bytes)
        except (CorruptError, NoEntryError) as error:
            if self.strict:
                raise self._gone(record, error.what) from error
            data = self._from_mega(record, error.what)
            self.on_degraded(Degradation(record.name, error.what))
            return data

    def _from_mega(self, record: PayloadRecord, reason: str) -> bytes:
        path = self.store.layout.entry(self.manifest.key) / "model.mega"
        try:
            return MegaFile(path).payload(record.object)
        except (CorruptError, NoEntryError) as error:
            raise self._gone(record, f"{reason}; in the mega file: {error.what}") from error

    def _gone(self, record: PayloadRecord, why: str) -> CorruptError:
        return CorruptError(
            f"payload {record.name} of entry {self.manifest.key[:12]} cannot be read",
            why,
            "run `precast precompile` again: it rebuilds this entry",
            entry=self.manifest.key,
        )


def open_source(
    what: str | Path, store: Store, *, strict: bool = True, on_degraded: Callable[[Degradation], None] | None = None
) -> EntrySource:
    """Open an entry by key, key prefix or path of a mega file.

    Args:
        what: A key or a prefix of at least 6 hex digits, or a path.
        store: Where keys are looked up.
        strict: Refuse an entry with a missing or damaged object.
        on_degraded: Is told of each payload that did not come from its object.

    Raises:
        NoEntryError: There is no such entry or file.
        CorruptError: The manifest is damaged.
    """
    text = str(what)
    if Path(text).is_file():
        return MegaSource.open(Path(text))
    if not _KEY.fullmatch(text):
        raise NoEntryError(f"there is no entry or file `{text}`", "", "see `precast inspect ls`", path=text)
    manifest = store.manifest(store.resolve_key(text))
    return StoreSource(store, manifest, strict, on_degraded or (lambda _: None))
