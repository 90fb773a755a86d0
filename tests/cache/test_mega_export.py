"""Exporting: one file to ship, whole or not at all, with the entry's signatures in its header."""

import io
import json
import os
import stat
from pathlib import Path

import pytest
import safetensors
from tests.cache.keys import private_key
from tests.cache.support import CONSTANTS, PAYLOADS, make_manifest, numbered, publish

from precast.cache import mega_export
from precast.cache.canonical import sha256
from precast.cache.container import header_with
from precast.cache.mega import MegaFile
from precast.cache.mega_export import export_mega
from precast.cache.signatures import UNSIGNED, require_signature
from precast.cache.signing import sign_entry, stored_signatures
from precast.cache.store import Store
from precast.errors import CorruptError, NoEntryError, SignatureError, StoreAccessError

ONE = private_key("one")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "ship").mkdir()
    return tmp_path / "ship" / "model.mega"


def test_an_unsigned_entry_is_the_store_s_own_copy(store: Store, key: str, output: Path) -> None:
    export_mega(store, key, output)
    assert MegaFile(output).manifest == MegaFile(store.layout.mega(key)).manifest
    assert MegaFile(output).signatures == UNSIGNED
    assert tensor_bytes(output) == tensor_bytes(store.layout.mega(key))
    assert list(output.parent.iterdir()) == [output]


def test_a_signed_entry_carries_its_signatures_and_nothing_else_changes(store: Store, key: str, output: Path) -> None:
    manifest = store.manifest(key)
    sign_entry(store, manifest, ONE)
    export_mega(Store(store.root, read_only=True), key, output)
    file = MegaFile(output)
    assert require_signature(file.manifest, file.signatures, [ONE.public]) == ONE.public
    with pytest.raises(SignatureError):
        require_signature(file.manifest, file.signatures, [private_key("two").public])
    assert file.damage() == ()
    assert [file.payload(sha256(raw)) for raw in PAYLOADS] == list(PAYLOADS)
    assert {name: file.constant(name) for name in CONSTANTS} == dict(CONSTANTS)
    assert tensor_bytes(output) == tensor_bytes(store.layout.mega(key))


def test_any_safetensors_reader_finds_the_signatures(store: Store, key: str, output: Path) -> None:
    sign_entry(store, store.manifest(key), ONE)
    export_mega(store, key, output)
    with safetensors.safe_open(output, framework="np") as opened:
        assert opened.metadata()["precast.signatures"].encode() == stored_signatures(store, key).to_json()
        assert set(opened.metadata()) == {"precast", "precast.signatures"}
    assert int.from_bytes(output.read_bytes()[:8], "little") % 8 == 0


def test_exporting_twice_gives_the_same_bytes_in_one_file(store: Store, key: str, output: Path) -> None:
    sign_entry(store, store.manifest(key), ONE)
    export_mega(store, key, output)
    first = output.read_bytes()
    export_mega(store, key, output)
    assert output.read_bytes() == first


def tensor_bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_is_what_the_umask_leaves(store: Store, key: str, output: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        export_mega(store, key, output)
    finally:
        os.umask(before)
    assert stat.S_IMODE(output.stat().st_mode) == 0o666 & ~umask


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0xFF])


@pytest.mark.parametrize("damage", [flip_last, lambda d: d[:-1], lambda d: d + b"\0", lambda _: b"", lambda d: d[:100]])
def test_a_damaged_artifact_is_not_shipped(store: Store, key: str, output: Path, damage: object) -> None:
    mega = store.layout.mega(key)
    mega.chmod(0o644)
    mega.write_bytes(damage(mega.read_bytes()))  # type: ignore[operator]
    output.write_bytes(b"what was there")
    with pytest.raises(CorruptError, match=key[:12]):
        export_mega(store, key, output)
    assert output.read_bytes() == b"what was there"
    assert list(output.parent.iterdir()) == [output]


def test_damaged_signatures_are_not_shipped(store: Store, key: str, output: Path) -> None:
    for text in (b"damaged", b'{"schema":"precast.signatures/2"}'):
        (store.layout.entry(key) / "signatures.json").write_bytes(text)
        with pytest.raises(CorruptError, match="signatures"):
            export_mega(store, key, output)
    assert list(output.parent.iterdir()) == []


def test_an_entry_without_an_artifact_is_told(store: Store, key: str, output: Path) -> None:
    store.layout.mega(key).unlink()
    with pytest.raises(NoEntryError, match=r"model\.mega"):
        export_mega(store, key, output)
    for raw in PAYLOADS:
        store.put_object(raw)
    bare = numbered(7, PAYLOADS)
    store.publish(bare)
    with pytest.raises(NoEntryError, match="no mega artifact"):
        export_mega(store, bare.key, output)
    with pytest.raises(NoEntryError):
        export_mega(store, "ab" * 32, output)
    assert list(output.parent.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing(
    store: Store, key: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreAccessError) as caught:
        export_mega(store, key, output / "absent" / "model.mega")
    assert "name another file" in caught.value.hint

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mega_export.os, "fsync", full)  # type: ignore[attr-defined]
    with pytest.raises(StoreAccessError, match="no space"):
        export_mega(store, key, output)
    assert list(output.parent.iterdir()) == []


def test_an_interrupt_leaves_nothing(store: Store, key: str, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mega_export.os, "fsync", interrupted)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        export_mega(store, key, output)
    assert list(output.parent.iterdir()) == []


def test_a_header_keeps_its_metadata_and_replaces_what_is_given(store: Store, key: str) -> None:
    with store.layout.mega(key).open("rb") as stream:
        old, new = header_with(stream, {"precast.signatures": "a"})
        rest = stream.read()
    assert old + rest == store.layout.mega(key).read_bytes()
    assert len(new) % 8 == 0
    before, after = json.loads(old[8:]), json.loads(new[8:])
    assert after["__metadata__"].pop("precast.signatures") == "a"
    assert list(after.items()) == list(before.items())
    _, again = header_with(io.BytesIO(new + rest), {"precast.signatures": "b"})
    assert json.loads(again[8:])["__metadata__"] == {**before["__metadata__"], "precast.signatures": "b"}


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b"{"]
)
def test_a_header_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|JSON|Expecting|utf-8"):
        header_with(io.BytesIO(data), {})


def test_publishing_stays_as_it_was(store: Store) -> None:
    """The store's own copy never holds signatures: its digest is in the manifest."""
    key = publish(store, make_manifest(), PAYLOADS)
    sign_entry(store, store.manifest(key), ONE)
    assert MegaFile(store.layout.mega(key)).signatures == UNSIGNED
    assert store.check(key) == ()
