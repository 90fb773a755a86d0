"""What lies in a remote, checked as it is read: manifests, objects, signatures, and which entries answered a request.

The layout is that of a local store. Objects and entries are never changed; a request's entries are one file each, so
that nothing is read, changed and written back. Whatever is read has a bound, and is compared with its digest or its
name before anybody sees it. What was found damaged is remembered, so that it can be replaced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from precast.cache.canonical import canonical_json, sha256
from precast.cache.fields import HEX64
from precast.cache.frames import MAX_RAW_BYTES, decompress
from precast.cache.manifest import Manifest
from precast.cache.remote_calls import Calls, Limits
from precast.cache.remote_errors import shown_url
from precast.cache.remote_files import Files, open_files, patience
from precast.cache.root import CacheRoot
from precast.cache.signatures import Signatures, read_signatures
from precast.errors import CorruptError, FormatError

__all__ = [
    "CANDIDATES",
    "RemoteObject",
    "RemoteStore",
    "longest_frame",
    "manifest_name",
    "mega_name",
    "object_name",
    "pointer_name",
    "signatures_name",
]

CANDIDATES = 16

_LAYOUT = CacheRoot(Path())
_POINTER = canonical_json({"schema": "precast.answer/1"})
_MAX_MANIFEST = 256 * 2**20
_MAX_SIGNATURES = 2**20
_MAX_ENTRY = 64 * 2**30
_HINT = "Run `precast precompile` where the remote may be written: it replaces a damaged entry"


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object of a remote, found sound.

    Attributes:
        raw: What it holds.
        frame: The file.
    """

    raw: bytes
    frame: bytes


class RemoteStore:
    """The files of one remote.

    Attributes:
        url: Its address as it may be shown.
        damaged: Names of files that were found damaged, or whose entry lacks something.

    Args:
        url: Its address.
        limits: How long it may take.
        files: Its files, if not those of the address.

    Raises:
        ConfigValueError: It is no address of a remote, or it holds credentials.
    """

    def __init__(self, url: str, limits: Limits | None = None, files: Files | None = None) -> None:
        bounds = patience(url, limits or Limits())
        self.url = shown_url(url)
        self.damaged: set[str] = set()
        self._files = files or open_files(url, bounds)
        self._calls = Calls(url, bounds)

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Return the bytes of some files; None for those that are not there."""
        found = self._calls.all("looking for files", [partial(self._files.size, name) for name in names])
        return dict(zip(names, found, strict=True))

    def entries(self) -> tuple[str, ...]:
        """Return the keys of all entries, sorted."""
        return tuple(sorted(self._keys_in(_LAYOUT.entries)))

    def candidates(self, request_digest: str) -> tuple[str, ...]:
        """Return the keys of entries that answered a request, the latest first where the remote tells; 16 at most."""
        return tuple(self._keys_in(_LAYOUT.requests / request_digest, latest_first=True))[:CANDIDATES]

    def manifest(self, key: str) -> Manifest | None:
        """Read an entry's manifest; None where there is no such entry.

        Raises:
            CorruptError: It is damaged, or another entry's.
            FormatError: It has a format that this version does not read, or could not store.
        """
        name = manifest_name(key)
        data = self._calls.one(f"reading {name}", partial(self._file, name, _MAX_MANIFEST, key))
        if data is None:
            return None
        try:
            manifest = Manifest.from_json(data)
        except FormatError:
            raise
        except CorruptError as error:
            self.fail(name, error.why, key)
        if manifest.key != key:
            self.fail(name, f"it belongs to entry {manifest.key[:12]}", key)
        if sum(manifest.objects.values()) > _MAX_ENTRY:
            self.fail(name, f"its objects would take more than {_MAX_ENTRY} bytes", key)
        return manifest

    def signatures(self, key: str) -> Signatures:
        """Read who signed an entry; none where nobody did."""
        name = signatures_name(key)
        try:
            data = self._calls.one(f"reading {name}", partial(self._file, name, _MAX_SIGNATURES, ""))
        except CorruptError as error:
            return Signatures(damage=error.why)
        return Signatures() if data is None else read_signatures(data)

    def objects(self, sizes: Mapping[str, int], key: str) -> dict[str, RemoteObject]:
        """Read objects side by side.

        Args:
            sizes: The raw size of each, by SHA-256.
            key: The entry that needs them, for errors.

        Raises:
            CorruptError: One is missing or damaged.
        """
        jobs = [partial(self._object, name, size, key) for name, size in sizes.items()]
        found = self._calls.all("reading objects", jobs, sum(map(longest_frame, sizes.values())))
        return dict(zip(sizes, found, strict=True))

    def sound_frame(self, name: str, size: int) -> bytes | None:
        """Return the file of an object that is there and sound, else None."""
        try:
            return self.objects({name: size}, "")[name].frame
        except CorruptError:
            return None

    def mega(self, manifest: Manifest) -> bytes | None:
        """Read an entry's mega artifact, which is only there where it cannot be made of the objects.

        Raises:
            CorruptError: It is damaged.
        """
        if manifest.mega is None:
            return None
        name, record = mega_name(manifest.key), manifest.mega
        job = partial(self._file, name, record.bytes, manifest.key)
        data = self._calls.all(f"reading {name}", [job], record.bytes)[0]
        if data is not None and (len(data) != record.bytes or sha256(data) != record.sha256):
            self.fail(name, "its bytes have another digest", manifest.key)
        return data

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files side by side, over those that are there."""
        jobs = [partial(self._files.write, name, data) for name, data in files.items()]
        self._calls.all("writing", jobs, sum(map(len, files.values())))
        self.damaged.difference_update(files)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file; False where one was there already, which then stays."""
        return self._calls.all(f"writing {name}", [partial(self._files.create, name, data)], len(data))[0]

    def point(self, names: Iterable[str]) -> None:
        """Write pointers: files that say by their names which entry answers which request."""
        self.write(dict.fromkeys(names, _POINTER))

    def fail(self, name: str, why: str, key: str) -> NoReturn:
        """Remember that a file is damaged, and its entry with it.

        Raises:
            CorruptError: Always.
        """
        self.damaged.add(name)
        if key:
            self.damaged.add(manifest_name(key))
        owner = f"Entry {key[:12]} in the remote {self.url}" if key else f"A file in the remote {self.url}"
        raise CorruptError(f"{owner} is damaged", f"{name}: {why}", _HINT, entry=key, path=f"{self.url}/{name}")

    def _file(self, name: str, limit: int, key: str) -> bytes | None:
        try:
            return self._files.read(name, limit)
        except CorruptError as error:
            self.fail(name, error.why, key)

    def _object(self, sha: str, size: int, key: str) -> RemoteObject:
        name = object_name(sha)
        frame = self._file(name, longest_frame(size), key)
        if frame is None:
            self.fail(name, "it is missing", key)
        try:
            raw = decompress(frame, size)
        except ValueError as error:
            self.fail(name, str(error), key)
        if sha256(raw) != sha:
            self.fail(name, "its bytes have another digest", key)
        return RemoteObject(raw, frame)

    def _keys_in(self, folder: Path, *, latest_first: bool = False) -> list[str]:
        name = folder.as_posix()
        found = self._calls.one(f"listing {name}", partial(self._files.names, name, latest_first=latest_first))
        return [item for item in found if HEX64.fullmatch(item)]


def longest_frame(size: int) -> int:
    """Return how many bytes a frame of `size` raw bytes can have at most; zstd promises less than a part in 200."""
    return min(size, MAX_RAW_BYTES) + size // 200 + 4096


def object_name(sha: str) -> str:
    """Return the name of an object."""
    return _LAYOUT.object(sha).as_posix()


def manifest_name(key: str) -> str:
    """Return the name of an entry's manifest."""
    return _LAYOUT.manifest(key).as_posix()


def signatures_name(key: str) -> str:
    """Return the name of an entry's signatures."""
    return (_LAYOUT.entry(key) / "signatures.json").as_posix()


def mega_name(key: str) -> str:
    """Return the name of an entry's mega artifact."""
    return _LAYOUT.mega(key).as_posix()


def pointer_name(request_digest: str, key: str) -> str:
    """Return the name of the file that says that an entry answered a request."""
    return (_LAYOUT.requests / request_digest / key).as_posix()
