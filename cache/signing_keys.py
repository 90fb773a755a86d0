"""Keys of signatures: ed25519, read from files that openssl or ssh-keygen wrote.

A private key stays in the process that signs: no message, representation or file of ours holds any of it. Nothing
here is imported before a key is needed, and a key is read once, from the file whose mode was looked at.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precast.cache.canonical import sha256
from precast.errors import UsageError

__all__ = ["PrivateKey", "PublicKey", "can_check", "key_id", "load_private_key", "load_public_key", "load_public_keys"]

_PASSPHRASE = "PRECAST_SIGNING_PASSPHRASE"  # noqa: S105 - the name of a variable
_RAW_BYTES = 32
_LIMIT = 65_536
_OPENSSH_PRIVATE = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_MAKE = "Make one: `openssl genpkey -algorithm ed25519 -out KEYFILE`"
_DERIVE = "Write it: `openssl pkey -in KEYFILE -pubout -out PUBKEY`"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures are checked with.

    Attributes:
        raw: Its 32 bytes.
    """

    raw: bytes

    @property
    def id(self) -> str:
        """What people call it."""
        return key_id(self.raw)

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Tell whether the holder of the private key signed a message.

        Raises:
            UsageError: The package `cryptography` is not installed.
        """
        _require_library()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key that signs.

    Attributes:
        public: Its public half.
    """

    public: PublicKey
    _sign: Callable[[bytes], bytes] = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of a signature; equal messages give equal signatures."""
        return self._sign(message)


def key_id(raw: bytes) -> str:
    """Return the name of a public key: the first 12 hex digits of the SHA-256 of its 32 bytes."""
    return f"ed25519:{sha256(raw)[:12]}"


def can_check() -> bool:
    """Tell whether signatures can be checked here: whether the package `cryptography` is installed."""
    try:
        _require_library()
    except UsageError:
        return False
    return True


def load_private_key(path: Path, environ: Mapping[str, str] | None = None) -> PrivateKey:
    """Read a key to sign with: PKCS #8 in PEM, or OpenSSH's own form.

    As ssh does, a file of this user's that others may read or write is refused. One of another user's is not: who
    mounts a secret for a group chose so.

    Args:
        path: The file. It may be a pipe.
        environ: Holds the passphrase of an encrypted key, in `PRECAST_SIGNING_PASSPHRASE`; None means `os.environ`.

    Raises:
        UsageError: It cannot be read, others may read it, it holds no ed25519 key, its passphrase is missing or wrong,
            or the package `cryptography` is not installed.
    """
    _require_library()
    data = _read(path, private=True)
    passphrase = (os.environ if environ is None else environ).get(_PASSPHRASE, "")
    if b"PUBLIC KEY-----" in data or data.startswith((b"ssh-", b"ecdsa-")):
        raise _useless(path, "it is a public key", _MAKE)
    key = _private(path, data, passphrase.encode() or None)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not isinstance(key, Ed25519PrivateKey):
        raise _useless(path, f"it holds a key of type {_kind(key)}, not Ed25519", _MAKE)
    return PrivateKey(PublicKey(key.public_key().public_bytes_raw()), key.sign)


def load_public_keys(paths: Iterable[Path]) -> tuple[PublicKey, ...]:
    """Read several keys, as `load_public_key` does."""
    return tuple(load_public_key(path) for path in paths)


def load_public_key(path: Path) -> PublicKey:
    """Read a key to check with: SubjectPublicKeyInfo in PEM, or a line `ssh-ed25519 AAAA...` of OpenSSH's.

    Raises:
        UsageError: It cannot be read, it holds no ed25519 key or more than one, or the package `cryptography` is not
            installed.
    """
    _require_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = _read(path, private=False)
    if b"PRIVATE KEY-----" in data:
        raise _useless(path, "it is a private key, and a check needs the public one", _DERIVE)
    lines = [line for line in data.splitlines() if line.strip() and not line.startswith(b"#")]
    pem = b"-----BEGIN " in data
    if (data.count(b"-----BEGIN ") if pem else len(lines)) > 1:
        raise _useless(path, "it holds more than one key", "Give each key a file of its own")
    load = serialization.load_pem_public_key if pem else serialization.load_ssh_public_key
    try:
        key = load(data if pem else b"".join(lines))
    except (ValueError, UnsupportedAlgorithm):
        raise _useless(path, "it holds no public key in PEM or OpenSSH's form", _DERIVE) from None
    if not isinstance(key, Ed25519PublicKey):
        raise _useless(path, f"it holds a key of type {_kind(key)}, not Ed25519", _MAKE)
    return PublicKey(key.public_bytes_raw())


def _private(path: Path, data: bytes, passphrase: bytes | None) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    openssh = data.lstrip().startswith(_OPENSSH_PRIVATE)
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    # Nothing is chained: what the library says could quote the file.
    try:
        return load(data, password=None)
    except TypeError:  # it is encrypted
        if passphrase is None:
            raise _useless(path, "it is encrypted", f"Put its passphrase into {_PASSPHRASE}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _useless(path, "it holds no private key in PEM", _MAKE) from None
    try:
        return load(data, password=passphrase)
    except (ValueError, TypeError):
        raise _useless(path, f"the passphrase in {_PASSPHRASE} does not open it", "Correct it") from None
    except UnsupportedAlgorithm:
        hint = "Install the package `bcrypt`, or make a key with openssl"
        raise _useless(path, "its encryption is not known here", hint) from None


def _read(path: Path, *, private: bool) -> bytes:
    try:
        with path.open("rb") as stream:
            if private:
                _require_hidden(path, os.fstat(stream.fileno()))
            data = stream.read(_LIMIT + 1)
    except OSError as error:
        raise _useless(path, error.strerror or str(error), "Name a file that this user can read") from error
    if len(data) > _LIMIT:
        raise _useless(path, f"it has more than {_LIMIT} bytes", "Name a file that holds one key")
    return data


def _require_hidden(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and mode & 0o077:
        raise _useless(path, f"others can use it: its mode is {mode:04o}", f"Run `chmod 600 {path}`")


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError(
            "Signatures need the package `cryptography`", "it is not installed", "Run `pip install 'cryptography>=44'`"
        ) from error


def _kind(key: Any) -> str:
    return type(key).__name__.lstrip("_").removesuffix("PrivateKey").removesuffix("PublicKey")


def _useless(path: Path, why: str, hint: str) -> UsageError:
    return UsageError(f"{path} cannot be used as a key", why, hint, path=str(path))
