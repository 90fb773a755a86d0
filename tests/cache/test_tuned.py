"""The record of what nodes chose: kept beside the manifest, by GPU, and never believed where it is not whole."""

import json
import logging
from pathlib import Path

import pytest
from tests.cache.support import files_below

from precast.cache.store import Store
from precast.cache.tuned import keep_tuned, read_tuned

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def place(store: Store, key: str) -> Path:
    return store.layout.entry(key) / "tuned.json"


def test_choices_are_kept_by_gpu_and_the_first_stays(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    assert read_tuned(store, manifest, H200) == {}
    assert keep_tuned(store, manifest, H200, {"a": "1"})
    assert keep_tuned(store, manifest, H200, {"a": "2", "b": "3"})
    assert keep_tuned(store, manifest, H100, {"a": "4"})
    assert read_tuned(store, manifest, H200) == {"a": "1", "b": "3"}
    assert read_tuned(store, manifest, H100) == {"a": "4"}


def test_what_is_known_already_writes_nothing(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    keep_tuned(store, manifest, H200, {"a": "1"})
    before = place(store, key).stat().st_mtime_ns, place(store, key).stat().st_ino
    assert not keep_tuned(store, manifest, H200, {"a": "1"})
    assert not keep_tuned(store, manifest, H200, {"a": "2"})
    assert (place(store, key).stat().st_mtime_ns, place(store, key).stat().st_ino) == before


def test_the_entry_is_what_it_was(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    with store.lock(f"entry-{key}"):  # makes the folders that a writer needs
        before = files_below(store.root)
    keep_tuned(store, manifest, H200, {"a": "1"})
    after = files_below(store.root)
    changed = {name for name in after if before.get(name) != after[name]}
    assert {name for name in changed if "locks" not in name} == {f"v1/entries/{key}/tuned.json"}
    assert store.check(key) == ()
    assert store.manifest(key) == manifest


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"7", b'{"schema":"precast.tuned/1"}', b"\xff\xfe",
        b'{"digest":"0","schema":"precast.tuned/9"}',
    ],
)  # fmt: skip
def test_a_damaged_record_does_not_count_and_is_replaced(
    store: Store, key: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = store.manifest(key)
    place(store, key).write_bytes(damage)
    with caplog.at_level(logging.INFO, "precast"):
        assert read_tuned(store, manifest, H200) == {}
    assert "do not count" in caplog.text
    assert keep_tuned(store, manifest, H200, {"a": "1"})
    assert read_tuned(store, manifest, H200) == {"a": "1"}


def test_an_altered_choice_or_one_of_another_build_does_not_count(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    keep_tuned(store, manifest, H200, {"a": "1"})
    whole = place(store, key).read_text()
    place(store, key).write_text(whole.replace('"1"', '"2"'))
    assert read_tuned(store, manifest, H200) == {}
    other = json.loads(whole)
    other["content"] = "0" * 64
    place(store, key).write_text(json.dumps(other))
    assert read_tuned(store, manifest, H200) == {}


def test_where_nothing_can_be_written_the_choice_is_not_kept_and_that_is_logged(
    store: Store, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = store.manifest(key)
    with caplog.at_level(logging.INFO, "precast"):
        assert not keep_tuned(Store(store.root, read_only=True), manifest, H200, {"a": "1"})
    assert "are not kept" in caplog.text
    assert not place(store, key).exists()


def test_an_entry_that_is_gone_keeps_nothing(store: Store, key: str, caplog: pytest.LogCaptureFixture) -> None:
    manifest = store.manifest(key)
    store.quarantine(key, "as `prune` would")
    with caplog.at_level(logging.INFO, "precast"):
        assert not keep_tuned(store, manifest, H200, {"a": "1"})
    assert "are not kept" in caplog.text
    assert read_tuned(store, manifest, H200) == {}
