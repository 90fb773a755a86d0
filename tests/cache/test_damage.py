"""Damage: each kind has its own code and its own words, whatever file it is in."""

import errno
import os
from pathlib import Path

import pytest
from tests.cache.support import damage, files_below, flip, publish_numbered

from precast.cache.damage import Content, Damage, content_of, diagnose, unreadable
from precast.cache.store import Store
from precast.errors import CorruptError

OWN = Content("manifest", "ab" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(b"twelve bytes")
    return made


@pytest.mark.parametrize(
    ("size", "cut", "code", "words"),
    [
        (20, None, "truncated", "it has 12 bytes instead of 20"),
        (20, True, "truncated", "it has 12 bytes instead of 20"),
        (12, None, "altered", "another digest"),
        (10, None, "altered", "it has 12 bytes instead of 10"),
        (None, True, "truncated", "after 12 bytes"),
        (None, False, "altered", "another digest"),
        (10, True, "truncated", "after 12 bytes"),
        (20, False, "altered", "it has 12 bytes instead of 20"),
    ],
)
def test_size_and_structure_tell_cut_from_altered(
    path: Path, size: int | None, cut: bool | None, code: str, words: str
) -> None:
    found = diagnose("manifest.json", path, OWN, "another digest", size=size, cut=cut)
    assert (found.code, found.path) == (code, str(path))
    assert words in found.reason


def test_an_empty_file_says_how_many_bytes_it_should_have(path: Path) -> None:
    path.write_bytes(b"")
    found = diagnose("model.mega", path, OWN, "another digest", size=20)
    assert (found.code, found.reason) == ("empty", "it is empty: 0 bytes instead of 20")


def test_a_missing_file_and_a_folder_are_told_apart(path: Path) -> None:
    path.unlink()
    assert diagnose("model.mega", path, OWN, "").code == "missing"
    path.mkdir()
    assert diagnose("model.mega", path, OWN, "").code == "foreign"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, "missing"),
        (errno.ENOTDIR, "missing"),
        (errno.ESTALE, "missing"),
        (errno.EISDIR, "foreign"),
        (errno.EIO, "unreadable"),
        (errno.EACCES, "unreadable"),
    ],
)
def test_what_the_system_says_is_no_damage_unless_the_file_is_gone(path: Path, code: int, kind: str) -> None:
    assert unreadable("model.mega", path, OSError(code, os.strerror(code))).code == kind


def test_every_file_of_an_entry_is_known_by_its_content(store: Store) -> None:
    key = publish_numbered(store, 1)
    name = store.manifest(key).payloads[0].object
    content = store.manifest(key).content_digest
    assert content_of(store.layout.object(name)) == Content("object", name)
    assert content_of(store.layout.manifest(key)) == Content("manifest", key)
    assert content_of(store.layout.mega(key)) == Content("mega", key, content)
    assert str(content_of(store.layout.mega(key))) == f"the mega artifact of entry {key[:12]}"


def test_damaged_content_is_nothing_in_particular(store: Store) -> None:
    key = publish_numbered(store, 1)
    for path in (store.layout.manifest(key), store.layout.object(store.manifest(key).payloads[0].object)):
        damage(path, flip(500))
        assert content_of(path) is None
    assert content_of(store.root / "absent") is None


def test_bytes_of_another_entry_are_named(store: Store) -> None:
    key, other = (publish_numbered(store, number) for number in range(2))
    store.layout.manifest(key).write_bytes(store.layout.manifest(other).read_bytes())
    store.layout.mega(key).write_bytes(store.layout.mega(other).read_bytes())
    found = {item.member: item for item in store.check(key)}
    assert found["manifest.json"].reason == f"it holds the manifest of entry {other[:12]}"
    assert found["model.mega"].reason == f"it holds the mega artifact of entry {other[:12]}"


@pytest.mark.parametrize("at", [0.0, 0.4, 0.99])
def test_a_cut_manifest_tells_both_sizes_where_the_mega_artifact_knows_them(store: Store, at: float) -> None:
    key = publish_numbered(store, 1)
    path = store.layout.manifest(key)
    whole = path.stat().st_size
    damage(path, lambda data: data[: int(at * len(data))])
    (found,) = store.check(key)
    assert found.code == ("truncated" if at else "empty")
    assert f"{int(at * whole)} bytes instead of {whole}" in found.reason
    store.layout.mega(key).unlink()
    (found,) = store.check(key)
    assert found.code == ("truncated" if at else "empty")


def test_all_damage_is_found_at_once_even_without_a_manifest(store: Store) -> None:
    key = publish_numbered(store, 1)
    name = store.manifest(key).payloads[0].object
    damage(store.layout.object(name), flip(500))
    damage(store.layout.manifest(key), flip(500))
    assert [item.member for item in store.check(key)] == ["manifest.json", f"object {name}"]
    damage(store.layout.mega(key), lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert {item.member for item in store.check(key)} == {"manifest.json", "model.mega", f"object {name}"}
    damage(store.layout.mega(key), lambda data: data[:50])
    assert {item.member for item in store.check(key)} == {"manifest.json", "model.mega"}


def test_checking_changes_nothing(store: Store) -> None:
    key = publish_numbered(store, 1)
    damage(store.layout.manifest(key), flip(500))
    before = files_below(store.root)
    store.check(key)
    with pytest.raises(CorruptError):
        store.manifest(key)
    assert files_below(store.root) == before


def test_damage_is_worded_as_a_line_a_sentence_and_data() -> None:
    found = Damage("model.mega", "/r/model.mega", "it is missing", "missing")
    assert (str(found), found.sentence) == ("model.mega: it is missing", "model.mega is missing")
    assert found.json() == {
        "member": "model.mega", "code": "missing", "reason": "it is missing", "path": "/r/model.mega"
    }  # fmt: skip
