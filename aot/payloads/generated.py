"""The generated source of an `aoti` package: it is not shipped, and a digest of each text stands in its place.

So two builds can be compared by what they were generated from, also where the compilers that made bytes of it differ.
What says where and how a build ran, and changes nothing, is left out first: comments and with them folders and command
lines. The Triton kernels, which the wrapper quotes in comments of their own, count.
"""

import io
import re
import zipfile
from collections.abc import Iterator

from precast.cache.canonical import sha256

__all__ = ["SOURCES", "in_place_of", "source_digests"]

SOURCES = (".cpp",)
"""Suffixes of the members that hold generated text; torch 2.11 finds the metadata by their names."""

_PLACE = re.compile(rb"// left out; sha256 without comments: ([0-9a-f]{64})\n")
_COMMENT, _KERNEL_COMMENT = re.compile(r"\s*//"), re.compile(r"\s*#")
_OPENS, _CLOSES = "/*", "*/"


def in_place_of(text: bytes) -> bytes:
    """Return what a package holds in place of a generated text.

    Args:
        text: C++ as Inductor wrote it.
    """
    kept = "\n".join(_code(text.decode("utf-8", "replace")))
    return f"// left out; sha256 without comments: {sha256(kept.encode())}\n".encode()


def source_digests(package: bytes) -> dict[str, str]:
    """Return the digest of each generated text of a package, by the name of its member; none where it holds none.

    Args:
        package: The bytes of an `aoti` payload.

    Raises:
        zipfile.BadZipFile: It is no package.
    """
    with zipfile.ZipFile(io.BytesIO(package)) as members:
        named = ((name, _PLACE.fullmatch(members.read(name))) for name in members.namelist() if name.endswith(SOURCES))
        return {name: found[1].decode() for name, found in named if found is not None}


def _code(text: str) -> Iterator[str]:
    """Yield the lines of a text without comments; in the quoted Python of kernels, comments begin with `#`."""
    quoted = False
    for line in text.splitlines():
        quoted = quoted or line.strip() == _OPENS
        if line.strip() and not (_KERNEL_COMMENT if quoted else _COMMENT).match(line):
            yield line.rstrip()
        quoted = quoted and line.strip() != _CLOSES
