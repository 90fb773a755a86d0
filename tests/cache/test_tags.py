import pytest
from tests.cache.support import publish_numbered

from precast.cache.store import Store
from precast.cache.tags import all_tags, resolve_entry, set_tag
from precast.errors import NoEntryError, UsageError


def test_a_tag_names_an_entry_and_can_move(store: Store, key: str) -> None:
    other = publish_numbered(store, 1)
    set_tag(store, "release-41", key)
    set_tag(store, "latest", key)
    set_tag(store, "latest", other)
    assert list(all_tags(store).items()) == [("latest", other), ("release-41", key)]


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "-x", "a" * 101])
def test_what_is_no_tag_is_refused(store: Store, key: str, name: str) -> None:
    with pytest.raises(UsageError):
        set_tag(store, name, key)
    assert all_tags(store) == {}


def test_a_tag_needs_an_entry(store: Store) -> None:
    with pytest.raises(NoEntryError):
        set_tag(store, "latest", "ab" * 32)


def test_damaged_tags_are_left_out(store: Store, key: str) -> None:
    set_tag(store, "good", key)
    (store.layout.tags / "bad").write_bytes(b"\xff")
    (store.layout.tags / "folder").mkdir()
    assert all_tags(store) == {"good": key}


def test_a_store_that_does_not_exist_has_no_tags(store: Store) -> None:
    assert all_tags(store) == {}


def test_an_entry_is_named_by_key_prefix_or_tag_and_a_key_goes_first(store: Store, key: str) -> None:
    other = publish_numbered(store, 1)
    set_tag(store, "latest", key)
    set_tag(store, other[:7], key)
    set_tag(store, "20261130", key)
    for text in (key, key[:6].upper(), "latest", "20261130"):
        assert resolve_entry(store, text) == key
    assert resolve_entry(store, other[:7]) == other


@pytest.mark.parametrize(("text", "error"), [("nightly", NoEntryError), ("0" * 6, NoEntryError), ("abc", UsageError)])
def test_what_names_no_entry_is_refused(store: Store, key: str, text: str, error: type[Exception]) -> None:
    set_tag(store, "latest", key)
    with pytest.raises(error):
        resolve_entry(store, text)
