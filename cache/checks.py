"""Checks of an entry's files: a quick look at their sizes, and a full one at all their bytes."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from precast.cache.atomic import read_whole
from precast.cache.damage import (
    ALTERED,
    EMPTY,
    TRUNCATED,
    UNREADABLE,
    Content,
    Damage,
    diagnose,
    unreadable,
)
from precast.cache.manifest import Manifest
from precast.cache.objects import ObjectStore
from precast.cache.root import CacheRoot
from precast.errors import CorruptError, FormatError, NoEntryError, StoreAccessError

if TYPE_CHECKING:
    from precast.cache.mega import MegaFile

__all__ = ["Checks"]

_MANIFEST, _MEGA = "manifest.json", "model.mega"

# From here on it pays to check several members at a time; hashing and unpacking let other threads run.
_LARGE_BYTES = 4 * 2**20
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of the entries below one root.

    Attributes:
        root: The layout.
    """

    root: CacheRoot

    @property
    def _objects(self) -> ObjectStore:
        return ObjectStore(self.root)

    def glance(self, manifest: Manifest) -> tuple[Damage, ...]:
        """Find the members that are missing, empty or of another size than recorded, without reading them."""
        found = [self._objects.glance(name) for name in manifest.objects]
        if manifest.mega is not None:
            found.append(self._glance_mega(manifest.key, manifest.mega.bytes))
        return tuple(item for item in found if item is not None)

    def members(self, manifest: Manifest) -> tuple[Damage, ...]:
        """Read every member that a sound manifest names, and compare it with its digest."""
        checks = [partial(self._objects.check, *named) for named in _named(manifest)]
        if manifest.mega is not None:
            checks.insert(0, partial(self._mega, manifest))
        large = sum(manifest.objects.values()) >= _LARGE_BYTES
        return tuple(item for item in _run(checks, at_once=large) if item is not None)

    def without_manifest(self, key: str, why: str) -> tuple[Damage, ...]:
        """Find all damage of an entry whose manifest is damaged, as far as the mega artifact tells.

        Args:
            key: The entry's key.
            why: What was wrong with the manifest.
        """
        from precast.cache.mega import MegaFile

        path, own = self.root.mega(key), Content("mega", key)
        try:
            mega = MegaFile(path)
        except (FormatError, NoEntryError):  # only the manifest says whether there should be one
            return (self._manifest(key, why, None),)
        except StoreAccessError as error:
            return self._manifest(key, why, None), Damage(_MEGA, str(path), error.why, UNREADABLE)
        except CorruptError as error:
            return self._manifest(key, why, None), diagnose(_MEGA, path, own, error.why)
        if mega.manifest.key != key:
            return self._manifest(key, why, None), diagnose(_MEGA, path, own, "it is another entry's")
        return (self._manifest(key, why, mega), *self._of_mega(mega))

    def _manifest(self, key: str, why: str, mega: "MegaFile | None") -> Damage:
        from precast.cache.copies import manifest_from_mega

        path, size, cut = self.root.manifest(key), None, None
        with suppress(OSError):
            if mega is None:
                cut = not read_whole(path).rstrip().endswith(b"}")
            else:
                size = len(manifest_from_mega(mega))
        return diagnose(_MANIFEST, path, Content("manifest", key), why, size=size, cut=cut)

    def _of_mega(self, mega: "MegaFile") -> Iterator[Damage]:
        own = Content("mega", mega.manifest.key, mega.manifest.content_digest)
        found = mega.damage()
        if found:
            yield diagnose(_MEGA, mega.path, own, "; ".join(found))
        yield from (item for named in _named(mega.manifest) if (item := self._objects.check(*named)) is not None)

    def _mega(self, manifest: Manifest) -> Damage | None:
        record, path = manifest.mega, self.root.mega(manifest.key)
        assert record is not None
        try:
            with path.open("rb") as stream:
                found = (hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell())
        except OSError as error:
            return unreadable(_MEGA, path, error)
        if found == (record.sha256, record.bytes):
            return None
        own = Content("mega", manifest.key, manifest.content_digest)
        return diagnose(_MEGA, path, own, "its bytes have another digest", size=record.bytes)

    def _glance_mega(self, key: str, size: int) -> Damage | None:
        path = self.root.mega(key)
        try:
            present = path.stat().st_size
        except OSError as error:
            return unreadable(_MEGA, path, error)
        if present == size:
            return None
        code = EMPTY if present == 0 else TRUNCATED if present < size else ALTERED
        return Damage(_MEGA, str(path), f"it has {present} bytes instead of {size}", code)


def _named(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    """Yield name, raw size and stored size of each object that an entry needs."""
    stored = {payload.object: payload.stored_bytes for payload in manifest.payloads}
    if manifest.sources is not None:
        stored[manifest.sources.object] = manifest.sources.stored_bytes
    yield from ((name, size, stored[name]) for name, size in manifest.objects.items())


def _run(checks: "list[partial[Damage | None]]", *, at_once: bool) -> list[Damage | None]:
    """Run checks, in threads where that pays; what they found comes in their order."""
    if not at_once:
        return [check() for check in checks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        return [future.result() for future in [pool.submit(check) for check in checks]]
