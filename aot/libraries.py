"""The system's libraries: which versions a payload's shared objects need, and which ones this node has.

A version is read off the symbol versions that the linker compares too, such as `GLIBC_2.34`. Only the libraries below
count: torch brings the others itself, OpenMP's among them, and torch has a stamp of its own.
"""

import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from precast.aot.elf import SharedObject

__all__ = ["FIELDS", "MARKERS", "highest", "needed_versions", "node_version", "reaches"]

# Family of symbol versions: the stamp, and the library that offers it.
_FAMILIES: Mapping[str, tuple[str, str]] = {
    "GLIBC": ("glibc", "libc.so.6"),
    "GLIBCXX": ("glibcxx", "libstdc++.so.6"),
    "CXXABI": ("cxxabi", "libstdc++.so.6"),
    "GCC": ("libgcc", "libgcc_s.so.1"),
}
FIELDS = tuple(field for field, _ in _FAMILIES.values())
MARKERS = "abi"  # the stamp of versions without a number, such as GLIBC_ABI_DT_RELR: each is there or not

_ABSENT = "absent"
_NUMBERED = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")
_PRIVATE = "_PRIVATE"


def needed_versions(libraries: Iterable[bytes]) -> dict[str, str]:
    """Return what shared objects need of the system, as stamps: for each family the highest version of all of them.

    Args:
        libraries: The bytes of each shared object.

    Raises:
        ValueError: One is no shared object, or needs what no version of a system promises.
    """
    found: dict[str, str] = {}
    markers: set[str] = set()
    for data in libraries:
        for library, version in SharedObject.parse(data).required:
            numbered = _NUMBERED.fullmatch(version)
            family = version.partition("_")[0]
            if family not in _FAMILIES:
                continue
            if version.endswith(_PRIVATE):
                raise ValueError(f"it needs {version} of {library}, which every release may change")
            if numbered is None:
                markers.add(version)
            else:
                field = _FAMILIES[family][0]
                found[field] = highest(found.get(field, "0"), numbered[2])
    return {**found, **({MARKERS: " ".join(sorted(markers))} if markers else {})}


def node_version(field: str) -> str:
    """Return what this node has: the version of a stamp, or all markers; `absent` where the library is not there.

    Args:
        field: One of `FIELDS`, or `MARKERS`.
    """
    if field == "glibc":
        return _glibc()
    if field == MARKERS:
        libraries = dict.fromkeys(library for _, library in _FAMILIES.values())
        defined = [version for library in libraries for version in _defined(library)]
        return " ".join(sorted(v for v in defined if not _NUMBERED.fullmatch(v) and not v.endswith(_PRIVATE)))
    family, library = next((name, lib) for name, (known, lib) in _FAMILIES.items() if known == field)
    versions = [m[2] for v in _defined(library) if (m := _NUMBERED.fullmatch(v)) and m[1] == family]
    return highest(*versions) if versions else _ABSENT


def reaches(needed: str, offered: str) -> bool:
    """Tell whether a dotted version is at least another; what is no version reaches nothing."""
    try:
        return _numbers(offered) >= _numbers(needed)
    except ValueError:
        return False


def highest(*versions: str) -> str:
    """Return the highest of some dotted versions."""
    return max(versions, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def _glibc() -> str:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):  # another C library
        return _ABSENT
    return version if name == "glibc" else _ABSENT


@cache
def _defined(library: str) -> tuple[str, ...]:
    """Return the versions that a system library defines, read from the very file that this process uses.

    A process never changes such a library for another, so each is read once.
    """
    path = _mapped(library) or _opened(library)
    if path is None:
        return ()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return SharedObject.parse(data).defined
    except (OSError, ValueError):
        return ()


def _opened(library: str) -> Path | None:
    """Let the linker find a library of the system; torch needs each of them, and would open the same file."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return None
    return _mapped(library)


def _mapped(library: str) -> Path | None:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if library in line)
    return next((Path(path) for path in paths if Path(path).name.startswith(library)), None)
