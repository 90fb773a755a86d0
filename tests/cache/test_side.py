import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cache.support import (
    CONSTANTS,
    FACTORS,
    PAYLOADS,
    damage,
    flip,
    make_manifest,
    numbered,
    publish,
    publish_sources,
)

from precast.cache.canonical import canonical_json, sha256
from precast.cache.diff import Side, diff_sides
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import SCHEMA
from precast.cache.mega import write_mega
from precast.cache.side import open_side
from precast.cache.store import Store
from precast.cache.tags import set_tag
from precast.errors import (
    AmbiguousKeyError,
    CorruptError,
    FormatError,
    NoEntryError,
    PrecastError,
    UsageError,
)

TEXTS = {"shop.model": "x = 1\n", "shop.layers": "y = 2\n"}


@pytest.fixture
def key(store: Store) -> str:
    """The key of an entry with sources."""
    return publish_sources(store, make_manifest(), TEXTS)


def same(side: Side, key: str) -> bool:
    return (side.key, side.factors, dict(side.sources)) == (key, FACTORS, TEXTS)


def test_keys_prefixes_and_tags_name_an_entry(store: Store, key: str) -> None:
    set_tag(store, "release-41", key)
    for text, label in (
        (key, key[:12]),
        (key[:6], key[:12]),
        (key[:8].upper(), key[:12]),
        ("release-41", "release-41"),
    ):
        side = open_side(text, store)
        assert same(side, key)
        assert side.label == label


def test_a_key_goes_before_a_tag(store: Store, key: str) -> None:
    other = publish(store, numbered(7), (b"payload 7 " * 50,))
    set_tag(store, key[:6], other)
    assert open_side(key[:6], store).key == key


def test_files_and_folders_of_an_entry_name_it(store: Store, key: str, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    for path in (store.layout.manifest(key), store.layout.entry(key), store.layout.mega(key)):
        assert same(open_side(str(path), elsewhere), key)


def test_a_manifest_on_its_own_has_no_sources(store: Store, key: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    path.write_bytes(store.layout.manifest(key).read_bytes())
    side = open_side(str(path), store)
    assert (side.key, dict(side.sources)) == (key, {})


def test_an_entry_of_another_root_is_named_with_its_root(store: Store, key: str, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    set_tag(store, "old", key)
    for name in (key, key[:6], "old"):
        assert same(open_side(f"{store.root}@{name}", elsewhere), key)
    assert not elsewhere.root.exists()


def test_the_live_request_is_made_on_demand(store: Store) -> None:
    live = Side("live", "", FACTORS)
    assert open_side("live", store, lambda: live) is live
    with pytest.raises(UsageError, match="live"):
        open_side("live", store)


def test_a_vllm_factor_file_and_the_folders_above_it_are_sides(store: Store, tmp_path: Path) -> None:
    prefix = tmp_path / "vllm/torch_compile_cache/0123456789/rank_0_0/backbone"
    prefix.mkdir(parents=True)
    (prefix / "cache_key_factors.json").write_text(json.dumps({"env": {"A": "1"}, "more": 1}))
    for path in (prefix / "cache_key_factors.json", prefix, prefix.parent, prefix.parent.parent):
        side = open_side(str(path), store)
        assert (side.foreign, side.key, side.factors) == (True, "0123456789", (Factor("env", "A", "1"),))
    other = prefix.with_name("eagle_head")
    other.mkdir()
    (other / "cache_key_factors.json").write_text("{}")
    with pytest.raises(AmbiguousKeyError, match="eagle_head"):
        open_side(str(prefix.parent), store)


def test_an_aot_folder_of_vllm_has_no_factors(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "torch_compile_cache/torch_aot_compile" / ("ab" * 32)
    (folder / "rank_0_0").mkdir(parents=True)
    with pytest.raises(NoEntryError, match="no factors"):
        open_side(str(folder), store)


ABSENT = ("no-such-tag", "0123456789ab", "a/b/manifest.json", "nowhere@0123456789ab", "@", "", "x@")


@pytest.mark.parametrize("text", ABSENT)
def test_a_missing_side_is_said_to_be_missing(store: Store, key: str, text: str) -> None:
    with pytest.raises((NoEntryError, UsageError)) as caught:
        open_side(text, store)
    assert caught.value.what
    assert caught.value.hint


def test_an_ambiguous_prefix_lists_the_candidates(store: Store) -> None:
    keys = [publish(store, replace(make_manifest(), key=f"abcdef{digit}".ljust(64, "0")), PAYLOADS) for digit in "12"]
    with pytest.raises(AmbiguousKeyError) as caught:
        open_side("abcdef", store)
    assert all(key in caught.value.why for key in keys)


def test_a_root_that_is_not_ours_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cache root of precast") as caught:
        open_side(f"{tmp_path}@0123456789ab", store)
    assert not isinstance(caught.value, NoEntryError)


def test_a_root_alone_is_no_side(store: Store, key: str) -> None:
    with pytest.raises(UsageError, match="cache root") as caught:
        open_side(str(store.root), store)
    assert "@KEY" in caught.value.hint


def test_a_newer_format_is_said_to_be_newer(store: Store, key: str) -> None:
    path = store.layout.manifest(key)
    damage(path, lambda data: data.replace(SCHEMA.encode(), SCHEMA.replace("/1", "/2").encode()))
    for text in (key, str(path), str(path.parent)):
        with pytest.raises(FormatError, match="too new"):
            open_side(text, store)


def test_a_half_written_entry_is_said_to_be_one(store: Store, key: str) -> None:
    store.layout.manifest(key).unlink()
    for text in (str(store.layout.entry(key)), key):
        with pytest.raises(CorruptError, match="manifest is missing"):
            open_side(text, store)
    staged = store.layout.staging / f"{key}-{'0' * 16}"
    staged.mkdir()
    with pytest.raises(CorruptError, match="not written to the end"):
        open_side(str(staged), store)


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b"text", b"\x08\0\0\0\0\0\0\0{}"])
def test_a_file_of_another_kind_is_refused_with_its_path(store: Store, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(PrecastError) as caught:
        open_side(str(path), store)
    assert caught.value.path == str(path)


def damaged_sources(store: Store, key: str) -> Path:
    sources = store.manifest(key).sources
    assert sources is not None
    return store.layout.object(sources.object)


@pytest.mark.parametrize("how", [flip(500), lambda data: b""])
def test_damaged_sources_leave_the_factors_readable(store: Store, key: str, how: Any) -> None:
    damage(damaged_sources(store, key), how)
    side = open_side(key, store)
    assert (side.factors, dict(side.sources)) == (FACTORS, {})


def test_sources_that_are_no_mapping_of_texts_are_left_out(store: Store) -> None:
    manifest = make_manifest()
    raw = canonical_json({"shop.model": 7, "shop.layers": "y = 2\n"})
    assert dict(open_side(publish_sources(store, manifest, raw), store).sources) == {"shop.layers": "y = 2\n"}


def test_an_edited_module_is_found_between_two_entries(store: Store, key: str) -> None:
    texts = {**TEXTS, "shop.model": "x = 3\n"}
    edited = []
    for text in (TEXTS, texts):
        factors = (*FACTORS, Factor("code", "module:shop.model", sha256(text["shop.model"].encode())))
        manifest = replace(make_manifest(factors=factors), key=entry_key(factors))
        edited.append(open_side(publish_sources(store, manifest, text), store))
    (change,) = diff_sides(edited[0], edited[1]).changes
    assert [(line.line_a, line.a, line.b) for line in change.lines] == [(1, "x = 1", "x = 3")]


def test_a_mega_file_without_its_store_holds_the_sources(store: Store, key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.mega"
    path.write_bytes(store.layout.mega(key).read_bytes())
    assert same(open_side(str(path), Store(tmp_path / "elsewhere")), key)
    manifest = store.manifest(key)
    with pytest.raises(ValueError, match="payloads"):
        write_mega(manifest, {sha256(raw): raw for raw in PAYLOADS}, CONSTANTS)
