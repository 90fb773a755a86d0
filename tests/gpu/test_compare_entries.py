"""The comparison of two entries: what is equal, what differs, what cannot be compared and so fails. Needs no GPU."""

import io
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gpu.compare_entries import _compare

from precast.aot.kernels import KIND, pack_kernels
from precast.aot.payloads.generated import in_place_of
from precast.aot.torch_seams.kernels import CompiledKernel
from precast.cache.manifest import PayloadRecord

Package = Callable[..., bytes]


def record(kind: str) -> PayloadRecord:
    return PayloadRecord("a" * 64 + ":1-8", kind, "0" * 64, 1, 1, 0.0, (1, 8), 1)


@pytest.fixture
def library(tmp_path: Path) -> Callable[[bytes], bytes]:
    """Link bytes of a kernel into a library under the symbols that AOTInductor gives them."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc and nm")

    def link(code: bytes) -> bytes:
        source = tmp_path / "kernel.c"
        numbers = ",".join(str(b) for b in b"\x7fELF" + code)
        source.write_text(
            f'const unsigned char __k_start[] __attribute__((section(".rodata"))) = {{{numbers}}};\n'
            'extern const unsigned char __k_end[] __attribute__((alias("none")));\n'
            "const unsigned char none[1] = {0};\n"
        )
        out = tmp_path / "piece.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-fno-toplevel-reorder", "-O0", "-o", out, source], check=True)
        return out.read_bytes()

    return link


@pytest.fixture
def package(library: Callable[[bytes], bytes]) -> Package:
    def make(text: bytes | None = b"int a;", code: bytes = b"sm_90 code") -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as members:
            members.writestr("piece/piece.wrapper.cpp", b"// nothing\n" if text is None else in_place_of(text))
            members.writestr("piece/piece.wrapper.so", library(code))
        return buffer.getvalue()

    return make


def test_equal_source_and_machine_code_pass(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(package(), package(b"// another folder\nint a;"), record("aoti"))
    assert "source: 1 of 1 equal; machine code: 1 of 1 equal" in capsys.readouterr().out


def test_another_source_or_another_machine_code_fails(package: Package) -> None:
    assert not _compare(package(), package(b"int b;"), record("aoti"))
    assert not _compare(package(), package(code=b"sm_80 code"), record("aoti"))


def test_where_there_is_nothing_to_compare_it_fails(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    assert not _compare(package(None), package(None), record("aoti"))
    assert not _compare(b"x", b"x", record("inductor"))
    assert not _compare(pack_kernels([]), pack_kernels([]), record(KIND))
    assert capsys.readouterr().out.count("NOTHING TO COMPARE") == 5


def test_kernels_of_splitting_ops_are_compared_by_source_and_code() -> None:
    def packed(source: str, cubin: bytes) -> bytes:
        return pack_kernels([CompiledKernel("m", "f", source, "key", "f", 4, 0, "O", (0,), 0, cubin)])

    assert _compare(packed("s", b"c"), packed("s", b"c"), record(KIND))
    assert not _compare(packed("s", b"c"), packed("t", b"c"), record(KIND))
    assert not _compare(packed("s", b"c"), packed("s", b"d"), record(KIND))
