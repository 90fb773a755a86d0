"""Signatures: one fits one content of one key, and nothing that was not signed passes for signed."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.keys import library_key, private_key
from tests.cache.support import make_manifest

from precast.cache import signatures as module
from precast.cache.canonical import canonical_json
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.signatures import (
    INVALID,
    UNCHECKED,
    UNKNOWN,
    UNSIGNED,
    VALID,
    Signature,
    Signatures,
    faults,
    judge,
    read_signatures,
    require_signature,
    signed_message,
)
from precast.cache.signing_keys import load_private_key, load_public_key
from precast.errors import ExitCode, SignatureError

GOLDEN = Path(__file__).parent / "golden" / "signatures-v1.json"

MANIFEST = make_manifest().sealed()
ONE, TWO, THREE = (private_key(name).public for name in ("one", "two", "three"))


def signed(*names: str, manifest: Manifest = MANIFEST) -> Signatures:
    keys = [private_key(name) for name in names]
    return Signatures(tuple(Signature("ed25519", key.public.raw, key.sign(signed_message(manifest))) for key in keys))


def foreign(algorithm: str = "ml-dsa-65") -> Signature:
    return Signature(algorithm, ONE.raw, b"whatever")


def test_the_golden_file_is_what_is_written_and_is_valid() -> None:
    data = GOLDEN.read_bytes()
    assert signed("two", "one").to_json() == data
    assert [j.verdict for j in judge(MANIFEST, read_signatures(data))] == [VALID, VALID]


def test_the_signed_bytes_are_those_that_the_documentation_names() -> None:
    assert signed_message(MANIFEST) == (
        b"precast entry v1\n" + MANIFEST.key.encode() + b"\n" + MANIFEST.content_digest.encode()
    )
    # What any other tool makes of them is as good.
    signature = Signature("ed25519", ONE.raw, library_key("one").sign(signed_message(MANIFEST)))
    assert require_signature(MANIFEST, Signatures((signature,)), [ONE]) == ONE


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_keys_and_signatures_that_hold(tmp_path: Path) -> None:
    """The commands of the README and of the module's documentation."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=tmp_path, check=True, capture_output=True)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "key.pub")
    (tmp_path / "message").write_bytes(signed_message(MANIFEST))
    openssl("pkeyutl", "-sign", "-rawin", "-inkey", "key.pem", "-in", "message", "-out", "signature")
    private, public = load_private_key(tmp_path / "key.pem"), load_public_key(tmp_path / "key.pub")
    made = Signature("ed25519", public.raw, (tmp_path / "signature").read_bytes())
    assert made.signature == private.sign(signed_message(MANIFEST))
    assert require_signature(MANIFEST, Signatures((made,)), [public]) == public


def test_one_signature_holds_for_the_entry_and_for_its_mega_file() -> None:
    entry = replace(make_manifest(), mega=MegaRecord("ab" * 32, 7)).sealed()
    shipped = Manifest.from_json(replace(entry, mega=None).to_json())
    assert entry.digest != shipped.digest
    assert require_signature(shipped, signed("one", manifest=entry), [ONE]) == ONE


def test_what_is_written_reads_back_in_one_order() -> None:
    made = Signatures((*signed("one", "two").items, foreign(), foreign()))
    found = read_signatures(made.to_json())
    assert set(found.items) == set(made.items)
    assert found.to_json() == made.to_json() == Signatures(tuple(reversed(made.items))).to_json()
    assert read_signatures(UNSIGNED.to_json()) == UNSIGNED


def test_any_of_the_keys_will_do() -> None:
    assert require_signature(MANIFEST, signed("one", "two"), [THREE, TWO]) == TWO
    assert require_signature(MANIFEST, signed("one"), [ONE, TWO]) == ONE


@pytest.mark.parametrize(
    ("signatures", "what", "why"),
    [
        (UNSIGNED, "not signed by a key", "not signed at all; asked for ed25519:"),
        (signed("two"), "not signed by a key", f"signed by {TWO.id}; asked for {ONE.id}"),
        (Signatures((foreign(),)), "not signed by a key", "signed by ml-dsa-65:"),
        (signed("one", manifest=replace(MANIFEST, code="other").sealed()), "does not fit its content", ONE.id),
        (Signatures(damage="it is not canonical JSON"), "not signed by a key", "damaged: it is not canonical JSON"),
        (Signatures(unread="precast.signatures/2"), "not signed by a key", "precast.signatures/2"),
    ],
)
def test_an_entry_without_a_signature_that_fits_is_refused_and_told_why(
    signatures: Signatures, what: str, why: str
) -> None:
    with pytest.raises(SignatureError) as caught:
        require_signature(MANIFEST, signatures, [ONE])
    assert what in caught.value.what
    assert why in caught.value.why
    assert (caught.value.entry, caught.value.exit_code) == (MANIFEST.key, ExitCode.CORRUPT)


def test_a_good_signature_counts_beside_bad_and_unknown_ones() -> None:
    bad = Signature("ed25519", TWO.raw, bytes(64))
    mixed = Signatures((bad, foreign(), *signed("one").items))
    assert require_signature(MANIFEST, mixed, [ONE]) == ONE
    assert {j.id: j.verdict for j in judge(MANIFEST, mixed)} == {
        TWO.id: INVALID,
        foreign().id: UNKNOWN,
        ONE.id: VALID,
    }
    assert faults(MANIFEST, mixed) == (f"the signature of {TWO.id} does not fit the entry's content",)


def test_two_signatures_that_claim_one_key_are_both_tried() -> None:
    bad = Signature("ed25519", ONE.raw, bytes(64))
    assert require_signature(MANIFEST, Signatures((bad, *signed("one").items)), [ONE]) == ONE


def test_a_signature_under_another_algorithm_is_never_valid() -> None:
    item = signed("one").items[0]
    with pytest.raises(SignatureError):
        require_signature(MANIFEST, Signatures((replace(item, algorithm="ed25519ph"),)), [ONE])


def test_a_draft_is_neither_signed_nor_checked() -> None:
    for use in (lambda: signed_message(make_manifest()), lambda: require_signature(make_manifest(), UNSIGNED, [ONE])):
        with pytest.raises(ValueError, match="draft"):
            use()


@given(st.integers(0, 63), st.integers(1, 255))
def test_no_changed_byte_of_a_signature_is_valid(position: int, change: int) -> None:
    item = signed("one").items[0]
    raw = bytearray(item.signature)
    raw[position] ^= change
    with pytest.raises(SignatureError, match="does not fit"):
        require_signature(MANIFEST, Signatures((replace(item, signature=bytes(raw)),)), [ONE])


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_changed_byte_of_the_file_leaves_it_signed(position: int, change: int) -> None:
    data = bytearray(signed("one").to_json())
    data[position % len(data)] ^= change
    with pytest.raises(SignatureError):
        require_signature(MANIFEST, read_signatures(bytes(data)), [ONE])


CHANGES: dict[str, Callable[[Manifest], Manifest]] = {
    "key": lambda m: replace(m, key="ab" * 32),
    "model": lambda m: replace(m, model=replace(m.model, name="other")),
    "factors": lambda m: replace(m, factors=m.factors[1:]),
    "settings": lambda m: replace(m, settings=()),
    "target": lambda m: replace(m, target={}),
    "stamps": lambda m: replace(m, stamps={}),
    "plan": lambda m: replace(m, plan={}),
    "code": lambda m: replace(m, code=""),
    "payloads": lambda m: replace(m, payloads=(replace(m.payloads[0], object="ab" * 32), *m.payloads[1:])),
    "constants": lambda m: replace(m, constants=m.constants[1:]),
    "build": lambda m: replace(m, build=replace(m.build, seconds=1.0)),
    "ignored": lambda m: replace(m, ignored=("HOME",)),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_any_field_makes_the_signature_invalid(field: str) -> None:
    changed = Manifest.from_json(CHANGES[field](MANIFEST).to_json())  # sealed again, as an attacker would
    with pytest.raises(SignatureError, match="does not fit"):
        require_signature(changed, signed("one"), [ONE])


def test_every_field_is_among_the_changes() -> None:
    others = {"mega", "digest", "content_digest", "sources"}  # derived, or tested with the manifest
    assert set(CHANGES) | others == set(Manifest.__slots__)


@given(st.text(max_size=40))
def test_no_changed_text_of_the_code_leaves_it_signed(code: str) -> None:
    changed = replace(MANIFEST, code=MANIFEST.code + code + "#").sealed()
    assert [j.verdict for j in judge(changed, signed("one"))] == [INVALID]


def item_json(**changes: Any) -> dict[str, Any]:
    return {**signed("one").items[0].json(), **changes}


def document(**changes: Any) -> bytes:
    return canonical_json({"schema": "precast.signatures/1", "signatures": [item_json()], **changes})


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# The last digit of 32 bytes in base64 has two bits that say nothing.
TWIN = encoded(ONE.raw)[:-2] + chr(ord(encoded(ONE.raw)[-2]) + 1) + "="


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not canonical JSON"),
        (b"[]", "is not an object"),
        (b"{}", "schema is missing"),
        (document(schema="precast.manifest/1"), "schema is malformed"),
        (document(signatures={}), "signatures is not a list"),
        (document(signatures=[1]), "signatures[0] is not an object"),
        (document(signatures=[item_json(signature=encoded(bytes(63)))]), "signatures[0].signature is malformed"),
        (document(signatures=[item_json(public_key=encoded(bytes(31)))]), "signatures[0].public_key is malformed"),
        (document(signatures=[item_json(public_key="*")]), "signatures[0].public_key is malformed"),
        (document(signatures=[item_json(public_key=TWIN)]), "signatures[0].public_key is malformed"),
        (document(signatures=[item_json(public_key="ä")]), "signatures[0].public_key is malformed"),
        (document(signatures=[item_json(algorithm="\x1b[31m")]), "signatures[0].algorithm is malformed"),
        (document()[:-20], "not canonical JSON"),
    ],
)
def test_damage_is_noted_and_named(data: bytes, why: str) -> None:
    found = read_signatures(data)
    assert found.items == ()
    assert why in found.damage
    assert faults(MANIFEST, found) == (found.damage,)


def test_layout_and_fields_of_other_tools_do_no_harm() -> None:
    loose = json.dumps({**json.loads(document()), "made_by": "a tool"}, indent=2) + "\n"
    assert read_signatures(loose.encode()) == signed("one")


def test_a_later_schema_is_ignored_and_no_damage() -> None:
    found = read_signatures(document(schema="precast.signatures/2", signatures="other"))
    assert found == Signatures(unread="precast.signatures/2")
    assert (judge(MANIFEST, found), faults(MANIFEST, found)) == ((), ())


def test_without_the_library_nothing_is_said_to_be_valid_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_check", lambda: False)
    bad = Signatures((Signature("ed25519", ONE.raw, bytes(64)), *signed("two").items, foreign()))
    assert [j.verdict for j in judge(MANIFEST, bad)] == [UNCHECKED, UNCHECKED, UNKNOWN]
    assert faults(MANIFEST, bad) == ()
