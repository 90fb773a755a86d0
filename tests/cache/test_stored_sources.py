"""The text of the model's own modules as a member of an entry: no less guarded than a payload."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cache.support import (
    CONSTANTS,
    PAYLOADS,
    Clock,
    damage,
    files_below,
    flip,
    make_manifest,
    numbered,
    publish_sources,
    with_sources,
)

from precast.cache.canonical import decode_json, sha256
from precast.cache.mega import MegaFile, write_mega
from precast.cache.prune import PruneRules, execute, plan_prune
from precast.cache.store import Store
from precast.errors import NoEntryError, PartialError

TEXTS = {"shop.model": "x = 1\n"}


@pytest.fixture
def key(store: Store) -> str:
    return publish_sources(store, make_manifest(), TEXTS)


@pytest.fixture
def path(store: Store, key: str) -> Path:
    sources = store.manifest(key).sources
    assert sources is not None
    return store.layout.object(sources.object)


def test_an_entry_with_sources_is_whole(store: Store, key: str, path: Path) -> None:
    assert path.is_file()
    assert store.check(key) == ()
    assert store.absent(store.manifest(key)) == ()


def test_damaged_sources_are_found_and_named(store: Store, key: str, path: Path) -> None:
    damage(path, flip(500))
    assert [item.path for item in store.check(key)] == [str(path)]


def test_missing_sources_make_an_entry_damaged(store: Store, key: str, path: Path) -> None:
    path.unlink()
    assert store.absent(store.manifest(key)) == (f"object {path.stem} is missing",)
    assert [entry.state for entry in store.entries()] == ["damaged"]
    publish_sources(store, make_manifest(), TEXTS)
    assert store.check(key) == ()


def test_an_entry_whose_sources_are_not_stored_is_not_published(store: Store) -> None:
    manifest, _ = with_sources(make_manifest(), TEXTS)
    for raw in PAYLOADS:
        store.put_object(raw)
    with pytest.raises(PartialError):
        store.publish(manifest)


def test_sources_are_kept_while_an_entry_needs_them_and_go_with_the_last(
    store: Store, key: str, path: Path, clock: Clock
) -> None:
    other = publish_sources(store, replace(numbered(1, PAYLOADS)), TEXTS)
    execute(plan_prune(store, PruneRules(keys=(key,)), clock.now))
    assert store.check(other) == ()
    execute(plan_prune(store, PruneRules(keys=(other,)), clock.now))
    assert not path.exists()


def test_an_object_that_became_sources_after_the_plan_stays(store: Store, clock: Clock) -> None:
    manifest, raw = with_sources(make_manifest(), TEXTS)
    stored = store.put_object(raw)
    store.close()
    plan = plan_prune(store, PruneRules(), clock.now)
    assert [item.id for item in plan.remove if item.kind == "object"] == [stored.sha256]
    publish_sources(store, make_manifest(), TEXTS)
    execute(plan)
    assert store.check(manifest.key) == ()


def test_the_mega_artifact_holds_the_sources(store: Store, key: str) -> None:
    file = MegaFile(store.layout.mega(key))
    sources = file.manifest.sources
    assert sources is not None
    assert decode_json(file.payload(sources.object)) == TEXTS
    with pytest.raises(NoEntryError):
        file.payload("ab" * 32)


def test_a_mega_artifact_without_the_sources_is_not_written() -> None:
    manifest, raw = with_sources(make_manifest(), TEXTS)
    payloads = {sha256(item): item for item in PAYLOADS}
    with pytest.raises(ValueError, match="payloads"):
        write_mega(manifest, payloads, CONSTANTS)
    assert write_mega(manifest, {**payloads, sha256(raw): raw}, CONSTANTS)


def test_pruning_does_not_touch_the_index_and_the_counts(store: Store, key: str, clock: Clock) -> None:
    names = ("index-summary.json", "index-factors.json", "lookups.jsonl")
    for name in names:
        (store.layout.stats / name).write_text("{}")
    execute(plan_prune(store, PruneRules(keys=(key,)), clock.now))
    assert {f"stats/{name}" for name in names} <= files_below(store.layout.base).keys()
