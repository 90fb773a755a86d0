from pathlib import Path

import pytest
from tests.cache.support import damage, flip

from precast.cache.requests import Remembered, candidates, remember, remembered, remembered_hint
from precast.cache.store import Store
from precast.errors import StoreAccessError

REQUEST = "ab" * 32
KEYS = [f"{number:064x}" for number in range(20)]


def test_the_latest_answer_is_the_first_candidate(store: Store) -> None:
    for key in (KEYS[0], KEYS[1], KEYS[0]):
        remember(store, REQUEST, key, {"model": "shop.model:tiny"})
    assert candidates(store, REQUEST) == (KEYS[0], KEYS[1])
    assert remembered(store, REQUEST)[0] == Remembered(KEYS[0], {"model": "shop.model:tiny"})


def test_requests_do_not_mix(store: Store) -> None:
    remember(store, REQUEST, KEYS[0], {})
    assert candidates(store, "cd" * 32) == ()


def test_old_candidates_are_forgotten(store: Store) -> None:
    for key in KEYS:
        remember(store, REQUEST, key, {})
    assert candidates(store, REQUEST) == tuple(reversed(KEYS))[:16]


def test_a_damaged_file_means_no_candidates_and_is_repaired_by_the_next_answer(store: Store) -> None:
    remember(store, REQUEST, KEYS[0], {})
    path = store.layout.requests / f"{REQUEST}.json"
    for how in (flip(500), lambda data: data[:-5], lambda data: b"", lambda data: b'{"schema":"x","entries":[]}'):
        damage(path, how)
        assert candidates(store, REQUEST) == ()
        remember(store, REQUEST, KEYS[1], {})
        assert candidates(store, REQUEST) == (KEYS[1],)


def test_a_pointer_that_is_no_key_makes_the_file_worthless(store: Store) -> None:
    remember(store, REQUEST, KEYS[0], {})
    damage(store.layout.requests / f"{REQUEST}.json", lambda data: data.replace(KEYS[0].encode(), b"../../etc"))
    assert candidates(store, REQUEST) == ()


def test_the_hint_of_a_key_is_found_without_its_request(store: Store) -> None:
    assert remembered_hint(store, KEYS[0]) == {}
    remember(store, REQUEST, KEYS[0], {"model": "a"})
    remember(store, REQUEST, KEYS[1], {"model": "b"})
    assert remembered_hint(store, KEYS[0]) == {"model": "a"}
    assert remembered_hint(store, KEYS[1]) == {"model": "b"}
    assert remembered_hint(store, KEYS[2]) == {}


def test_a_folder_is_kept_relative_to_the_root_and_found_from_where_the_root_is(store: Store, tmp_path: Path) -> None:
    remember(store, REQUEST, KEYS[0], {"folder": str(tmp_path / "models" / "x"), "reference": "x"})
    file = store.layout.requests / f"{REQUEST}.json"
    assert str(tmp_path).encode() not in file.read_bytes()
    assert remembered_hint(store, KEYS[0]) == {"folder": str(tmp_path / "models" / "x"), "reference": "x"}

    moved = tmp_path / "elsewhere" / "deeper" / "root"
    moved.parent.mkdir(parents=True)
    store.root.rename(moved)
    there = str(tmp_path / "elsewhere" / "deeper" / "models" / "x")
    assert remembered_hint(Store(moved), KEYS[0])["folder"] == there
    remember(Store(moved), REQUEST, KEYS[1], {})
    assert remembered_hint(Store(moved), KEYS[0])["folder"] == there


def test_a_root_behind_a_link_leads_to_the_same_folder(store: Store, tmp_path: Path) -> None:
    store.root.mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    link = tmp_path / "far" / "away" / "link"
    link.symlink_to(store.root)
    folder = str(tmp_path / "models" / "x")
    remember(Store(link), REQUEST, KEYS[0], {"folder": folder})
    assert remembered_hint(store, KEYS[0]) == remembered_hint(Store(link), KEYS[0]) == {"folder": folder}


def test_a_folder_that_is_nowhere_near_the_root_keeps_its_name(store: Store, tmp_path: Path) -> None:
    top = Path(*tmp_path.parts[:2])  # such as /tmp
    for number, folder in enumerate(("/models-of-nobody/x", str(top / "models-of-nobody"))):
        remember(store, REQUEST, KEYS[number], {"folder": folder})
    moved = tmp_path / "elsewhere"
    store.root.rename(moved)
    assert remembered_hint(Store(moved), KEYS[0]) == {"folder": "/models-of-nobody/x"}
    assert remembered_hint(Store(moved), KEYS[1]) == {"folder": str(top / "models-of-nobody")}


def test_a_read_only_store_remembers_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, read_only=True)
    with pytest.raises(StoreAccessError):
        remember(store, REQUEST, KEYS[0], {})
    assert list(tmp_path.iterdir()) == []
