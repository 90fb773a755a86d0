import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import damage, flip

from precast.cache.canonical import sha256
from precast.cache.frames import compress
from precast.cache.objects import ObjectStore
from precast.cache.root import CacheRoot
from precast.errors import CorruptError, NoEntryError, StoreAccessError

RAW = b"a compiled piece " * 100


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    root = CacheRoot(tmp_path)
    root.prepare()
    return ObjectStore(root)


@given(raw=st.binary(max_size=2000))
def test_an_object_reads_back_as_it_was_put(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    root = CacheRoot(tmp_path_factory.mktemp("root"))
    root.prepare()
    stored = ObjectStore(root).put(raw)
    assert (stored.sha256, stored.bytes) == (sha256(raw), len(raw))
    assert root.object(stored.sha256).stat().st_size == stored.stored_bytes
    assert ObjectStore(root).read(stored.sha256, len(raw)) == raw


def test_a_sound_object_is_not_written_again(objects: ObjectStore) -> None:
    first = objects.put(RAW)
    inode = objects.root.object(first.sha256).stat().st_ino
    assert objects.put(RAW) == first
    assert objects.root.object(first.sha256).stat().st_ino == inode


@pytest.mark.parametrize("how", [lambda data: data[: len(data) // 2], lambda data: b"", flip(300)])
def test_a_damaged_object_is_never_handed_out_and_is_replaced_by_the_next_put(
    objects: ObjectStore, how: Callable[[bytes], bytes]
) -> None:
    name = objects.put(RAW).sha256
    damage(objects.root.object(name), how)
    with pytest.raises(CorruptError) as caught:
        objects.read(name, len(RAW))
    assert name in caught.value.what
    assert "precast precompile" in caught.value.hint
    objects.put(RAW)
    assert objects.read(name) == RAW


def test_every_flipped_byte_of_an_object_is_found(objects: ObjectStore) -> None:
    name = objects.put(RAW).sha256
    path = objects.root.object(name)
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 0xFF]) + sound[position + 1 :])
        with pytest.raises(CorruptError):
            objects.read(name, len(RAW))


def test_a_sound_frame_of_other_bytes_is_found(objects: ObjectStore) -> None:
    mine, other = objects.put(RAW).sha256, objects.put(RAW + b"!").sha256
    objects.root.object(mine).write_bytes(objects.root.object(other).read_bytes())
    with pytest.raises(CorruptError, match="another digest"):
        objects.read(mine)


def test_a_missing_object_is_told_from_a_damaged_one(objects: ObjectStore) -> None:
    with pytest.raises(NoEntryError, match="ab" * 32):
        objects.read("ab" * 32)


def test_an_object_that_may_not_be_read_says_so(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    name = objects.put(RAW).sha256
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StoreAccessError, match="Permission denied"):
        objects.read(name)


def test_an_object_that_cannot_be_written_is_refused(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StoreAccessError, match="Input/output error"):
        objects.put(RAW)
    assert [path for path in objects.root.objects.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("stray", ["a file for the folder", "a folder for the file", "a dangling link for the file"])
def test_what_lies_in_the_way_goes_to_quarantine_and_blocks_nothing(objects: ObjectStore, stray: str) -> None:
    path = objects.root.object(sha256(RAW))
    if stray == "a file for the folder":
        path.parent.write_bytes(b"stray")
    elif stray == "a folder for the file":
        path.mkdir(parents=True)
        (path / "inside").write_bytes(b"stray")
    else:
        path.parent.mkdir()
        path.symlink_to("nowhere")
    objects.put(RAW)
    assert objects.read(sha256(RAW)) == RAW
    kept = [item for item in objects.root.quarantine.rglob("*") if item.name != "reason.json"]
    assert any(item.is_symlink() or (item.is_file() and item.read_bytes() == b"stray") for item in kept)


def test_a_bad_copy_is_kept_in_quarantine_with_the_reason(objects: ObjectStore) -> None:
    name = objects.put(RAW).sha256
    path = objects.root.object(name)
    damage(path, flip(500))
    bad = path.read_bytes()
    objects.put(RAW)
    (kept,) = objects.root.quarantine.iterdir()
    assert (kept / path.name).read_bytes() == bad
    assert json.loads((kept / "reason.json").read_bytes())["path"] == f"v1/objects/{name[:2]}/{path.name}"


def test_a_bad_copy_is_kept_where_a_file_has_one_name_only(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    name = objects.put(RAW).sha256
    damage(objects.root.object(name), lambda data: b"bad")
    monkeypatch.setattr(os, "link", refuse)
    objects.put(RAW)
    (kept,) = objects.root.quarantine.iterdir()
    assert (kept / f"{name}.zst").read_bytes() == b"bad"


def test_only_a_damaged_object_is_put_aside(objects: ObjectStore) -> None:
    name = objects.put(RAW).sha256
    assert objects.put_aside(name, "test") is None
    assert objects.read(name) == RAW
    damage(objects.root.object(name), flip(500))
    moved = objects.put_aside(name, "test")
    assert moved is not None
    assert moved.is_file()
    with pytest.raises(NoEntryError):
        objects.read(name)


def test_an_object_that_a_writer_mended_while_it_was_put_aside_stays(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = objects.put(RAW).sha256
    path = objects.root.object(name)
    sound = path.read_bytes()
    damage(path, flip(500))
    found = ObjectStore.check

    def check_then_mend(*given: object) -> object:
        bad = found(*given)  # type: ignore[arg-type]
        path.write_bytes(sound)
        return bad

    monkeypatch.setattr(ObjectStore, "check", check_then_mend)
    objects.put_aside(name, "test")
    assert objects.read(name) == RAW


DAMAGES: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "missing": (lambda data: None, "missing"),
    "empty": (lambda data: b"", "0 bytes instead of"),
    "truncated": (lambda data: data[: len(data) // 2], "bytes instead of"),
    "altered": (flip(700), "damaged"),
    "foreign": (lambda data: compress(RAW + b"!"), f"it holds object {sha256(RAW + b'!')}"),
}


@pytest.mark.parametrize("code", DAMAGES)
def test_each_kind_of_damage_has_its_own_code_and_words(objects: ObjectStore, code: str) -> None:
    stored = objects.put(RAW)
    path = objects.root.object(stored.sha256)
    how, words = DAMAGES[code]
    content = how(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    found = objects.check(stored.sha256, len(RAW), stored.stored_bytes)
    assert found is not None
    assert (found.code, found.member, found.path) == (code, f"object {stored.sha256}", str(path))
    assert words in found.reason


def test_bytes_after_a_frame_are_an_alteration_and_both_sizes_are_told(objects: ObjectStore) -> None:
    stored = objects.put(RAW)
    path = objects.root.object(stored.sha256)
    damage(path, lambda data: data + data)
    found = objects.check(stored.sha256, len(RAW), stored.stored_bytes)
    assert found is not None
    assert found.code == "altered"
    assert f"it has {2 * stored.stored_bytes} bytes instead of {stored.stored_bytes}" in found.reason


def test_a_file_that_may_not_be_read_is_unreadable_not_damaged(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    name = objects.put(RAW).sha256
    monkeypatch.setattr(Path, "open", refuse)
    found = objects.check(name)
    assert found is not None
    assert (found.code, "Input/output error" in found.reason) == ("unreadable", True)


def test_a_stale_handle_is_looked_at_again_and_then_as_good_as_missing(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system says so when another host replaced or removed a file that is being read."""
    name, looks = objects.put(RAW).sha256, iter([True, True, False])
    read_bytes = Path.read_bytes

    def stale(path: Path) -> bytes:
        if next(looks, True):
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    assert objects.read(name) == RAW
    with pytest.raises(NoEntryError):
        objects.read(name)


def test_an_object_holds_no_time_and_no_path(objects: ObjectStore, tmp_path: Path) -> None:
    other = CacheRoot(tmp_path / "elsewhere")
    other.prepare()
    name = objects.put(RAW).sha256
    ObjectStore(other).put(RAW)
    assert objects.root.object(name).read_bytes() == other.object(name).read_bytes()


def test_a_folder_that_is_pruned_between_two_steps_is_made_again(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir
    taken: list[Path] = []

    def mkdir_then_lose(path: Path, *arguments: object, **options: bool) -> None:
        mkdir(path, **options)
        if not taken:
            taken.append(path)
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir_then_lose)
    name = objects.put(RAW).sha256
    assert taken
    assert objects.read(name) == RAW
