"""Signing entries of a store: what is signed is what was seen, once, and signatures of others stay."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cache.keys import private_key
from tests.cache.support import PAYLOADS, files_below, make_manifest, publish
from tests.cache.test_signatures import foreign

from precast.cache import signing
from precast.cache.repair import repair
from precast.cache.signatures import UNSIGNED, Signature, Signatures, require_signature
from precast.cache.signing import mend_signatures, sign_entry, signatures_in, signers, stored_signatures
from precast.cache.store import Store
from precast.errors import NoEntryError, SignatureError, StoreAccessError

ONE, TWO = private_key("one"), private_key("two")


def place(store: Store, key: str) -> Path:
    return store.layout.entry(key) / "signatures.json"


def test_an_entry_is_signed_by_one_and_then_by_another(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    assert stored_signatures(store, key) == UNSIGNED
    assert signers(store, key) == ()
    assert sign_entry(store, manifest, ONE)
    assert sign_entry(store, manifest, TWO)
    assert set(signers(store, key)) == {ONE.public.id, TWO.public.id}
    for private in (ONE, TWO):
        require_signature(manifest, stored_signatures(store, key), [private.public])
    assert signatures_in(store.layout.entry(key)) == stored_signatures(store, key)


def test_who_signed_already_writes_nothing(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    sign_entry(store, manifest, ONE)
    before = place(store, key).stat()
    reader = Store(store.root, read_only=True)
    assert not sign_entry(reader, manifest, ONE)
    assert place(store, key).stat().st_mtime_ns == before.st_mtime_ns
    assert place(store, key).stat().st_ino == before.st_ino


def test_signing_changes_no_other_file_and_leaves_nothing_behind(store: Store, key: str) -> None:
    sign_entry(store, store.manifest(key), ONE)  # makes the lock file too
    place(store, key).unlink()
    before = files_below(store.root)
    sign_entry(store, store.manifest(key), ONE)
    after = files_below(store.root)
    assert {name for name in after if before.get(name) != after[name]} == {f"v1/entries/{key}/signatures.json"}
    assert store.check(key) == ()


def test_an_own_signature_that_does_not_fit_is_replaced_and_others_stay(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    sign_entry(store, manifest, TWO)
    stale = Signature("ed25519", ONE.public.raw, bytes(64))
    kept = (*stored_signatures(store, key).items, foreign())
    place(store, key).write_bytes(Signatures((*kept, stale)).to_json())
    assert sign_entry(store, manifest, ONE)
    found = stored_signatures(store, key)
    assert len(found.items) == 3
    assert set(kept) < set(found.items)
    assert set(signers(store, key)) == {ONE.public.id, TWO.public.id}


def test_an_entry_that_was_replaced_meanwhile_is_not_signed(store: Store, key: str) -> None:
    seen = store.manifest(key)
    other = replace(make_manifest(), code="def run(x):\n    return x\n", mega=seen.mega)
    store.layout.manifest(key).write_bytes(other.to_json())
    with pytest.raises(SignatureError, match="replaced by another"):
        sign_entry(store, seen, ONE)
    assert stored_signatures(store, key) == UNSIGNED


def test_an_entry_that_is_gone_is_not_signed(store: Store, key: str) -> None:
    seen = store.manifest(key)
    store.layout.entry(key).rename(store.root / "elsewhere")
    with pytest.raises(NoEntryError):
        sign_entry(store, seen, ONE)
    assert list(store.layout.staging.iterdir()) == []


def test_an_entry_that_goes_while_it_is_signed_is_told(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = store.manifest(key)
    monkeypatch.setattr(signing, "_require_same", lambda *_: store.layout.entry(key).rename(store.root / "elsewhere"))
    with pytest.raises(NoEntryError, match="is gone"):
        sign_entry(store, seen, ONE)
    assert list(store.layout.staging.iterdir()) == []


def test_a_read_only_store_is_not_signed(store: Store, key: str) -> None:
    reader = Store(store.root, read_only=True)
    with pytest.raises(StoreAccessError, match="read-only"):
        sign_entry(reader, reader.manifest(key), ONE)


def test_signatures_of_a_later_schema_are_not_overwritten(store: Store, key: str) -> None:
    later = b'{"schema":"precast.signatures/2"}'
    place(store, key).write_bytes(later)
    with pytest.raises(SignatureError, match=r"precast\.signatures/2"):
        sign_entry(store, store.manifest(key), ONE)
    assert mend_signatures(store, store.manifest(key)) == ()
    assert place(store, key).read_bytes() == later


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [half, lambda _: b"", lambda d: d.replace(b"A", b"B"), lambda d: b"\xff" + d[1:]])
def test_damaged_signatures_are_taken_away_and_can_be_made_again(
    store: Store, key: str, damage: Callable[[bytes], bytes]
) -> None:
    manifest = store.manifest(key)
    sign_entry(store, manifest, ONE)
    good = place(store, key).read_bytes()
    place(store, key).write_bytes(damage(good))
    assert len(mend_signatures(store, manifest)) == 1
    assert not place(store, key).exists()
    assert mend_signatures(store, manifest) == ()
    sign_entry(store, manifest, ONE)
    assert place(store, key).read_bytes() == good


def test_only_the_signature_that_does_not_fit_is_taken_away(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    sign_entry(store, manifest, TWO)
    good = stored_signatures(store, key).items
    bad = Signature("ed25519", ONE.public.raw, bytes(64))
    place(store, key).write_bytes(Signatures((*good, foreign(), bad)).to_json())
    assert mend_signatures(store, manifest) == (f"the signature of {ONE.public.id} does not fit the entry's content",)
    assert set(stored_signatures(store, key).items) == {*good, foreign()}


def test_signing_damaged_signatures_writes_them_anew(store: Store, key: str) -> None:
    place(store, key).write_bytes(b"damaged")
    assert sign_entry(store, store.manifest(key), ONE)
    assert signers(store, key) == (ONE.public.id,)


def test_a_file_of_signatures_that_is_too_long_or_no_file_is_damage(store: Store, key: str) -> None:
    place(store, key).write_bytes(b" " * (2**20 + 1))
    assert "more than 1048576 bytes" in stored_signatures(store, key).damage
    place(store, key).unlink()
    place(store, key).mkdir()
    assert "directory" in stored_signatures(store, key).damage


def test_another_entry_s_signatures_do_not_fit(store: Store, key: str) -> None:
    sign_entry(store, store.manifest(key), ONE)
    other = publish(store, replace(make_manifest(), key="ab" * 32), PAYLOADS)
    place(store, other).write_bytes(place(store, key).read_bytes())
    with pytest.raises(SignatureError, match="does not fit"):
        require_signature(store.manifest(other), stored_signatures(store, other), [ONE.public])
    assert signers(store, other) == ()


def test_publishing_the_same_content_again_keeps_the_signatures(store: Store, key: str) -> None:
    sign_entry(store, store.manifest(key), ONE)
    before = place(store, key).read_bytes()
    assert publish(store, make_manifest(), PAYLOADS) == key
    assert place(store, key).read_bytes() == before


@pytest.mark.parametrize("member", ["manifest.json", "model.mega", "object"])
def test_mending_an_entry_keeps_the_signatures(store: Store, member: str) -> None:
    key = publish(store, make_manifest(PAYLOADS, {}), PAYLOADS)  # constants are in the mega file alone
    manifest = store.manifest(key)
    sign_entry(store, manifest, ONE)
    folder = store.layout.entry(key)
    damaged = store.layout.object(next(iter(manifest.objects))) if member == "object" else folder / member
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-7])
    repaired = repair(store, key)
    assert repaired is not None
    assert len(repaired.mended) == 1
    assert store.check(key) == ()
    require_signature(store.manifest(key), stored_signatures(store, key), [ONE.public])


def test_who_signs_at_the_same_time_signs_beside_the_others(store: Store, key: str) -> None:
    keys = [private_key(str(number)) for number in range(6)]
    manifest = store.manifest(key)
    with ThreadPoolExecutor(len(keys)) as pool:
        done = list(pool.map(lambda each: sign_entry(Store(store.root, lock_timeout_s=30), manifest, each), keys))
    assert done == [True] * len(keys)
    assert set(signers(store, key)) == {each.public.id for each in keys}


def test_the_file_s_mode_is_what_the_umask_leaves(store: Store, key: str) -> None:
    before = os.umask(0o027)
    try:
        sign_entry(store, store.manifest(key), ONE)
    finally:
        os.umask(before)
    assert place(store, key).stat().st_mode & 0o777 == 0o640
