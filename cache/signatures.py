"""Signatures: who vouches for an entry, so that a store or a shipped file need not be trusted itself.

What is signed is the text

    precast entry v1
    <the entry's key, 64 hex digits>
    <the content digest, 64 hex digits>

with one newline between the lines, none at the end. The content digest is `Manifest.content_digest`: it covers the
manifest and by their digests every payload, the sources and the constants, so that one signature holds for the
entry's folder and for its mega file. Signatures lie beside the manifest as `signatures.json`, and in the header of a
mega file that was exported as the metadata `precast.signatures`: canonical JSON, so any other tool can write them.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from precast.cache.canonical import Json, canonical_json, decode_json, sha256
from precast.cache.fields import Fields
from precast.cache.manifest import Manifest
from precast.cache.signing_keys import PublicKey, can_check, key_id
from precast.errors import SignatureError

__all__ = [
    "ALGORITHM",
    "INVALID",
    "MAX_BYTES",
    "SCHEMA",
    "UNCHECKED",
    "UNKNOWN",
    "UNSIGNED",
    "VALID",
    "Judged",
    "Signature",
    "Signatures",
    "faults",
    "judge",
    "read_signatures",
    "require_signature",
    "signed_message",
]

VALID, INVALID, UNKNOWN, UNCHECKED = "valid", "invalid", "unknown", "unchecked"

ALGORITHM = "ed25519"
SCHEMA = "precast.signatures/1"
MAX_BYTES = 2**20
_SCHEMA_PATTERN = re.compile(r"precast\.signatures/\d{1,9}")
_PREFIX = b"precast entry v1\n"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature.

    Attributes:
        algorithm: `ed25519`; others are kept and never valid.
        public_key: The raw key that it claims to be of.
        signature: Its raw bytes.
    """

    algorithm: str
    public_key: bytes
    signature: bytes

    @property
    def id(self) -> str:
        """What people call the key."""
        known = self.algorithm == ALGORITHM
        return key_id(self.public_key) if known else f"{self.algorithm}:{sha256(self.public_key)[:12]}"

    def json(self) -> dict[str, Json]:
        """Return the signature as JSON."""
        return {
            "algorithm": self.algorithm,
            "public_key": base64.b64encode(self.public_key).decode(),
            "signature": base64.b64encode(self.signature).decode(),
        }


@dataclass(frozen=True, slots=True)
class Signatures:
    """What an entry or a mega file says about who signed it.

    Attributes:
        items: The signatures, sorted.
        damage: What is wrong with the text that holds them, or empty.
        unread: Its schema, where that is one of a later version, or empty.
    """

    items: tuple[Signature, ...] = ()
    damage: str = ""
    unread: str = ""

    def to_json(self) -> bytes:
        """Encode the signatures as canonical JSON, in an order of their own."""
        items = sorted({_order(item): item for item in self.items}.items())
        return canonical_json({"schema": SCHEMA, "signatures": [item.json() for _, item in items]})


UNSIGNED = Signatures()


@dataclass(frozen=True, slots=True)
class Judged:
    """A signature and what is known about it.

    Attributes:
        id: What people call the key.
        algorithm: Its algorithm.
        verdict: `valid`, `invalid` (it does not fit the content), `unknown` (so is its algorithm) or `unchecked` (the
            package `cryptography` is not installed). Valid says that the key signed this, not that it is trusted.
    """

    id: str
    algorithm: str
    verdict: str


def signed_message(manifest: Manifest) -> bytes:
    """Return the bytes that a signature of an entry is over.

    Raises:
        ValueError: The manifest is a draft, so that it has no content digest yet.
    """
    if not manifest.content_digest:
        raise ValueError("A draft of a manifest has no content digest to be signed")
    return b"%b%b\n%b" % (_PREFIX, manifest.key.encode(), manifest.content_digest.encode())


def read_signatures(data: bytes) -> Signatures:
    """Decode signatures; what is wrong with the text is noted, not raised, since most readers need none."""
    if len(data) > MAX_BYTES:
        return Signatures(damage=f"it has more than {MAX_BYTES} bytes")
    problems: list[str] = []
    try:
        fields = Fields(decode_json(data), "", problems)
    except ValueError as error:
        return Signatures(damage=f"it is not canonical JSON ({error})")
    schema = fields.text("schema", _SCHEMA_PATTERN)
    if schema not in ("", SCHEMA):
        return Signatures(unread=schema)
    items = fields.records("signatures", _read)
    return Signatures(damage="; ".join(problems)) if problems else Signatures(tuple(sorted(items, key=_order)))


def judge(manifest: Manifest, signatures: Signatures) -> tuple[Judged, ...]:
    """Say of each signature whether it fits the content of the manifest."""
    able = can_check() if signatures.items else False
    return tuple(Judged(item.id, item.algorithm, _verdict(manifest, item, able=able)) for item in signatures.items)


def faults(manifest: Manifest, signatures: Signatures) -> tuple[str, ...]:
    """Say what is wrong with signatures that could only be right for another content, or for none; empty if nothing.

    What cannot be told is not wrong: another algorithm, a later schema, or a machine without `cryptography`.
    """
    if signatures.damage:
        return (signatures.damage,)
    bad = [judged.id for judged in judge(manifest, signatures) if judged.verdict == INVALID]
    return tuple(f"the signature of {name} does not fit the entry's content" for name in bad)


def require_signature(manifest: Manifest, signatures: Signatures, keys: Sequence[PublicKey]) -> PublicKey:
    """Refuse an entry that none of some keys signed. Nothing but the manifest as it was read is looked at.

    Args:
        manifest: The manifest that everything else will be taken from.
        signatures: What lies beside it.
        keys: The keys, any of which will do.

    Returns:
        The first of the keys that signed it.

    Raises:
        SignatureError: It is not signed, by others only, or the signature does not fit its content.
        UsageError: The package `cryptography` is not installed.
    """
    message = signed_message(manifest)
    claims = [
        (key, item)
        for key in keys
        for item in signatures.items
        if item.algorithm == ALGORITHM and item.public_key == key.raw
    ]
    for key, item in claims:
        if key.verifies(message, item.signature):
            return key
    raise _refused(manifest, signatures, keys, [key.id for key, _ in claims])


def _read(fields: Fields) -> Signature:
    algorithm = fields.text("algorithm", re.compile(r"[a-z0-9][a-z0-9._-]{0,31}"))
    known = algorithm == ALGORITHM
    return Signature(
        algorithm,
        _raw(fields, "public_key", _KEY_BYTES if known else None),
        _raw(fields, "signature", _SIGNATURE_BYTES if known else None),
    )


def _raw(fields: Fields, name: str, size: int | None) -> bytes:
    text = fields.text(name)
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    # Several texts stand for the same bytes; one of them is the one that is written.
    if base64.b64encode(raw).decode() != text or (size is not None and len(raw) != size):
        fields.problem(name, "is malformed")
    return raw


def _order(item: Signature) -> tuple[str, bytes, bytes]:
    return item.algorithm, item.public_key, item.signature


def _verdict(manifest: Manifest, item: Signature, *, able: bool) -> str:
    if item.algorithm != ALGORITHM:
        return UNKNOWN
    if not able:
        return UNCHECKED
    return VALID if PublicKey(item.public_key).verifies(signed_message(manifest), item.signature) else INVALID


def _refused(
    manifest: Manifest, signatures: Signatures, keys: Sequence[PublicKey], claimed: Sequence[str]
) -> SignatureError:
    what = f"Entry {manifest.key[:12]} is not signed by a key that was asked for"
    asked = f"asked for {', '.join(key.id for key in keys)}"
    if claimed:
        what = f"The signature of entry {manifest.key[:12]} does not fit its content"
        why = f"{', '.join(dict.fromkeys(claimed))} signed something else"
    elif signatures.damage:
        why = f"its signatures are damaged: {signatures.damage}; {asked}"
    elif signatures.unread:
        why = f"its signatures are {signatures.unread}, which this version of precast does not read; {asked}"
    elif signatures.items:
        why = f"it is signed by {', '.join(item.id for item in signatures.items)}; {asked}"
    else:
        why = f"it is not signed at all; {asked}"
    hint = "Do not load it; whoever vouches for it signs it with `precast precompile MODEL --sign KEYFILE`"
    return SignatureError(what, why, hint, entry=manifest.key)
