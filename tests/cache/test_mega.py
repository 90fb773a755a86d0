import ctypes
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import CONSTANTS, PAYLOADS, make_manifest

from precast.cache.canonical import sha256
from precast.cache.container import DTYPES, RawTensor, serialize_tensors
from precast.cache.frames import compress
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.mega import MegaFile, read_mega_manifest, write_mega
from precast.errors import CorruptError, FormatError, NoEntryError, StoreAccessError

RAW = {sha256(raw): raw for raw in PAYLOADS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.mega"
    path.write_bytes(write_mega(make_manifest(), RAW, CONSTANTS))
    return path


tensors = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).flatmap(
        lambda shape: st.binary(
            min_size=_size(dtype, shape),
            max_size=_size(dtype, shape),
        ).map(lambda data: (dtype, tuple(shape), data))
    )
)


def _size(dtype: str, shape: list[int]) -> int:
    size = DTYPES[dtype][1]
    for length in shape:
        size *= length
    return size


@given(
    payloads=st.lists(st.binary(max_size=200), max_size=4, unique=True),
    constants=st.dictionaries(st.text(max_size=8), tensors, max_size=4),
)
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], constants: dict[str, RawTensor]
) -> None:
    manifest = make_manifest(tuple(payloads), constants)
    path = tmp_path_factory.mktemp("mega") / "model.mega"
    path.write_bytes(write_mega(manifest, {sha256(raw): raw for raw in payloads}, constants))
    mega = MegaFile(path)
    assert mega.manifest == manifest.sealed()
    assert [mega.payload(sha256(raw)) for raw in payloads] == payloads
    assert {name: mega.constant(name) for name in constants} == constants


def test_equal_content_gives_equal_bytes_in_any_order() -> None:
    manifest = make_manifest()
    backwards = {name: RAW[name] for name in reversed(RAW)}
    constants = {name: CONSTANTS[name] for name in reversed(list(CONSTANTS))}
    assert write_mega(manifest, backwards, constants) == write_mega(manifest, RAW, CONSTANTS)


def test_the_record_of_the_file_itself_is_left_out() -> None:
    with_record = replace(make_manifest(), mega=MegaRecord("ab" * 32, 7))
    assert write_mega(with_record, RAW, CONSTANTS) == write_mega(make_manifest(), RAW, CONSTANTS)


def test_any_safetensors_reader_can_list_it(path: Path) -> None:
    tensors = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert set(tensors) == {*(f"object.{name}" for name in RAW), *(f"constant.{name}" for name in CONSTANTS)}
    assert tensors["constant.scale"]["dtype"] == "F32"
    assert all(tensors[f"object.{name}"]["dtype"] == "U8" for name in RAW)
    with safetensors.safe_open(path, framework="np") as opened:
        assert Manifest.from_json(opened.metadata()["precast"].encode()) == make_manifest().sealed()


def test_the_manifest_is_read_without_the_tensors(path: Path) -> None:
    with path.open("r+b") as stream:
        data = stream.read()
        stream.seek(8 + int.from_bytes(data[:8], "little"))
        stream.write(bytes(len(data) - stream.tell()))
    assert read_mega_manifest(path) == make_manifest().sealed()


@pytest.mark.parametrize("phase", range(3))
def test_a_flipped_byte_is_found_wherever_it_is(path: Path, phase: int) -> None:
    sound = path.read_bytes()
    start = 8 + int.from_bytes(sound[:8], "little")
    # A manifest's own bytes are tried one by one in its own tests; here, some of them and all around them.
    for position in (*range(16), *range(16 + phase, start - 16, 30), *range(start - 16 + phase, len(sound), 3)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 0xFF]) + sound[position + 1 :])
        with pytest.raises(CorruptError):
            _read_all(path)


@given(length=st.integers(0, 10**6))
def test_every_truncation_is_found(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    data = write_mega(make_manifest(), RAW, CONSTANTS)
    path = tmp_path_factory.mktemp("mega") / "model.mega"
    path.write_bytes(data[: length % len(data)])
    with pytest.raises(CorruptError):
        MegaFile(path)


def test_bytes_after_the_end_are_found(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorruptError):
        MegaFile(path)


def _read_all(path: Path) -> None:
    mega = MegaFile(path)
    for record in mega.manifest.payloads:
        mega.payload(record.object)
    for constant in mega.manifest.constants:
        mega.constant(constant.name)


def forged(tmp_path: Path, tensors: dict[str, RawTensor], metadata: str | None = None) -> Path:
    """A container with a sound header of our own making."""
    path = tmp_path / "forged.mega"
    text = make_manifest().to_json().decode() if metadata is None else metadata
    path.write_bytes(serialize_tensors(tensors, {"precast": text}))
    return path


def test_a_frame_that_unpacks_to_more_than_recorded_is_refused(tmp_path: Path) -> None:
    name, bomb = next(iter(RAW)), compress(bytes(10**7))
    path = forged(tmp_path, {f"object.{name}": ("uint8", (len(bomb),), bomb)})
    with pytest.raises(CorruptError, match="announces 10000000 bytes"):
        MegaFile(path).payload(name)


def test_a_sound_frame_of_other_bytes_is_refused(tmp_path: Path) -> None:
    name, frame = next(iter(RAW)), compress(bytes(len(PAYLOADS[0])))
    path = forged(tmp_path, {f"object.{name}": ("uint8", (len(frame),), frame)})
    with pytest.raises(CorruptError, match="another digest"):
        MegaFile(path).payload(name)


def test_a_constant_of_another_shape_or_value_is_refused(tmp_path: Path) -> None:
    data = CONSTANTS["scale"][2]
    path = forged(tmp_path, {"constant.scale": ("float32", (1, 2), data), "constant.flag": ("bool", (), b"\0")})
    with pytest.raises(CorruptError, match="dtype or shape"):
        MegaFile(path).constant("scale")
    with pytest.raises(CorruptError, match="another digest"):
        MegaFile(path).constant("flag")


def test_a_member_that_the_file_lacks_is_damage_and_one_that_nobody_named_is_absent(tmp_path: Path) -> None:
    mega = MegaFile(forged(tmp_path, {}))
    with pytest.raises(CorruptError, match="lacks"):
        mega.payload(next(iter(RAW)))
    with pytest.raises(CorruptError, match="lacks"):
        mega.constant("scale")
    for absent in (lambda: mega.payload("ab" * 32), lambda: mega.constant("bias")):
        with pytest.raises(NoEntryError):
            absent()


def test_a_container_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError):
        MegaFile(forged(tmp_path, {}, metadata=""))
    newer = make_manifest().to_json().decode().replace("precast.manifest/1", "precast.manifest/2")
    with pytest.raises(FormatError) as caught:
        MegaFile(forged(tmp_path, {}, metadata=newer))
    assert caught.value.path.endswith("forged.mega")


def headed(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: object, end: object, dtype: object = "U8", shape: object = (2,)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "empty file": b"",
    "huge length": (2**40).to_bytes(8, "little"),
    "no object": headed([]),
    "metadata is a list": headed({"__metadata__": []}),
    "no place": headed({"a": {"dtype": "U8", "shape": [2]}}),
    "gap": headed({"a": tensor(1, 3)}, b"123"),
    "overlap": headed({"a": tensor(0, 2), "b": tensor(1, 3)}, b"123"),
    "beyond the end": headed({"a": tensor(0, 2)}, b"1"),
    "negative place": headed({"a": tensor(-2, 0)}),
    "negative size": headed({"a": tensor(0, 2, shape=(-2,))}, b"12"),
    "fraction": headed({"a": tensor(0, 2.0)}, b"12"),
    "wrong size": headed({"a": tensor(0, 2, shape=(3,))}, b"12"),
    "unknown dtype": headed({"a": tensor(0, 2, dtype="U7")}, b"12"),
    "dtype is a list": headed({"a": tensor(0, 2, dtype=["U8"])}, b"12"),
    "three offsets": headed({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1, 2]}}, b"12"),
    "deep nesting": (200_000).to_bytes(8, "little") + b"[" * 200_000,
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS.keys())
def test_a_malformed_header_is_damage(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.mega"
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        MegaFile(path)


def test_what_the_manifest_does_not_name_is_not_written() -> None:
    manifest = make_manifest()
    name = next(iter(RAW))
    for payloads in ({}, {name: RAW[name]}, RAW | {name: b"other"}, RAW | {"ab" * 32: b"more"}):
        with pytest.raises(ValueError, match="payloads"):
            write_mega(manifest, payloads, CONSTANTS)
    other: dict[str, RawTensor] = {**CONSTANTS, "scale": ("float32", (1,), b"\0\0\0\0")}
    for constants in ({}, other):
        with pytest.raises(ValueError, match="constants"):
            write_mega(manifest, RAW, constants)


def test_a_dtype_without_a_place_in_the_format_is_refused() -> None:
    constants: dict[str, RawTensor] = {"q": ("qint8", (1,), b"\0")}
    with pytest.raises(ValueError, match="qint8"):
        write_mega(make_manifest((), constants), {}, constants)


def test_an_absent_file_and_one_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NoEntryError):
        read_mega_manifest(tmp_path / "none.mega")
    with pytest.raises(StoreAccessError):
        read_mega_manifest(tmp_path)


def test_writing_keeps_the_bytes_alive_until_they_are_copied() -> None:
    data = bytes(range(256)) * 100
    references = sys.getrefcount(data)
    written = serialize_tensors({"a": ("uint8", (len(data),), data)}, {})
    assert written.endswith(data)
    assert sys.getrefcount(data) == references
    assert ctypes.sizeof(ctypes.c_void_p) == 8
