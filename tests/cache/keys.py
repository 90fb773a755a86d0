"""Keys for tests of signatures: of fixed seeds, so that equal content gets equal signatures."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from precast.cache.signing_keys import PrivateKey, PublicKey


@cache
def library_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())


def private_key(name: str = "one") -> PrivateKey:
    key = library_key(name)
    return PrivateKey(PublicKey(key.public_key().public_bytes_raw()), key.sign)


@dataclass(frozen=True)
class KeyFiles:
    """A key pair in PEM, as openssl writes it, and what people call it."""

    private: Path
    public: Path
    id: str


def write_keys(folder: Path, name: str = "one") -> KeyFiles:
    folder.mkdir(parents=True, exist_ok=True)
    key = library_key(name)
    made = KeyFiles(folder / f"{name}.pem", folder / f"{name}.pub", private_key(name).public.id)
    made.private.touch(mode=0o600)
    made.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return made
