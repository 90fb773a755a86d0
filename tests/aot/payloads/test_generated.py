"""Generated source in a package: only a digest of it stays, of what decides the code."""

import io
import zipfile

import pytest

from precast.aot.payloads.generated import in_place_of, source_digests

WRAPPER = """\
#include <vector>
// Compile cmd
// g++ /tmp/one/piece.wrapper.cpp -march=x86-64-v3
static int run(int x) {
    /*
    async_compile.triton('kernel_0', '''
    # kernel path: /tmp/one/kernel_0.py
    @triton.jit
    def kernel_0(x):
        tmp0 = x // 2
    ''', device_str='cuda')
    */
    return x; // Topologically sorted

    #define A 1
}
"""


def package(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name, data in members.items():
            out.writestr(f"piece/{name.replace('_', '.')}", data)
    return buffer.getvalue()


def test_neither_text_nor_folder_stays() -> None:
    kept = in_place_of(WRAPPER.encode())
    assert kept.startswith(b"// ")
    assert len(kept.splitlines()) == 1
    assert b"/tmp/one" not in kept
    assert b"kernel_0" not in kept


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/tmp/one", "/tmp/another"), ("-march=x86-64-v3", "-march=native"), ("# kernel path", "# other words"),
        ("return x; // Topologically sorted\n\n", "return x; // Topologically sorted\n"),
    ],
)  # fmt: skip
def test_what_says_where_the_build_ran_does_not_count(old: str, new: str) -> None:
    changed = WRAPPER.replace(old, new)
    assert changed != WRAPPER
    assert in_place_of(changed.encode()) == in_place_of(WRAPPER.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x;", "return y;"), ("x // 2", "x // 4"), ("#include <vector>", "#include <list>"),
        ("#define A 1", "#define A 2"), ("@triton.jit", "@triton.autotune"), ("device_str='cuda'", "device_str='cpu'"),
    ],
)  # fmt: skip
def test_code_counts_that_of_quoted_kernels_too(old: str, new: str) -> None:
    changed = WRAPPER.replace(old, new)
    assert changed != WRAPPER
    assert in_place_of(changed.encode()) != in_place_of(WRAPPER.encode())


def test_a_package_tells_the_digest_of_each_text() -> None:
    made = package(
        wrapper_cpp=in_place_of(b"int a;"), kernel_cpp=in_place_of(b"// int a;\nint a;"), piece_so=b"\x7fELF"
    )
    found = source_digests(made)
    assert set(found) == {"piece/wrapper.cpp", "piece/kernel.cpp"}
    assert len(set(found.values())) == 1


def test_a_package_of_an_earlier_release_tells_none() -> None:
    assert source_digests(package(wrapper_cpp=b"// source left out\n")) == {}
