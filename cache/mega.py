"""The mega artifact: one file that holds an entry whole, and that anyone can list without running anything.

It is a safetensors container. The header's metadata holds the manifest and, in a file that was exported, the entry's
signatures; each payload and the model's sources are zstd frames in byte tensors, and each baked constant is a tensor.
Reading needs the header alone; every byte that is handed out has been checked against the manifest, and the manifest
against its own digest.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from precast.cache.canonical import sha256
from precast.cache.container import DTYPES, RawTensor, TensorPlace, read_header, serialize_tensors
from precast.cache.frames import compress, decompress
from precast.cache.manifest import ConstantRecord, Manifest
from precast.cache.signatures import UNSIGNED, read_signatures
from precast.errors import CorruptError, NoEntryError, PrecastError, StoreAccessError

__all__ = ["SIGNATURES", "MegaFile", "pack_mega", "read_mega_manifest", "write_mega"]

SIGNATURES = "precast.signatures"

_METADATA = "precast"

_HINT = "Run `precast precompile` again: it rebuilds a damaged entry"


def write_mega(
    manifest: Manifest,
    payloads: Mapping[str, bytes],
    constants: Mapping[str, RawTensor],
    frames: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return the bytes of a mega artifact.

    Args:
        manifest: The manifest; its `mega` record is left out, because a file cannot hold its own digest.
        payloads: Raw bytes of each object that the manifest names, its sources included, by SHA-256.
        constants: dtype, shape and little-endian bytes of each constant that the manifest names.
        frames: Compressed payloads that are there already, by SHA-256; the others are compressed here. Two versions
            of zstd may compress to different bytes, so a file is only made again of its own frames.

    Raises:
        ValueError: What is given is not what the manifest names, or a dtype has no place in the format.
    """
    _require_payloads(manifest, payloads)
    _require_constants(manifest, constants)
    ready = frames or {}
    packed = {name: ready[name] if name in ready else compress(raw) for name, raw in payloads.items()}
    return pack_mega(replace(manifest, mega=None).to_json(), packed, constants)


def pack_mega(document: bytes, frames: Mapping[str, bytes], constants: Mapping[str, RawTensor]) -> bytes:
    """Return the bytes of a mega artifact of parts that have been checked.

    Args:
        document: The manifest as JSON, without a `mega` record.
        frames: Each object as it is stored, by the SHA-256 of its raw bytes.
        constants: Each constant as of `write_mega`.
    """
    tensors: dict[str, RawTensor] = {_constant_name(name): tensor for name, tensor in constants.items()}
    tensors |= {_object_name(name): ("uint8", (len(frame),), frame) for name, frame in frames.items()}
    return serialize_tensors(tensors, {_METADATA: document.decode("utf-8")})


def read_mega_manifest(path: Path) -> Manifest:
    """Return the manifest in a mega artifact, reading nothing but the header.

    Raises:
        NoEntryError: There is no such file.
        CorruptError: The header is damaged.
        FormatError: The manifest has a format that this version does not read.
        StoreAccessError: The file cannot be read.
    """
    return MegaFile(path).manifest


class MegaFile:
    """A mega artifact on disk.

    Attributes:
        path: The file.
        document: The manifest as it is written there.
        manifest: The entry's manifest.
        signatures: Who signed it.

    Args:
        path: The file.

    Raises:
        NoEntryError: There is no such file.
        CorruptError: The header is damaged.
        FormatError: The manifest has a format that this version does not read.
        StoreAccessError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with _opened(path) as stream:
                self._tensors, metadata = read_header(stream)
        except ValueError as error:
            raise _corrupt(path, str(error)) from error
        self.document = metadata.get(_METADATA, "").encode("utf-8")
        try:
            self.manifest = Manifest.from_json(self.document)
        except CorruptError as error:
            error.path = str(path)
            raise
        signed = metadata.get(SIGNATURES)
        self.signatures = UNSIGNED if signed is None else read_signatures(signed.encode("utf-8", "replace"))

    def damage(self) -> tuple[str, ...]:
        """Read every member that the manifest names, and name each one that is not what it must be."""
        found = []
        reads: list[Callable[[], object]] = [partial(self.payload, name) for name in self.manifest.objects]
        reads += [partial(self.constant, record.name) for record in self.manifest.constants]
        for read in reads:
            try:
                read()
            except PrecastError as error:
                found.append(error.why)
        return tuple(found)

    def payload(self, sha256: str) -> bytes:
        """Return the raw bytes of a payload or of the sources, after checking size and digest.

        Raises:
            NoEntryError: The manifest names no such object.
            CorruptError: The file lacks it, or it is damaged.
        """
        size = self.manifest.objects.get(sha256)
        if size is None:
            raise _unknown(self.path, f"object {sha256}")
        try:
            raw = decompress(self.frame(sha256), size)
        except ValueError as error:
            raise _corrupt(self.path, f"object {sha256}: {error}") from error
        self._require_digest(f"object {sha256}", raw, sha256)
        return raw

    def frame(self, sha256: str) -> bytes:
        """Return the stored bytes of an object, unchecked.

        Raises:
            CorruptError: The file lacks it.
        """
        return self._bytes(_object_name(sha256))[1]

    def constant(self, name: str) -> RawTensor:
        """Return dtype, shape and little-endian bytes of a constant, after checking them.

        Raises:
            NoEntryError: The manifest names no such constant.
            CorruptError: The file lacks it, or it is damaged.
        """
        record = self._constant_record(name)
        tensor, data = self._bytes(_constant_name(name))
        if (tensor.dtype, tensor.shape) != (DTYPES.get(record.dtype, ("",))[0], record.shape):
            raise _corrupt(self.path, f"constant {name} has another dtype or shape than the manifest says")
        self._require_digest(f"constant {name}", data, record.sha256)
        return record.dtype, record.shape, data

    def _constant_record(self, name: str) -> ConstantRecord:
        found = next((record for record in self.manifest.constants if record.name == name), None)
        if found is None:
            raise _unknown(self.path, f"constant {name}")
        return found

    def _bytes(self, name: str) -> tuple[TensorPlace, bytes]:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise _corrupt(self.path, f"it lacks {name}")
        with _opened(self.path) as stream:
            stream.seek(tensor.begin)
            return tensor, stream.read(tensor.end - tensor.begin)

    def _require_digest(self, member: str, data: bytes, expected: str) -> None:
        if sha256(data) != expected:
            raise _corrupt(self.path, f"{member} has another digest")


def _require_payloads(manifest: Manifest, payloads: Mapping[str, bytes]) -> None:
    named = manifest.objects
    given = {sha256(raw): len(raw) for raw in payloads.values()}
    if named != given or set(payloads) != set(given):
        raise ValueError("The payloads are not the objects that the manifest names")


def _require_constants(manifest: Manifest, constants: Mapping[str, RawTensor]) -> None:
    named = {record.name: (record.dtype, record.shape, record.sha256) for record in manifest.constants}
    given = {name: (dtype, tuple(shape), sha256(data)) for name, (dtype, shape, data) in constants.items()}
    if named != given:
        raise ValueError("The constants are not those that the manifest names")
    unknown = sorted({dtype for dtype, _, _ in given.values()} - set(DTYPES))
    if unknown:
        raise ValueError(f"A mega artifact cannot hold constants of {', '.join(unknown)}")


def _object_name(name: str) -> str:
    return f"object.{name}"


def _constant_name(name: str) -> str:
    return f"constant.{name}"


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NoEntryError(f"{path} does not exist", hint="Run `precast precompile`", path=str(path)) from error
    except OSError as error:
        raise StoreAccessError(
            f"{path} cannot be read", error.strerror or str(error), "Let this user read it", path=str(path)
        ) from error


def _corrupt(path: Path, why: str) -> CorruptError:
    return CorruptError(f"The mega artifact {path} is damaged", why, _HINT, path=str(path))


def _unknown(path: Path, member: str) -> NoEntryError:
    return NoEntryError(
        f"The mega artifact holds no {member}", f"the manifest in {path} does not name it", path=str(path)
    )
