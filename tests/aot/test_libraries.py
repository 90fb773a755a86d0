"""The system's libraries: what compiled code needs of them, and what this node has."""

import importlib.util
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot import libraries
from precast.aot.elf import SharedObject
from precast.aot.libraries import FIELDS, MARKERS, highest, needed_versions, node_version, reaches

versions = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.fixture
def required(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, list[tuple[str, str]]]:
    """What each shared object is said to need; the bytes are only a name."""
    said: dict[bytes, list[tuple[str, str]]] = {}

    class Said:
        @staticmethod
        def parse(data: bytes) -> SharedObject:
            return SharedObject("", (), (), tuple(said[data]), ())

    monkeypatch.setattr(libraries, "SharedObject", Said)
    return said


def test_the_highest_version_of_each_family_counts(required: dict[bytes, list[tuple[str, str]]]) -> None:
    required[b"a"] = [
        ("libc.so.6", "GLIBC_2.9"), ("libm.so.6", "GLIBC_2.29"), ("libc.so.6", "GLIBC_2.2.5"),
        ("libstdc++.so.6", "GLIBCXX_3.4.9"), ("libstdc++.so.6", "CXXABI_1.3"), ("libgcc_s.so.1", "GCC_3.0"),
    ]  # fmt: skip
    required[b"b"] = [("libstdc++.so.6", "GLIBCXX_3.4.30"), ("libc.so.6", "GLIBC_2.17")]
    assert needed_versions([b"a", b"b"]) == {"glibc": "2.29", "glibcxx": "3.4.30", "cxxabi": "1.3", "libgcc": "3.0"}


def test_libraries_that_torch_brings_do_not_count(required: dict[bytes, list[tuple[str, str]]]) -> None:
    required[b"a"] = [("libgomp.so.1", "GOMP_4.0"), ("libgomp.so.1", "OMP_1.0"), ("libcudart.so.13", "libcudart.so.13")]
    assert needed_versions([b"a"]) == {}
    assert needed_versions([]) == {}


def test_a_version_without_a_number_is_there_or_not(required: dict[bytes, list[tuple[str, str]]]) -> None:
    required[b"a"] = [("libc.so.6", "GLIBC_ABI_DT_RELR"), ("libstdc++.so.6", "CXXABI_FLOAT128")]
    assert needed_versions([b"a"]) == {MARKERS: "CXXABI_FLOAT128 GLIBC_ABI_DT_RELR"}


def test_what_no_release_promises_is_refused(required: dict[bytes, list[tuple[str, str]]]) -> None:
    required[b"a"] = [("libc.so.6", "GLIBC_PRIVATE")]
    with pytest.raises(ValueError, match="GLIBC_PRIVATE of libc"):
        needed_versions([b"a"])


def test_a_real_library_of_this_system_runs_on_it() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    folder = Path(str(spec.origin)).parent / "lib"
    needed = needed_versions([(folder / "libc10.so").read_bytes()])
    assert {"glibc", "glibcxx", "cxxabi"} <= set(needed)
    assert all(reaches(value, node_version(field)) for field, value in needed.items() if field != MARKERS)


def test_the_node_s_c_library_is_the_one_python_runs_on() -> None:
    assert node_version("glibc") == platform.libc_ver()[1]


def test_every_version_of_the_node_is_a_number_and_the_markers_are_not() -> None:
    for field in FIELDS:
        assert reaches("0", node_version(field)), field
    assert "PRIVATE" not in node_version(MARKERS)
    assert all(not name[-1].isdigit() or "_" in name for name in node_version(MARKERS).split())


def test_a_library_that_is_not_there_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_defined", lambda library: ())
    assert [node_version(f) for f in ("glibcxx", "cxxabi", "libgcc")] == ["absent"] * 3
    assert node_version(MARKERS) == ""


@pytest.mark.parametrize("said", [None, "musl 1.2.5", ValueError("unrecognized configuration name")])
def test_another_c_library_is_absent(said: str | ValueError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def confstr(name: str) -> str | None:
        if isinstance(said, ValueError):
            raise said
        return said

    monkeypatch.setattr("os.confstr", confstr)
    assert node_version("glibc") == "absent"


def test_a_library_that_cannot_be_opened_defines_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "_mapped", lambda library: tmp_path / library)
    assert libraries._defined.__wrapped__("libstdc++.so.6") == ()
    (tmp_path / "libstdc++.so.6").write_bytes(b"no library")
    assert libraries._defined.__wrapped__("libstdc++.so.6") == ()
    monkeypatch.setattr(libraries, "_mapped", lambda library: None)
    assert libraries._defined.__wrapped__("libprecast_has_none.so.6") == ()


@pytest.mark.parametrize(
    ("needed", "offered", "enough"),
    [
        ("2.34", "2.34", True), ("2.34", "2.36", True), ("2.34", "2.9", False), ("2.9", "2.34", True),
        ("3.4.30", "3.4", False), ("3.4", "3.4.30", True), ("2.34", "absent", False), ("soon", "2.34", False),
        ("12.0", "13.0", True), ("13.0", "12.9", False),
    ],
)  # fmt: skip
def test_versions_are_compared_number_by_number(needed: str, offered: str, enough: bool) -> None:
    assert reaches(needed, offered) is enough


@given(versions, versions)
def test_of_two_versions_the_highest_reaches_both(one: str, other: str) -> None:
    assert reaches(one, highest(one, other))
    assert reaches(other, highest(one, other))
    assert highest(one, other) in (one, other)
