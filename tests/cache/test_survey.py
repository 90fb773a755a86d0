import os
from pathlib import Path

import pytest
from tests.cache.support import publish_numbered

from precast.cache.disk import DiskUsage, extent
from precast.cache.requests import remember
from precast.cache.store import Store
from precast.cache.survey import survey
from precast.cache.tags import set_tag
from precast.errors import StoreAccessError, UsageError

ASIDE = f"{'ab' * 32}-{'0' * 16}"


def filled(store: Store) -> str:
    """A store with something of every kind; the key of its entry."""
    key = publish_numbered(store, 1)
    remember(store, "cd" * 32, key, {})
    set_tag(store, "release", key)
    layout = store.layout
    (layout.staging / ASIDE).mkdir()
    (layout.staging / f".x-{'0' * 16}.tmp").touch()
    (layout.quarantine / ASIDE).mkdir()
    (layout.quarantine / ASIDE / "reason.json").touch()
    (layout.stats / f".{key}-{'0' * 16}.tmp").touch()
    (layout.stats / "lookups.jsonl").touch()
    (layout.objects / "ab").mkdir(exist_ok=True)
    (layout.objects / "ab" / f".x-{'0' * 16}.tmp").touch()
    return key


def test_every_name_is_known_for_what_it_is(store: Store) -> None:
    key = filled(store)
    found = survey(store.layout)
    assert list(found.entries) == list(found.seen) == list(found.stamps) == [key]
    assert list(found.objects) == [payload.object for payload in store.manifest(key).payloads]
    assert list(found.requests) == ["cd" * 32]
    assert list(found.tags) == ["release"]
    assert set(found.staging) == {f"staging/{ASIDE}", f"staging/.x-{'0' * 16}.tmp", f"objects/ab/.x-{'0' * 16}.tmp"}
    assert list(found.quarantine) == [ASIDE]
    assert list(found.temporaries) == [f"stats/.{key}-{'0' * 16}.tmp"]
    assert "store.lock" in found.locks
    assert found.foreign == {}


def test_everything_is_counted_once(store: Store) -> None:
    filled(store)
    (store.root / "notes").mkdir()
    (store.root / "notes" / "file").write_bytes(b"x" * 5000)
    (store.root / "twin").hardlink_to(store.root / "notes" / "file")
    whole, found = DiskUsage(), survey(store.layout)
    cost = extent(str(store.root))
    assert cost is not None
    whole.add(cost)
    assert (found.usage.bytes, found.usage.files) == (whole.bytes, whole.files)


def test_what_is_not_ours_is_foreign_wherever_it_lies(store: Store, tmp_path: Path) -> None:
    key = filled(store)
    ours = survey(store.layout)
    layout = store.layout
    wanted = set()
    for folder in (layout.path, layout.base, *layout.folders, next(layout.objects.iterdir())):
        for name in ("notes.txt", "stray", "link"):
            wanted.add(str((folder / name).relative_to(store.root)))
        (folder / "notes.txt").touch()
        (folder / "stray").mkdir()
        (folder / "link").symlink_to(tmp_path)
    # The name is one that the store itself would choose, but a link is never ours.
    for place in (layout.entries / ("ab" * 32), layout.tags / "stable", layout.stats / ("ab" * 32)):
        place.symlink_to(layout.entry(key))
        wanted.add(str(place.relative_to(store.root)))
    wanted -= {"v1/tags/notes.txt"}  # a fine name for a tag
    found = survey(store.layout)
    assert set(found.foreign) == wanted
    assert (found.entries.keys(), found.objects.keys()) == (ours.entries.keys(), ours.objects.keys())


def test_other_layouts_are_foreign(store: Store) -> None:
    filled(store)
    (store.root / "v0" / "entries").mkdir(parents=True)
    (store.root / "v2").mkdir()
    assert set(survey(store.layout).foreign) == {"v0", "v2"}


def test_a_folder_inside_an_entry_is_noticed_and_a_link_is_not_followed(store: Store, tmp_path: Path) -> None:
    key = filled(store)
    (store.layout.entry(key) / "link").symlink_to(tmp_path)
    assert survey(store.layout).crowded == {}
    (store.layout.entry(key) / "notes").mkdir()
    assert survey(store.layout).crowded == {key: "notes"}


@pytest.mark.parametrize("name", [".", "v1", "v1/entries", "v1/objects", "v1/tags", "v1/locks", "v1/stats"])
def test_where_a_folder_of_the_store_is_a_link_there_is_no_survey(store: Store, tmp_path: Path, name: str) -> None:
    filled(store)
    place = store.root / name
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    with pytest.raises(UsageError, match="is a link to"):
        survey(store.layout)


@pytest.mark.parametrize("name", ["entries", "objects", "tags"])
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    really = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreAccessError, match="Permission denied"):
        survey(store.layout)


def test_a_root_that_does_not_exist_holds_nothing(store: Store) -> None:
    found = survey(store.layout)
    assert (found.usage.bytes, found.usage.files, found.entries) == (0, 0, {})


def test_the_signatures_are_those_that_the_index_takes(store: Store, tmp_path: Path) -> None:
    key = filled(store)
    manifest = store.layout.manifest(key)
    status = manifest.stat()
    seen = survey(store.layout).seen[key]
    assert seen.manifest == [status.st_size, status.st_mtime_ns, status.st_ino]
    assert seen.mega_bytes == store.layout.mega(key).stat().st_size
    # A reader goes through a link, and so does whoever asks whether an entry is whole.
    manifest.rename(tmp_path / "manifest.json")
    manifest.symlink_to(tmp_path / "manifest.json")
    store.layout.mega(key).unlink()
    seen = survey(store.layout).seen[key]
    assert seen.manifest == [status.st_size, status.st_mtime_ns, status.st_ino]
    assert seen.mega_bytes is None
