"""Shared objects as bytes: what a real linker wrote is read, and damaged bytes are only ever refused."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot.elf import SharedObject, without_search_path

FOLDER = "/opt/builder/of/this"


def link(folder: Path, *flags: str, code: str = "int answer(void) { return 42; }") -> bytes:
    """Make a small shared object with the C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "a.c").write_text(code, encoding="utf-8")
    out = folder / "liba.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(out), str(folder / "a.c"), *flags], check=True)
    return out.read_bytes()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library with a name, a version of its own, a search path, and a function of the C library."""
    folder = tmp_path_factory.mktemp("elf")
    (folder / "map").write_text("OWN_1.2 { global: say; };", encoding="utf-8")
    code = '#include <stdio.h>\nint say(void) { return puts(""); }'
    flags = ("-Wl,-soname,liba.so.1", f"-Wl,--version-script={folder / 'map'}", f"-Wl,-rpath,{FOLDER}:$ORIGIN/x")
    return link(folder, *flags, code=code)


def test_what_the_linker_wrote_is_read(library: bytes) -> None:
    found = SharedObject.parse(library)
    assert found.soname == "liba.so.1"
    assert "libc.so.6" in found.needed
    assert found.search_path == (FOLDER, "$ORIGIN/x")
    assert found.defined == ("OWN_1.2",)
    assert all(name == "libc.so.6" and version.startswith("GLIBC_") for name, version in found.required)
    assert found.required


def test_a_library_without_versions_has_none(tmp_path: Path) -> None:
    found = SharedObject.parse(link(tmp_path, "-nostdlib"))
    assert (found.soname, found.needed, found.search_path, found.required, found.defined) == ("", (), (), (), ())


def test_section_headers_are_not_needed(library: bytes) -> None:
    without = bytearray(library)
    without[0x28:0x30] = bytes(8)  # where they are
    without[0x3C:0x40] = bytes(4)  # how many, and which one names them
    assert SharedObject.parse(bytes(without)) == SharedObject.parse(library)


def test_a_version_that_may_be_missing_is_not_required(library: bytes) -> None:
    version = SharedObject.parse(library).required[0][1]
    weak = bytearray(library)
    at = next(i for i in range(len(library) - 4) if library[i : i + 4] == _hash(version).to_bytes(4, "little"))
    weak[at + 4] |= 2  # VER_FLG_WEAK
    assert version not in [name for _, name in SharedObject.parse(bytes(weak)).required]


def _hash(name: str) -> int:
    """The ELF hash function, with which each version is tagged."""
    value = 0
    for letter in name.encode():
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def test_without_its_search_path_nothing_of_the_folder_is_left_and_it_still_loads(
    library: bytes, tmp_path: Path
) -> None:
    clean = without_search_path(library)
    assert len(clean) == len(library)
    assert FOLDER.encode() not in clean
    before, after = SharedObject.parse(library), SharedObject.parse(clean)
    assert after.search_path == ()
    assert (after.soname, after.needed, after.required, after.defined) == (
        before.soname, before.needed, before.required, before.defined,
    )  # fmt: skip
    (tmp_path / "liba.so").write_bytes(clean)
    assert ctypes.CDLL(str(tmp_path / "liba.so")).say() >= 0


def test_a_library_without_a_search_path_stays_as_it_is(tmp_path: Path) -> None:
    plain = link(tmp_path)
    assert without_search_path(plain) == plain


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"MZ" * 100, b"\x7fELF\x01\x01\x01" + bytes(100)])
def test_what_is_no_shared_object_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ELF|cut short"):
        SharedObject.parse(data)


@given(st.data())
def test_damage_is_refused_or_harmless(library: bytes, data: st.DataObject) -> None:
    damaged = bytearray(library[: data.draw(st.integers(0, len(library)), label="length")])
    # The header and the program headers decide where everything else is read, so most of the damage goes there.
    for _ in range(data.draw(st.integers(0, 8))):
        if damaged:
            damaged[data.draw(st.integers(0, min(len(damaged), 800) - 1))] = data.draw(st.integers(0, 255))
    for read in (SharedObject.parse, without_search_path):
        try:
            read(bytes(damaged))
        except ValueError:
            continue
