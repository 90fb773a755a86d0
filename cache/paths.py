"""Absolute paths in bytes: the folders of the machine that made them, which nothing that is stored may hold.

A path is what looks like one: from a slash on, at least two names, of which the first is a usual top folder or the
whole is long enough not to be chance. What is before the slash decides too: the rest of a longer relative path, of a
web address or of a fraction is none. Archives (zip) are searched member by member, since members may be packed.
"""

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from precast.cache.canonical import Json
from precast.cache.manifest import Manifest
from precast.errors import PrecastError

__all__ = ["HARMLESS", "HeldPath", "PathSearch", "absolute_paths", "search_paths"]

# Paths that mean the same on every machine, as patterns, with the reason: they tell nothing about the one that made the
# bytes. All else counts, a distribution's folders such as /usr/lib among them: there lies another compiler elsewhere.
HARMLESS: dict[str, str] = {
    r"/proc/.+": "the kernel's view of processes",
    r"/sys/.+": "the kernel's view of devices and control groups",
    r"/dev/(null|zero|u?random|std(in|out|err)|tty|nvidia[\w/-]*)": "devices; a folder such as /dev/shm is none",
    r"/lib(64)?/ld-linux[\w.-]*": "the dynamic linker, at the place that the ABI fixes",
    r"/bin/sh": "the shell, at the place that POSIX systems keep",
    r"/usr/bin/env": "what the first line of a script names",
}

# The top folders of the file system hierarchy, and those where clusters, images and package managers put things.
_TOPS = (
    "Users", "__w", "app", "bin", "boot", "build", "builddir", "builds", "conda", "content", "data", "dev", "etc",
    "export", "fsx", "github", "gnu", "gpfs", "home", "host", "kaggle", "lib", "lib32", "lib64", "lustre", "media",
    "mnt", "net", "nfs", "nix", "opt", "private", "proc", "root", "run", "sbin", "scratch", "shared", "snap", "src",
    "srv", "storage", "sys", "tmp", "usr", "var", "venv", "volumes", "work", "workdir", "workspace",
)  # fmt: skip
_NAME = rb"[\w.+@~-]"
_PATH = re.compile(rb"/(?:(?:%s)/%s+|%s{2,}/%s{2,})(?:/%s+)*" % ("|".join(_TOPS).encode(), *[_NAME] * 4))
_SHORTEST = 12  # bytes, for a path below another top folder
_WITHIN = re.compile(rb"[\w.)\]}~%*/-]")  # a slash after one of these goes on with something
_OPTION = re.compile(rb"(?:^|[^\w-])-[ILB]$")  # an option of a compiler, with the folder right behind it
_TEXT = re.compile(rb"[\t\n\r -~]")
_ADDRESS = b"file://"

_MANIFEST = "manifest.json"
# What zipfile raises for damage, for methods that it does not know, and for members that are encrypted.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError)

_MAX_MEMBERS = 10_000
_MAX_BYTES = 4 * 2**30
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class HeldPath:
    """An absolute path that an entry holds.

    Attributes:
        member: `manifest.json` or `object <sha256>`.
        path: The path; in an archive after the name of the archive's member.
    """

    member: str
    path: str


@dataclass(frozen=True, slots=True)
class PathSearch:
    """What a search of an entry for absolute paths came to.

    Attributes:
        found: The paths.
        problem: Why not all of it was searched, or empty.
    """

    found: tuple[HeldPath, ...] = ()
    problem: str = ""

    def json(self) -> list[Json] | None:
        """Return the paths as JSON; None where not all was searched, so that nothing can be said."""
        return None if self.problem else [{"member": held.member, "path": held.path} for held in self.found]


def search_paths(manifest: Manifest, read: Callable[[str, int], bytes]) -> PathSearch:
    """Search an entry for absolute paths: its manifest and each object. A mega file holds nothing else.

    The text of the model's own modules is one of the objects. It is never loaded, but a path that somebody wrote into
    it is told like any other.

    Args:
        manifest: The entry's manifest.
        read: Returns the raw bytes of an object, by its name and size.
    """
    found = [HeldPath(_MANIFEST, path) for path in absolute_paths(manifest.to_json())]
    problem = ""
    for name, size in manifest.objects.items():
        try:
            found += [HeldPath(f"object {name}", path) for path in absolute_paths(read(name, size))]
        except (PrecastError, ValueError) as error:
            problem = problem or str(error)
    return PathSearch(tuple(found), problem)


def absolute_paths(data: bytes) -> tuple[str, ...]:
    """Return the absolute paths in some bytes, each once, in order; one in an archive as `member: path`.

    Args:
        data: Any bytes: text, a library, a pickle, an archive.

    Raises:
        ValueError: An archive is damaged, or unpacks to more than can be searched.
    """
    return tuple(dict.fromkeys(_found(data, _MAX_DEPTH, [_MAX_BYTES])))


def _found(data: bytes, depth: int, left: list[int]) -> Iterator[str]:
    if zipfile.is_zipfile(io.BytesIO(data)):
        if not depth:
            raise ValueError(f"an archive holds archives within archives, more than {_MAX_DEPTH} deep")
        yield from _in_archive(data, depth, left)
        return
    for match in _PATH.finditer(data):
        path = match[0].rstrip(b".")
        if _begins(data, match.start(), len(match[0])) and _tells(path):
            yield path.decode("ascii", "backslashreplace")


def _in_archive(data: bytes, depth: int, left: list[int]) -> Iterator[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > _MAX_MEMBERS:
                raise ValueError(f"an archive has {len(members)} members")
            for member in members:
                left[0] -= member.file_size
                if left[0] < 0:
                    raise ValueError(f"an archive unpacks to more than {_MAX_BYTES} bytes")
                yield from (f"{member.filename}: {path}" for path in _found(_read(archive, member), depth - 1, left))
    except (*_UNREADABLE, EOFError, OSError) as error:
        raise ValueError(f"an archive cannot be read: {error}") from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Read a member, and no more of it than it announces."""
    with archive.open(member) as stream:
        return stream.read(member.file_size)


def _begins(data: bytes, at: int, length: int) -> bool:
    """Tell whether a path begins at a slash, by what is before it."""
    before = data[max(0, at - 8) : at]
    if not before or not _WITHIN.match(before[-1:]) or before.endswith(_ADDRESS) or _OPTION.search(before):
        return True
    # A readable byte after an unreadable one may be the length that a pickle or a code object writes before a text.
    alone = len(before) > 1 and not _TEXT.match(before[-2:-1])
    return alone and (before[-1:] not in (b".", b"/") or before[-1] == length)


def _tells(path: bytes) -> bool:
    """Tell whether a path is long enough not to be chance, and says something about a machine."""
    text = path.decode("ascii", "backslashreplace")
    if text.split("/")[1] not in _TOPS and len(text) < _SHORTEST:
        return False
    return not any(re.fullmatch(pattern, text) for pattern in HARMLESS)
