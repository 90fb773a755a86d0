"""Where bytes come from: the store, and its mega file when it may help out."""

from pathlib import Path

import pytest
from tests.aot.support import RAW, manifest, publish
from tests.cache.remotes import Flaky, MemoryFiles, local_store, remote_on

from precast.aot.progress import Silent
from precast.aot.sources import Degradation, MegaSource, StoreSource, open_source
from precast.cache.remote_tier import RemoteTier
from precast.cache.store import Store
from precast.cache.tags import set_tag
from precast.errors import AmbiguousKeyError, CorruptError, NoEntryError

RECORD = manifest().payloads[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return publish(tmp_path / "root", manifest())


def object_file(store: Store) -> Path:
    (path,) = store.layout.objects.rglob("*.zst")
    return path


def mega_file(store: Store) -> Path:
    return store.layout.entry(manifest().key) / "model.mega"


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"")


def test_a_tag_opens_its_entry_and_a_key_goes_before_it(store: Store) -> None:
    set_tag(store, "release-40", manifest().key)
    assert open_source("release-40", store).manifest.key == manifest().key
    set_tag(store, "facade", manifest().key)  # might be the start of a key
    assert open_source("facade", store).manifest.key == manifest().key
    (store.layout.tags / manifest().key[:8]).write_text("ab" * 32)
    assert open_source(manifest().key[:8], store).manifest.key == manifest().key
    for unknown in ("release-41", "shop.model:tiny", "abc", "no/such/file"):
        with pytest.raises(NoEntryError):
            open_source(unknown, store)


def test_a_key_opens_the_store_and_a_path_the_file(store: Store) -> None:
    assert isinstance(open_source(manifest().key, store), StoreSource)
    source = open_source(mega_file(store), store)
    assert isinstance(source, MegaSource)
    assert source.manifest.key == manifest().key
    assert source.payload(RECORD) == RAW


def test_a_sound_object_is_read_from_the_store(store: Store) -> None:
    mega_file(store).unlink()
    assert open_source(manifest().key[:8], store).payload(RECORD) == RAW


@pytest.mark.parametrize("damage", [remove, flip, truncate, empty], ids=lambda f: f.__name__)
def test_strict_refuses_a_missing_or_damaged_object_by_name(store: Store, damage: object) -> None:
    damage(object_file(store))  # type: ignore[operator]
    with pytest.raises(CorruptError) as caught:
        open_source(manifest().key, store, strict=True).payload(RECORD)
    assert RECORD.name in caught.value.what
    assert caught.value.why
    assert "precompile" in caught.value.hint


@pytest.mark.parametrize("damage", [remove, flip, truncate, empty], ids=lambda f: f.__name__)
def test_lenient_takes_it_from_the_mega_file_and_reports_it(store: Store, damage: object) -> None:
    damage(object_file(store))  # type: ignore[operator]
    seen: list[Degradation] = []
    assert open_source(manifest().key, store, strict=False, on_degraded=seen.append).payload(RECORD) == RAW
    assert [d.payload for d in seen] == [RECORD.name]
    assert seen[0].reason


@pytest.mark.parametrize("damage", [remove, truncate, empty], ids=lambda f: f.__name__)
def test_lenient_refuses_when_the_mega_file_cannot_help(store: Store, damage: object) -> None:
    object_file(store).unlink()
    damage(mega_file(store))  # type: ignore[operator]
    seen: list[Degradation] = []
    with pytest.raises(CorruptError, match="in the mega file"):
        open_source(manifest().key, store, strict=False, on_degraded=seen.append).payload(RECORD)
    assert not seen


def test_lenient_without_a_listener_still_helps(store: Store) -> None:
    object_file(store).unlink()
    assert open_source(manifest().key, store, strict=False).payload(RECORD) == RAW


@pytest.mark.parametrize("text", ["abcdef012345", "nothing here", "abc", ""])
def test_what_names_nothing_is_said(store: Store, text: str) -> None:
    with pytest.raises(NoEntryError):
        open_source(text, store)


def test_a_damaged_manifest_is_corrupt(store: Store) -> None:
    path = store.layout.entry(manifest().key) / "manifest.json"
    flip(path, at=len(path.read_bytes()) // 2)
    with pytest.raises(CorruptError):
        open_source(manifest().key, store)


def test_a_prefix_of_two_entries_is_ambiguous(store: Store, tmp_path: Path) -> None:
    key = manifest().key
    (store.layout.entry(key).parent / (key[:8] + "0" * 56)).mkdir()
    with pytest.raises((AmbiguousKeyError, NoEntryError)):
        open_source(key[:6], store)


def test_an_entry_that_is_removed_while_it_is_loaded_is_absent_not_damaged(store: Store) -> None:
    source = open_source(manifest().key, store)
    store.quarantine(manifest().key, "as `prune` would")
    object_file(store).unlink()
    with pytest.raises(NoEntryError, match="was removed while it was loaded"):
        source.payload(RECORD)


def tier_with(store: Store, tmp_path: Path) -> tuple[RemoteTier, Store]:
    """A remote that has the store's entry, and an empty store in front of it."""
    remote = remote_on(MemoryFiles())
    remote.push(store, manifest().key)
    mine = local_store(tmp_path / "mine")
    return RemoteTier(mine, remote, Silent().warning), mine


@pytest.mark.parametrize("digits", [64, 12])
def test_an_entry_that_only_the_remote_has_is_pulled(store: Store, tmp_path: Path, digits: int) -> None:
    tier, mine = tier_with(store, tmp_path)
    key = manifest().key
    with pytest.raises(NoEntryError):
        open_source(key[:digits], mine)
    source = open_source(key[:digits], mine, tier=tier)
    assert (source.manifest, source.payload(RECORD)) == (store.manifest(key), RAW)
    assert open_source(key[:digits], mine).manifest.key == key


def test_an_entry_that_is_here_is_not_looked_for_in_the_remote(store: Store, tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    tier = RemoteTier(store, remote_on(files), Silent().warning)
    open_source(manifest().key, store, tier=tier)
    assert files.operations == []


def test_what_the_remote_lacks_too_is_the_local_error(tmp_path: Path) -> None:
    mine = local_store(tmp_path / "mine")
    tier = RemoteTier(mine, remote_on(MemoryFiles()), Silent().warning)
    for text in ("0" * 12, "0" * 64):
        with pytest.raises(NoEntryError, match=f"no entry {text}"):
            open_source(text, mine, tier=tier)
    with pytest.raises(NoEntryError, match="no entry, tag or file"):
        open_source("release-41", mine, tier=tier)
