"""Repair: every single damage is mended byte for byte, and nothing else is touched."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cache.support import (
    CONSTANTS,
    PAYLOADS,
    damage,
    files_below,
    flip,
    make_manifest,
    numbered,
    publish,
    publish_numbered,
    publish_sources,
    renamed,
)

from precast.cache.canonical import canonical_json, decode_json, digest, sha256
from precast.cache.copies import is_canonical, manifest_from_mega
from precast.cache.damage import Damage
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.mega import MegaFile
from precast.cache.repair import repair
from precast.cache.signatures import Signature, Signatures
from precast.cache.store import Store
from precast.errors import FormatError, NoEntryError, StoreAccessError

How = Callable[[bytes], bytes | None]

DAMAGES: Mapping[str, How] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "first byte": flip(0),
    "middle": flip(500),
    "last byte": flip(999),
    "longer": lambda data: data + b"\0",
}
CODES = {"missing": "missing", "empty": "empty", "cut": "truncated"}


@pytest.fixture
def plain(store: Store) -> str:
    """The key of an entry without baked constants, whose mega artifact can be made again of its objects."""
    return publish_sources(store, make_manifest(constants={}), {"shop.model": "scale = 2\n"})


def members(store: Store, key: str) -> dict[str, Path]:
    manifest = store.manifest(key)
    return {
        "manifest.json": store.layout.manifest(key),
        "model.mega": store.layout.mega(key),
        **{f"object {name}": store.layout.object(name) for name in manifest.objects},
    }


def spoil(path: Path, how: How) -> bytes:
    """Damage a file, and return what it holds then."""
    content = how(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    return content or b""


def state(store: Store) -> dict[str, bytes]:
    """What readers see: entries and objects."""
    return {n: d for n, d in files_below(store.layout.base).items() if n.startswith(("entries/", "objects/"))}


def kept(store: Store) -> list[bytes]:
    found = files_below(store.layout.quarantine)
    return [data for name, data in found.items() if not name.endswith("reason.json")]


@pytest.mark.parametrize("index", range(5), ids=["manifest", "mega", "object 0", "object 1", "sources"])
@pytest.mark.parametrize("how", DAMAGES)
def test_any_single_damage_is_mended_byte_for_byte(store: Store, plain: str, index: int, how: str) -> None:
    before = state(store)
    member, path = list(members(store, plain).items())[index]
    bad = spoil(path, DAMAGES[how])
    (found,) = store.check(plain)
    assert (found.member, found.path, found.code) == (member, str(path), CODES.get(how, "altered"))
    repaired = repair(store, plain)
    assert repaired is not None
    assert [item.damage for item in repaired.mended] == [found]
    assert store.check(plain) == ()
    assert state(store) == before
    assert repaired.manifest == store.manifest(plain)
    assert kept(store) == ([] if how == "missing" else [bad])
    assert list(store.layout.staging.iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in range(5) for b in range(a)])
def test_swapped_files_are_told_from_altered_ones_and_mended_where_one_copy_is_left(
    store: Store, plain: str, first: int, second: int
) -> None:
    before = state(store)
    found = list(members(store, plain).items())
    one, two = found[first][1], found[second][1]
    content = one.read_bytes(), two.read_bytes()
    one.write_bytes(content[1])
    two.write_bytes(content[0])
    damaged = store.check(plain)
    assert {item.code for item in damaged} == {"foreign"}
    assert all("it holds " in item.reason for item in damaged)
    repaired = repair(store, plain)
    if {first, second} & {1}:  # the mega artifact and something that only it could mend
        assert repaired is None
        assert list(store.entries()) == []
    else:
        assert repaired is not None
        assert state(store) == before


def test_a_sound_entry_is_left_alone(store: Store, plain: str) -> None:
    inodes = {path: path.stat().st_ino for path in members(store, plain).values()}
    repaired = repair(store, plain)
    assert repaired is not None
    assert repaired.mended == ()
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert kept(store) == []


def test_an_absent_entry_stays_absent(store: Store) -> None:
    store.layout.prepare()
    assert repair(store, "ab" * 32) is None
    assert kept(store) == []


def test_all_objects_and_the_manifest_are_mended_at_once(store: Store, plain: str) -> None:
    before = state(store)
    for member, path in members(store, plain).items():
        if member != "model.mega":
            spoil(path, flip(500))
    repaired = repair(store, plain)
    assert repaired is not None
    assert len(repaired.mended) == 4
    assert state(store) == before


def test_the_reason_beside_a_bad_copy_names_entry_member_and_damage(store: Store, plain: str) -> None:
    bad = spoil(store.layout.mega(plain), flip(500))
    repaired = repair(store, plain)
    assert repaired is not None
    (item,) = repaired.mended
    assert item.kept is not None
    assert item.kept.read_bytes() == bad
    told = json.loads(item.kept.with_name("reason.json").read_text())
    assert (told["entry"], told["member"], told["code"]) == (plain, "model.mega", "altered")


def test_what_cannot_be_mended_goes_to_quarantine_with_its_bad_objects(store: Store, plain: str) -> None:
    found = members(store, plain)
    name = sha256(PAYLOADS[0])
    bad = [spoil(found[member], flip(500)) for member in (f"object {name}", "model.mega")]
    # The flipped byte of the mega artifact is in its header, so nothing of it can be read.
    spoil(found["model.mega"], flip(100))
    assert repair(store, plain) is None
    with pytest.raises(NoEntryError):
        store.manifest(plain)
    assert not store.layout.object(name).exists()
    assert bad[0] in kept(store)
    assert store.read_object(sha256(PAYLOADS[1])) == PAYLOADS[1]


def spoil_frame(store: Store, key: str, name: str) -> None:
    """Damage an object in the mega artifact, and nothing else of it."""
    place = MegaFile(store.layout.mega(key))._tensors[f"object.{name}"]
    damage(store.layout.mega(key), lambda data: data[: place.end - 1] + b"x" + data[place.end :])


def test_an_object_that_is_bad_in_both_copies_is_not_replaced_by_the_other_bad_one(store: Store, plain: str) -> None:
    name = sha256(PAYLOADS[0])
    bad = spoil(store.layout.object(name), flip(500))
    spoil_frame(store, plain, name)
    assert repair(store, plain) is None
    found = files_below(store.layout.quarantine)
    assert [data for path, data in found.items() if path.endswith(f"{name}.zst")] == [bad]


def test_no_manifest_is_made_of_a_mega_artifact_with_a_bad_member(store: Store, plain: str) -> None:
    """Its own digest would then vouch for the bad member."""
    spoil_frame(store, plain, sha256(PAYLOADS[0]))
    store.layout.manifest(plain).unlink()
    assert repair(store, plain) is None


def test_a_mega_artifact_with_constants_is_mended_only_of_its_own_constants(store: Store, key: str) -> None:
    before = state(store)
    mega = store.layout.mega(key)
    tensors = MegaFile(mega)._tensors
    frame = tensors[f"object.{sha256(PAYLOADS[0])}"]
    damage(mega, lambda data: data[: frame.begin] + b"x" + data[frame.begin + 1 :])
    repaired = repair(store, key)
    assert repaired is not None
    assert state(store) == before
    constant = tensors["constant.scale"]
    damage(mega, lambda data: data[: constant.begin] + b"x" + data[constant.begin + 1 :])
    assert repair(store, key) is None
    assert CONSTANTS


def test_an_object_that_two_entries_share_is_mended_for_both_and_the_other_entry_is_not_touched(
    store: Store, plain: str
) -> None:
    other = publish(store, numbered(1, PAYLOADS), PAYLOADS)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in store.layout.entry(other).iterdir()}
    untouched = store.layout.object(sha256(PAYLOADS[1])).stat().st_ino
    spoil(store.layout.object(sha256(PAYLOADS[0])), flip(500))
    assert repair(store, plain) is not None
    assert store.check(other) == ()
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in store.layout.entry(other).iterdir()} == before
    assert store.layout.object(sha256(PAYLOADS[1])).stat().st_ino == untouched


def test_a_hopeless_entry_takes_no_sound_object_from_another_one(store: Store, plain: str) -> None:
    other = publish(store, numbered(1, PAYLOADS), PAYLOADS)
    spoil(store.layout.mega(plain), flip(100))
    spoil(store.layout.manifest(plain), flip(500))
    assert repair(store, plain) is None
    assert store.check(other) == ()


def test_a_changed_digit_in_the_schema_is_mended_and_a_real_newer_format_left_alone(store: Store, plain: str) -> None:
    before = state(store)
    newer = store.layout.manifest(plain).read_bytes().replace(b"precast.manifest/1", b"precast.manifest/2")
    store.layout.manifest(plain).write_bytes(newer)
    repaired = repair(store, plain)
    assert repaired is not None
    assert state(store) == before
    store.layout.manifest(plain).write_bytes(newer)
    store.layout.mega(plain).unlink()
    with pytest.raises(FormatError):
        repair(store, plain)
    assert store.layout.manifest(plain).read_bytes() == newer


def test_a_file_that_cannot_be_read_is_no_damage_to_mend(
    store: Store, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = Damage("model.mega", str(store.layout.mega(plain)), "it cannot be read: Input/output error", "unreadable")
    monkeypatch.setattr(Store, "check", lambda *_: (item,))
    before = state(store)
    with pytest.raises(StoreAccessError, match="cannot be checked"):
        repair(store, plain)
    assert state(store) == before


def test_a_mega_artifact_of_another_build_mends_nothing(store: Store, tmp_path: Path) -> None:
    """Its content is sound, but it is not what the manifest or the signatures are about."""
    key = publish_numbered(store, 1)
    other = Store(tmp_path / "other")
    raw = b"payload 1 " * 50
    publish(other, replace(numbered(1), code="def run(x):\n    return x\n"), (raw,))
    store.layout.mega(key).write_bytes(other.layout.mega(key).read_bytes())
    (found,) = store.check(key)
    assert (found.code, "another build" in found.reason) == ("foreign", True)
    before = store.manifest(key)
    assert repair(store, key) is not None
    assert store.manifest(key) == before


def test_a_manifest_that_the_signatures_are_not_over_is_not_made(store: Store, plain: str) -> None:
    bad = Signatures((Signature("ed25519", b"k" * 32, b"s" * 64),))
    (store.layout.entry(plain) / "signatures.json").write_bytes(bad.to_json())
    store.layout.manifest(plain).unlink()
    assert repair(store, plain) is None


def test_the_signatures_of_a_mended_entry_stay(store: Store, plain: str) -> None:
    beside = store.layout.entry(plain) / "signatures.json"
    beside.write_bytes(Signatures((Signature("later", b"k", b"s"),)).to_json())
    inode = beside.stat().st_ino
    store.layout.manifest(plain).unlink()
    assert repair(store, plain) is not None
    assert beside.stat().st_ino == inode


def test_an_entry_under_a_key_that_its_factors_do_not_make_is_not_mended(store: Store) -> None:
    key = publish(store, renamed(make_manifest(constants={}), "ab" * 32), PAYLOADS)
    assert store.check(key) == ()
    store.layout.manifest(key).unlink()
    assert repair(store, key) is None


def test_fields_that_this_version_does_not_know_survive(store: Store, plain: str) -> None:
    """A later version may add fields to the manifest in both copies."""
    path, mega_path = store.layout.manifest(plain), store.layout.mega(plain)
    mega = MegaFile(mega_path)
    body = decode_json(mega.document)
    assert isinstance(body, dict)
    body = {**body, "later": {"field": 0.5}}
    del body["digest"]
    from precast.cache.mega import pack_mega

    frames = {name: mega.frame(name) for name in mega.manifest.objects}
    data = pack_mega(canonical_json({**body, "digest": digest(body)}), frames, {})
    mega_path.write_bytes(data)
    whole = {**body, "mega": MegaRecord(sha256(data), len(data)).json()}
    document = canonical_json({**whole, "digest": digest(whole)})
    path.write_bytes(document)
    assert store.check(plain) == ()
    assert manifest_from_mega(MegaFile(mega_path)) == document
    path.unlink()
    assert repair(store, plain) is not None
    assert path.read_bytes() == document
    mega_path.unlink()
    assert repair(store, plain) is not None
    assert mega_path.read_bytes() == data


def test_a_mega_artifact_written_in_another_way_is_not_canonical(store: Store, plain: str) -> None:
    path = store.layout.mega(plain)
    assert is_canonical(MegaFile(path))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    # Blanks after the header: the same content, other bytes.
    path.write_bytes((length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :])
    assert MegaFile(path).damage() == ()
    assert not is_canonical(MegaFile(path))
    store.layout.manifest(plain).unlink()
    assert repair(store, plain) is None


def test_an_entry_without_a_mega_artifact_cannot_be_mended(store: Store) -> None:
    manifest: Manifest = make_manifest(PAYLOADS[:1], {})
    store.put_object(PAYLOADS[0])
    store.publish(manifest)
    spoil(store.layout.object(sha256(PAYLOADS[0])), flip(500))
    assert repair(store, manifest.key) is None


def test_a_read_only_store_is_not_mended(store: Store, plain: str) -> None:
    spoil(store.layout.mega(plain), flip(500))
    before = files_below(store.root)
    with pytest.raises(StoreAccessError, match="read-only"):
        repair(Store(store.root, read_only=True), plain)
    assert files_below(store.root) == before
