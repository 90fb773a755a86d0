"""Shared objects as bytes: the names and symbol versions that their dynamic section holds. Nothing is ever loaded.

Read as the dynamic linker reads it: program headers, the dynamic section, the string table and the version tables; a
stripped library need not have section headers. Format: the generic ABI (gABI) and, for versions, the Linux Standard
Base, "Symbol Versioning". Only 64-bit little-endian files are read: no other machine runs precast's payloads.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["SharedObject", "without_search_path"]

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
_VERDEF_AT, _VERDEF_COUNT, _VERNEED_AT, _VERNEED_COUNT = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_BASE, _WEAK = 1, 2  # flags of a version: it is the file's own name; it need not be there
_MOST = 4096  # names in one table; libstdc++ defines fewer than a hundred
_NULL = 0


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What a shared object says about itself and about the libraries that it needs.

    Attributes:
        soname: Its own name, or empty.
        needed: Names of the libraries that it is linked against.
        search_path: Folders in which the linker shall look for them, `RPATH` and `RUNPATH` alike.
        required: Symbol versions that it cannot do without, as pairs of a library and a version.
        defined: Symbol versions that it offers.
    """

    soname: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    required: tuple[tuple[str, str], ...]
    defined: tuple[str, ...]

    @classmethod
    def parse(cls, data: bytes | mmap.mmap) -> "SharedObject":
        """Read a shared object.

        Args:
            data: The file's bytes, or the file itself as mapped into memory; little of it is looked at.

        Raises:
            ValueError: The bytes are no shared object, or what they say leads outside them.
        """
        file = _File(data)
        paths = [p for tag in (_RPATH, _RUNPATH) for text in file.texts(tag) for p in text.split(":") if p]
        return cls(
            soname=next(iter(file.texts(_SONAME)), ""),
            needed=tuple(file.texts(_NEEDED)),
            search_path=tuple(paths),
            required=tuple(file.required()),
            defined=tuple(file.defined()),
        )


def without_search_path(data: bytes) -> bytes:
    """Return a shared object that names no folders to look for its libraries in; some compilers always add one.

    Raises:
        ValueError: As `SharedObject.parse`.
    """
    file = _File(data)
    out = bytearray(data)
    kept = []
    for tag, value in file.dynamic:
        if tag in (_RPATH, _RUNPATH):
            start, text = file.text_at(value)
            # The linker lets strings share their ends, but no symbol or library has a slash in its name.
            end = start + len(text.rpartition(b"/")[0])
            out[start:end] = bytes(end - start)
        else:
            kept.append((tag, value))
    kept += [(_NULL, 0)] * (len(file.dynamic) - len(kept))
    for number, entry in enumerate(kept):
        _ENTRY.pack_into(out, file.dynamic_at + number * _ENTRY.size, *entry)
    return bytes(out)


class _File:
    """A shared object, its segments and its dynamic section."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it is no 64-bit little-endian ELF file")
        header = self._unpack(_HEADER, 0)
        at, size, count = header[4], header[8], header[9]
        if size != _SEGMENT.size:
            raise ValueError(f"its program headers have {size} bytes each")
        segments = [self._unpack(_SEGMENT, at + number * size) for number in range(count)]
        # Virtual address, offset in the file and bytes in the file of what is mapped.
        self._mapped = [(s[3], s[2], s[5]) for s in segments if s[0] == _LOAD]
        found = [s for s in segments if s[0] == _DYNAMIC]
        if len(found) != 1:
            raise ValueError("it has no dynamic section")
        self.dynamic_at = int(found[0][2])
        self.dynamic = self._dynamic_entries(int(found[0][5]))
        table = dict(self.dynamic)
        self._strings_at = self._offset(table.get(_STRTAB, 0))
        self._strings_end = self._strings_at + table.get(_STRSZ, 0)

    def texts(self, tag: int) -> Iterator[str]:
        """Give every text that the dynamic section holds under a tag."""
        return (self._text(value) for found, value in self.dynamic if found == tag)

    def required(self) -> Iterator[tuple[str, str]]:
        """Give the library and the name of each version that must be there."""
        for at in self._chain(_VERNEED_AT, _VERNEED_COUNT, _VERNEED, 4):
            _, count, library, aux, _ = self._unpack(_VERNEED, at)
            for name_at in self._steps(at + aux, count, _VERNAUX, 4):
                _, flags, _, name, _ = self._unpack(_VERNAUX, name_at)
                if not flags & _WEAK:
                    yield self._text(library), self._text(name)

    def defined(self) -> Iterator[str]:
        """Give the name of each version that is defined; the file's own name, which comes first, is none."""
        for at in self._chain(_VERDEF_AT, _VERDEF_COUNT, _VERDEF, 6):
            _, flags, _, _, _, aux, _ = self._unpack(_VERDEF, at)
            if not flags & _BASE:
                yield self._text(self._unpack(_VERDAUX, at + aux)[0])

    def text_at(self, value: int) -> tuple[int, bytes]:
        """Return the place and the bytes of a text of the string table."""
        start = self._strings_at + value
        end = self._data.find(b"\0", start, self._strings_end)
        if not self._strings_at <= start < self._strings_end <= len(self._data) or end < 0:
            raise ValueError("a name lies outside its string table")
        return start, self._data[start:end]

    def _text(self, value: int) -> str:
        return self.text_at(value)[1].decode("utf-8", "backslashreplace")

    def _dynamic_entries(self, size: int) -> list[tuple[int, int]]:
        entries: list[tuple[int, int]] = []
        for number in range(size // _ENTRY.size):
            tag, value = self._unpack(_ENTRY, self.dynamic_at + number * _ENTRY.size)
            if tag == _NULL:
                break
            entries.append((tag, value))
        return entries

    def _chain(self, at_tag: int, count_tag: int, record: struct.Struct, step_field: int) -> Iterator[int]:
        table = dict(self.dynamic)
        if at_tag in table:
            yield from self._steps(self._offset(table[at_tag]), table.get(count_tag, 0), record, step_field)

    def _steps(self, at: int, count: int, record: struct.Struct, step_field: int) -> Iterator[int]:
        """Walk a chain of records, each of which says how far off the next one lies."""
        if count > _MOST:
            raise ValueError(f"a table announces {count} names")
        for _ in range(count):
            yield at
            at += self._unpack(record, at)[step_field]

    def _offset(self, address: int) -> int:
        for start, offset, size in self._mapped:
            if start <= address < start + size:
                return int(address - start + offset)
        raise ValueError("an address of its dynamic section is not mapped from the file")

    def _unpack(self, record: struct.Struct, at: int) -> tuple[Any, ...]:
        if not 0 <= at <= len(self._data) - record.size:
            raise ValueError("it is cut short, or leads outside itself")
        return record.unpack_from(self._data, at)
