"""Damage: what is wrong with a file of an entry, in words for people and in codes for programs."""

import errno
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precast.cache.canonical import Json
from precast.cache.frames import frame_digest
from precast.cache.manifest import Manifest
from precast.errors import PrecastError

__all__ = [
    "ALTERED",
    "EMPTY",
    "FOREIGN",
    "MISSING",
    "TRUNCATED",
    "UNREADABLE",
    "Content",
    "Damage",
    "content_of",
    "diagnose",
    "unreadable",
]

MISSING, EMPTY, TRUNCATED, ALTERED = "missing", "empty", "truncated", "altered"
FOREIGN, UNREADABLE = "foreign", "unreadable"

_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Damage:
    """One member of an entry that is not what it must be.

    Attributes:
        member: `manifest.json`, `model.mega` or `object <sha256>`.
        path: The file.
        reason: What is wrong with it.
        code: `missing`, `empty`, `truncated` (shorter than recorded), `altered` (other bytes), `foreign` (the sound
            bytes of something else) or `unreadable` (nothing is known about its bytes).
    """

    member: str
    path: str
    reason: str
    code: str

    @property
    def sentence(self) -> str:
        """Say it in one sentence, such as `model.mega is missing`."""
        return f"{self.member} {self.reason.removeprefix('it ')}"

    def json(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {"member": self.member, "code": self.code, "reason": self.reason, "path": self.path}

    def __str__(self) -> str:
        """Name the member and what is wrong with it."""
        return f"{self.member}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds, whatever its name says.

    Attributes:
        kind: `object`, `manifest` or `mega`.
        name: The object's SHA-256, or the entry's key.
        build: Content digest of a mega artifact, which tells two builds of one entry apart; else empty.
    """

    kind: str
    name: str
    build: str = ""

    def __str__(self) -> str:
        """Word it for people."""
        if self.kind == "object":
            return f"object {self.name}"
        return f"the {'mega artifact' if self.kind == 'mega' else 'manifest'} of entry {self.name[:12]}"


def content_of(path: Path) -> Content | None:
    """Find out what a file holds, if that is sound in itself; of a mega artifact, only its header is looked at."""
    from precast.cache.mega import MegaFile

    with suppress(OSError, ValueError, PrecastError), path.open("rb") as stream:
        start = stream.read(len(_ZSTD))
        if start == _ZSTD:
            return Content("object", frame_digest(stream))
        if start.startswith(b"{"):
            return Content("manifest", Manifest.from_json(start + stream.read()).key)
        manifest = MegaFile(path).manifest
        return Content("mega", manifest.key, manifest.content_digest)
    return None


def diagnose(
    member: str, path: Path, own: Content, why: str, *, size: int | None = None, cut: bool | None = None
) -> Damage:
    """Say what is wrong with a file that did not pass its check.

    Args:
        member: As of `Damage`.
        path: The file.
        own: What it should hold.
        why: What the check said.
        size: Its size as it is recorded somewhere; None where it is not.
        cut: Whether the file's own structure shows that its end is missing; None where it does not tell, and then the
            recorded size decides.
    """
    try:
        present = path.stat().st_size
    except OSError as error:
        return unreadable(member, path, error)
    if not path.is_file():
        return Damage(member, str(path), "it is a folder or a device, not a file", FOREIGN)
    recorded = "" if size is None else f" instead of {size}"
    if present == 0:
        return Damage(member, str(path), f"it is empty: 0 bytes{recorded}", EMPTY)
    found = content_of(path)
    if found is not None and found != own:
        other = " in another build" if (found.kind, found.name) == (own.kind, own.name) else ""
        return Damage(member, str(path), f"it holds {found}{other}", FOREIGN)
    shorter = size is not None and present < size
    if shorter if cut is None else cut:
        told = f"it has {present} bytes{recorded}" if shorter else f"it ends too early, after {present} bytes"
        return Damage(member, str(path), f"it is cut short: {told}", TRUNCATED)
    longer = f"; it has {present} bytes{recorded}" if size is not None and present != size else ""
    return Damage(member, str(path), f"{why}{longer}", ALTERED)


def unreadable(member: str, path: Path, error: OSError) -> Damage:
    """Say why a file could not be read: it is missing, or the system refuses."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return Damage(member, str(path), "it is missing", MISSING)
    if error.errno == errno.EISDIR:
        return Damage(member, str(path), "it is a folder or a device, not a file", FOREIGN)
    return Damage(member, str(path), f"it cannot be read: {error.strerror or error}", UNREADABLE)
