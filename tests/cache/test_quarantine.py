"""The quarantine: bad copies are kept and explained, and nothing that lies in the way blocks a write."""

import json
import os
import re
from pathlib import Path

import pytest
from tests.cache.support import PAYLOADS, make_manifest, publish

from precast.cache.leftovers import ASIDE
from precast.cache.quarantine import keep_copy, move_away, new_folder, write_over
from precast.cache.requests import candidates, remember
from precast.cache.store import Store
from precast.cache.tags import all_tags, set_tag
from precast.errors import StoreAccessError


@pytest.fixture
def opened(store: Store) -> Store:
    store.layout.prepare()
    return store


@pytest.mark.parametrize("name", ["ab" * 32, "stray", "../../etc"])
def test_every_folder_has_a_name_that_prune_knows(opened: Store, name: str) -> None:
    folder = new_folder(opened.layout, name)
    assert folder.parent == opened.layout.quarantine
    assert ASIDE.fullmatch(folder.name)
    assert folder.name.startswith("ab" * 32) == (name == "ab" * 32)


def test_a_file_that_is_kept_stays_in_its_place_with_two_names(opened: Store, tmp_path: Path) -> None:
    bad = opened.layout.base / "bad"
    bad.write_bytes(b"bad")
    copy = keep_copy(bad, new_folder(opened.layout, "x"))
    assert copy is not None
    assert copy.stat().st_ino == bad.stat().st_ino
    assert keep_copy(opened.layout.base / "absent", new_folder(opened.layout, "x")) is None


def test_what_is_moved_is_explained_and_a_link_s_target_is_not_touched(opened: Store, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    link = opened.layout.entries / ("ab" * 32)
    link.symlink_to(target)
    moved = move_away(opened.layout, "ab" * 32, link, "it lay in the way")
    assert moved is not None
    assert moved.is_symlink()
    assert target.read_bytes() == b"precious"
    told = json.loads(moved.with_name("reason.json").read_text())
    assert told == {"path": f"v1/entries/{'ab' * 32}", "reason": "it lay in the way"}
    assert move_away(opened.layout, "ab" * 32, link, "again") is None


@pytest.mark.parametrize("stray", ["a file", "a link", "an empty folder", "a folder with a file"])
def test_nothing_in_an_entry_s_place_blocks_its_publication(opened: Store, tmp_path: Path, stray: str) -> None:
    place = opened.layout.entry(make_manifest().key)
    if stray == "a file":
        place.write_bytes(b"stray")
    elif stray == "a link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        if "with" in stray:
            (place / "notes").write_bytes(b"stray")
    key = publish(opened, make_manifest(), PAYLOADS)
    assert opened.check(key) == ()
    assert not place.is_symlink()
    if stray == "a link":
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_stray_folders_block_no_pointer_no_tag_and_no_stamp(opened: Store) -> None:
    key = publish(opened, make_manifest(), PAYLOADS)
    digest = "cd" * 32
    for path in (opened.layout.requests / f"{digest}.json", opened.layout.tags / "release"):
        path.mkdir()
        (path / "inside").write_bytes(b"stray")
    remember(opened, digest, key, {})
    set_tag(opened, "release", key)
    assert candidates(opened, digest) == (key,)
    assert all_tags(opened) == {"release": key}
    assert len(list(opened.layout.quarantine.iterdir())) == 2


def test_a_file_is_written_over_without_a_look_at_what_it_held(opened: Store) -> None:
    path = opened.layout.stats / "file"
    write_over(opened.layout, path, b"old")
    write_over(opened.layout, path, b"new")
    assert path.read_bytes() == b"new"
    assert list(opened.layout.quarantine.iterdir()) == []


def test_a_full_disk_does_not_undo_that_something_is_put_aside(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = publish(opened, make_manifest(), PAYLOADS)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    aside = opened._entries.quarantine(key, "test")
    assert aside is not None
    assert not opened.layout.entry(key).exists()


def test_what_cannot_be_moved_is_an_error_that_names_the_place(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    stray = opened.layout.entries / ("ab" * 32)
    stray.write_bytes(b"stray")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreAccessError, match=re.escape(str(opened.layout.quarantine))):
        move_away(opened.layout, "ab" * 32, stray, "test")
