"""What precast creates is open to nobody by accident, and to a group where the folder around it is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cache.support import PAYLOADS, make_manifest, publish, publish_numbered
from tests.users import folder_for_all, needs_root, run_as

from precast.cache.counters import record_lookup
from precast.cache.modes import make_folder
from precast.cache.requests import remember
from precast.cache.root import CacheRoot
from precast.cache.store import Store
from precast.cache.tags import all_tags, set_tag


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def used_store(root: Path) -> Store:
    """A store in which everything that can be written has been written."""
    store = Store(root)
    key = publish(store, make_manifest(), PAYLOADS)
    remember(store, "ab" * 32, key, {})
    set_tag(store, "kept", key)
    record_lookup(store, "hit", key, 1.0, 1)
    damaged = store.layout.manifest(key)
    damaged.write_bytes(b"{}")
    store.quarantine(key, "a test")
    publish(store, make_manifest(), PAYLOADS)
    return store


def test_nothing_is_open_to_others_by_accident(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "parent" / "root"
    used_store(root)
    for path in [root.parent, root, *root.rglob("*")]:
        assert mode(path) == (0o755 if path.is_dir() else 0o644) & ~umask, path


@pytest.mark.parametrize("bits", [0o775, 0o2775, 0o2770])
def test_a_root_that_is_shared_with_a_group_stays_shared_below(tmp_path: Path, umask: int, bits: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(bits)
    used_store(root)
    for path in root.rglob("*"):
        assert mode(path) & 0o060 == 0o060, path
        assert not mode(path) & 0o002, path
        if path.is_dir():
            assert mode(path) & (bits & 0o2070) == bits & 0o2070, path


def test_a_root_that_all_may_write_hands_that_to_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    used_store(root)
    assert not [path for path in root.rglob("*") if mode(path) & 0o002]


def test_only_the_root_s_own_bits_count_not_those_of_a_folder_around_it(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    root = tmp_path / "shared" / "root"
    root.mkdir()
    root.chmod(0o755)
    CacheRoot(root).prepare()
    assert {mode(folder) & 0o077 for folder in CacheRoot(root).folders} == {0o055}


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    make_folder(tmp_path / "mine")
    assert mode(tmp_path / "mine") == 0o700


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "below")


GROUP = 4300


@needs_root
def test_two_users_of_a_group_share_a_root_whatever_their_umask(tmp_path: Path) -> None:
    used_store(tmp_path / "warm")  # all modules are imported before a user comes who may read none

    def work(number: int) -> str:
        os.umask(0o077)
        store = Store(root)
        key = publish_numbered(store, number)
        publish(store, make_manifest(), PAYLOADS)  # the other one may have made it
        remember(store, "ab" * 32, key, {})
        set_tag(store, "latest", key)
        record_lookup(store, "hit", key, 1.0, number)
        store.touch(make_manifest().key)
        return key

    with folder_for_all() as folder:
        root = folder / "root"
        root.mkdir()
        os.chown(root, 0, GROUP)
        root.chmod(0o2775)
        first = run_as(4242, 4242, lambda: work(1), groups=[GROUP])
        second = run_as(4243, 4243, lambda: work(2), groups=[GROUP])
        third = run_as(4242, 4242, lambda: work(3), groups=[GROUP])
        found = run_as(4243, 4243, lambda: {e.key: e.state for e in Store(root).entries()}, groups=[GROUP])
        assert found == dict.fromkeys((first, second, third, make_manifest().key), "ok")
        damage = run_as(4243, 4243, lambda: [Store(root).check(key) for key in found], groups=[GROUP])
        assert damage == [(), (), (), ()]
        assert all_tags(Store(root)) == {"latest": third}
        assert len((Store(root).layout.stats / "lookups.jsonl").read_text().splitlines()) == 3
        for path in root.rglob("*"):
            assert path.stat().st_gid == GROUP, path
        with pytest.raises(PermissionError):
            run_as(4244, 4244, lambda: (root / "v1" / "tags" / "mine").touch())


@needs_root
def test_without_the_setgid_bit_the_group_is_handed_down_where_that_is_allowed(tmp_path: Path) -> None:
    with folder_for_all() as folder:
        root = CacheRoot(folder / "root")
        root.path.mkdir()
        os.chown(root.path, 4242, GROUP)
        root.path.chmod(0o775)
        run_as(4242, 4242, root.prepare, groups=[GROUP])
        assert {(path.stat().st_gid, mode(path)) for path in root.folders} == {(GROUP, 0o775)}
        # Not a member of the group, so what is made stays with this user's own.
        (root.path / "v1" / "tags").rmdir()
        os.chown(root.base, 4242, 4301)
        run_as(4242, 4242, root.prepare)
        assert root.tags.stat().st_gid == 4242
