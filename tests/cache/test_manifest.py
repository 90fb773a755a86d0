import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import PAYLOADS, make_manifest, payload_record, with_sources

from precast.cache.canonical import canonical_json, decode_json, digest, sha256
from precast.cache.factors import Factor
from precast.cache.manifest import TOO_NEW, TOO_OLD, Manifest, MegaRecord, ModelRecord
from precast.errors import CorruptError, FormatError

GOLDEN = Path(__file__).parent / "golden" / "manifest-v1.json"
GOLDEN_SOURCES = GOLDEN.with_name("manifest-v1-sources.json")

names = st.text().filter(lambda name: name != "$float")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
manifests = st.builds(
    replace,
    st.just(make_manifest()),
    factors=st.lists(st.builds(Factor, st.text(), st.text(), json_values), max_size=3).map(tuple),
    plan=st.dictionaries(names, json_values, max_size=3),
    code=st.text(),
    payloads=st.lists(st.binary().map(payload_record), max_size=3).map(tuple),
    mega=st.none() | st.builds(MegaRecord, st.just("cd" * 32), st.integers(0, 2**60)),
)


def tampered(**changes: Any) -> bytes:
    """A manifest with fields changed behind its back, under a digest that fits them."""
    document: Any = decode_json(make_manifest().to_json())
    document |= changes
    del document["digest"]
    return canonical_json({**document, "digest": digest(document)})


@given(manifests)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest.sealed()


@given(manifests, st.integers(0, 10**6), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(manifest: Manifest, position: int, change: int) -> None:
    data = bytearray(manifest.to_json())
    data[position % len(data)] ^= change
    with pytest.raises(CorruptError):
        Manifest.from_json(bytes(data))


@given(st.integers(0, 10**6))
def test_no_truncation_goes_unnoticed(length: int) -> None:
    data = make_manifest().to_json()
    with pytest.raises(CorruptError):
        Manifest.from_json(data[: length % len(data)])


def test_the_golden_manifest_loads_and_is_written_again_byte_for_byte() -> None:
    data = GOLDEN.read_bytes()
    manifest = Manifest.from_json(data)
    assert manifest.to_json() == data
    assert manifest == replace(make_manifest(), mega=MegaRecord("cd" * 32, 4096)).sealed()


def sourced() -> Manifest:
    manifest, _ = with_sources(make_manifest(), {"shop.model": "x = 1\n"})
    return replace(manifest, ignored=("HOME", "RANK"), mega=MegaRecord("cd" * 32, 4096))


def test_the_golden_manifest_with_sources_loads_and_is_written_again_byte_for_byte() -> None:
    data = GOLDEN_SOURCES.read_bytes()
    assert Manifest.from_json(data) == sourced().sealed()
    assert sourced().to_json() == data


def test_a_manifest_without_sources_does_not_speak_of_them() -> None:
    assert json.loads(make_manifest().to_json()).keys().isdisjoint({"sources", "ignored"})
    assert Manifest.from_json(tampered(sources=None, ignored=[])).sources is None


def test_malformed_sources_are_damage() -> None:
    with pytest.raises(CorruptError) as caught:
        Manifest.from_json(tampered(sources={"object": "x", "bytes": -1}, ignored=[1]))
    for part in (
        "sources.object is malformed",
        "sources.bytes is not a count",
        "ignored holds something else than text",
    ):
        assert part in caught.value.why


def test_the_objects_of_an_entry_are_its_payloads_and_its_sources_each_once() -> None:
    manifest, raw = with_sources(make_manifest((*PAYLOADS, PAYLOADS[0])), {"shop.model": "x = 1\n"})
    assert manifest.objects == {sha256(item): len(item) for item in (*PAYLOADS, raw)}


def test_seconds_are_kept_as_whole_milliseconds() -> None:
    document = json.loads(make_manifest().to_json())
    assert document["build"]["milliseconds"] == 12500
    assert document["payloads"][0]["milliseconds"] == 1250
    assert Manifest.from_json(make_manifest().to_json()).build.seconds == 12.5


def test_a_field_of_a_later_version_is_left_out_and_yet_protected() -> None:
    data = tampered(colour="green")
    sealed = json.loads(data)["digest"]
    assert Manifest.from_json(data) == replace(make_manifest(), digest=sealed, content_digest=sealed)
    with pytest.raises(CorruptError, match="digest does not fit"):
        Manifest.from_json(data.replace(b"green", b"grey!"))


@given(manifests)
def test_the_content_digest_is_the_digest_of_the_manifest_in_a_mega_file(manifest: Manifest) -> None:
    inside = Manifest.from_json(replace(manifest, mega=None).to_json())
    for outside in (manifest.sealed(), Manifest.from_json(manifest.to_json())):
        assert outside.content_digest == inside.digest == inside.content_digest
        assert (outside.digest == inside.digest) == (manifest.mega is None)


def test_the_content_digest_covers_fields_of_a_later_version() -> None:
    assert Manifest.from_json(tampered(colour="green")).content_digest != make_manifest().sealed().content_digest


def test_a_draft_has_no_content_digest() -> None:
    assert make_manifest().content_digest == ""


def test_every_problem_is_named_in_one_error() -> None:
    data = tampered(
        key="short",
        model={"name": 1, "config": []},
        payloads=[{"name": "a", "kind": "b", "object": "c", "bytes": -1, "range": [2, 1]}, 7],
        stamps={"aoti": {"torch": 2}},
        build={"created_at": "yesterday", "milliseconds": True, "precast": "0"},
    )
    with pytest.raises(CorruptError) as caught:
        Manifest.from_json(data)
    for part in (
        "key is malformed",
        "model.name is not text",
        "model.reference is missing",
        "model.config is not an object",
        "payloads[0].object is malformed",
        "payloads[0].bytes is not a count",
        "payloads[0].range is no range",
        "payloads[1] is not an object",
        "stamps.aoti holds something else than text",
        "build.created_at is malformed",
        "build.milliseconds is not a count",
    ):
        assert part in caught.value.why
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("schema", "what"), [("precast.manifest/2", TOO_NEW), ("precast.manifest/0", TOO_OLD)])
def test_another_format_is_told_from_damage(schema: str, what: str) -> None:
    with pytest.raises(FormatError) as caught:
        Manifest.from_json(tampered(schema=schema, key=7))
    assert caught.value.what == what
    assert schema in caught.value.why


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"schema":"precast.manifest/x"}', b'{"schema":1}']
)
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        Manifest.from_json(data)
    assert not isinstance(caught.value, FormatError)


def test_a_missing_digest_is_damage() -> None:
    document = decode_json(make_manifest().to_json())
    assert isinstance(document, dict)
    del document["digest"]
    with pytest.raises(CorruptError, match="digest"):
        Manifest.from_json(canonical_json(document))


@pytest.mark.parametrize("reference", ["/home/me/model.py:tiny", "C:\\models\\tiny"])
def test_an_absolute_path_never_gets_into_a_manifest(reference: str) -> None:
    manifest = replace(make_manifest(), model=ModelRecord("tiny", reference, {}))
    with pytest.raises(ValueError, match="absolute path"):
        manifest.to_json()
