import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import damage, flip

from precast.cache.canonical import sha256
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


def test_an_object_that_cannot_be_written_is_refused(objects: ObjectStore) -> None:
    shard = objects.root.object(sha256(RAW)).parent
    shard.touch()
    with pytest.raises(StoreAccessError):
        objects.put(RAW)
    assert shard.read_bytes() == b""


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
