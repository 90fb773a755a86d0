"""Reading keys: what openssl and ssh-keygen write is taken, anything else is refused by name, and nothing leaks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from tests.cache.keys import library_key, private_key, write_keys
from tests.conftest import REPOSITORY

from precast.cache.signing_keys import PublicKey, key_id, load_private_key, load_public_key, load_public_keys
from precast.errors import UsageError

PASSPHRASE = {"PRECAST_SIGNING_PASSPHRASE": "correct horse"}


def hidden(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def pem(key: Any, encryption: Any = None, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, form, encryption or NoEncryption()))


def test_a_pair_of_files_is_a_pair_of_keys(tmp_path: Path) -> None:
    files = write_keys(tmp_path)
    private, public = load_private_key(files.private, {}), load_public_key(files.public)
    assert private.public == public == private_key().public
    assert public.verifies(b"message", private.sign(b"message"))
    assert not public.verifies(b"Message", private.sign(b"message"))
    assert load_public_keys([files.public, files.public]) == (public, public)


def test_the_name_of_a_key_is_short_and_fixed() -> None:
    assert key_id(bytes(32)) == "ed25519:66687aadf862"
    assert PublicKey(bytes(32)).id == key_id(bytes(32))


def test_signatures_are_the_same_each_time() -> None:
    assert private_key().sign(b"a") == private_key().sign(b"a") != private_key("two").sign(b"a")


def test_openssh_s_own_forms_are_taken(tmp_path: Path) -> None:
    key = library_key("one")
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "id.pub").write_bytes(b"# mine\n\n" + line + b" me@host\n")
    assert load_public_key(tmp_path / "id.pub") == private_key().public
    assert load_private_key(hidden(tmp_path / "id", pem(key, form=PrivateFormat.OpenSSH)), {}).public.id == key_id(
        key.public_key().public_bytes_raw()
    )


def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path) -> None:
    path = hidden(tmp_path / "key", pem(library_key("one"), BestAvailableEncryption(b"correct horse")))
    assert load_private_key(path, PASSPHRASE).public == private_key().public
    with pytest.raises(UsageError, match="it is encrypted") as caught:
        load_private_key(path, {})
    assert "PRECAST_SIGNING_PASSPHRASE" in caught.value.hint
    with pytest.raises(UsageError, match="does not open it") as caught:
        load_private_key(path, {"PRECAST_SIGNING_PASSPHRASE": "wrong horse"})
    assert "horse" not in f"{caught.value}{caught.value.hint}"


def test_a_passphrase_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    assert load_private_key(write_keys(tmp_path).private, PASSPHRASE).public == private_key().public


def test_the_environment_is_where_the_passphrase_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hidden(tmp_path / "key", pem(library_key("one"), BestAvailableEncryption(b"abc")))
    monkeypatch.setenv("PRECAST_SIGNING_PASSPHRASE", "abc")
    assert load_private_key(path).public == private_key().public


OTHERS: dict[str, Callable[[], Any]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 1024),
    "EC": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
    "X25519": x25519.X25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_keys_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    key = OTHERS[kind]()
    with pytest.raises(UsageError, match=f"of type {kind}, not Ed25519"):
        load_private_key(hidden(tmp_path / "key", pem(key)), {})
    (tmp_path / "pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UsageError, match=f"of type {kind}, not Ed25519"):
        load_public_key(tmp_path / "pub")


def test_an_openssh_line_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "pub").write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(UsageError, match="of type EC, not Ed25519"):
        load_public_key(tmp_path / "pub")


def test_a_private_key_is_no_public_one_and_the_other_way_round(tmp_path: Path) -> None:
    files = write_keys(tmp_path)
    with pytest.raises(UsageError, match="it is a private key") as caught:
        load_public_key(files.private)
    assert "openssl pkey" in caught.value.hint
    with pytest.raises(UsageError, match="it is a public key"):
        load_private_key(hidden(tmp_path / "wrong", files.public.read_bytes()), {})
    line = library_key("one").public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with pytest.raises(UsageError, match="it is a public key"):
        load_private_key(hidden(tmp_path / "line", line), {})


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602])
def test_a_private_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_keys(tmp_path).private
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"its mode is {mode:04o}") as caught:
        load_private_key(path, {})
    assert caught.value.hint == f"Run `chmod 600 {path}`"


def test_a_key_may_come_through_a_pipe(tmp_path: Path) -> None:
    data = write_keys(tmp_path).private.read_bytes()
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    try:
        assert load_private_key(Path(f"/dev/fd/{read}"), {}).public == private_key().public
    finally:
        os.close(read)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"secret words",
        b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0IHdvcmRz\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0IHdvcmRz\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_what_is_no_key_is_refused_without_a_word_of_it(tmp_path: Path, data: bytes) -> None:
    for load in (lambda path: load_private_key(path, {}), load_public_key):
        with pytest.raises(UsageError) as caught:
            load(hidden(tmp_path / "key", data))
        told = f"{caught.value}{caught.value.hint}{caught.value.__cause__}"
        assert "secret" not in told
        assert "c2VjcmV0" not in told
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_two_keys_in_a_file_are_refused(tmp_path: Path) -> None:
    one, two = (write_keys(tmp_path, name).public.read_bytes() for name in ("one", "two"))
    lines = [library_key(n).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for n in ("one", "two")]
    for data in (one + two, b"\n".join(lines)):
        (tmp_path / "both").write_bytes(data)
        with pytest.raises(UsageError, match="more than one key"):
            load_public_key(tmp_path / "both")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    hidden(tmp_path / "large", bytes(70_000))
    for path, why in ((tmp_path / "absent", "No such file"), (tmp_path, "directory"), (tmp_path / "large", "65536")):
        for load in (load_private_key, load_public_key):
            with pytest.raises(UsageError, match=why) as caught:
                load(path)
            assert caught.value.path == str(path)


def test_a_private_key_does_not_show_itself(tmp_path: Path) -> None:
    path = write_keys(tmp_path).private
    raw = library_key("one").private_bytes_raw()
    shown = repr(load_private_key(path, {}))
    assert raw.hex() not in shown
    assert path.read_text().splitlines()[1] not in shown
    assert shown == f"PrivateKey(public=PublicKey(raw={private_key().public.raw!r}))"


def test_without_the_library_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
sys.modules["cryptography"] = None
from precast.cache.signing_keys import PublicKey, can_check, load_private_key, load_public_key
from precast.errors import UsageError
assert not can_check()
uses = (lambda: load_private_key(Path(sys.argv[1])), lambda: load_public_key(Path(sys.argv[1])),
        lambda: PublicKey(bytes(32)).verifies(b"", b""))
for use in uses:
    try:
        use()
    except UsageError as error:
        print(error.hint)
"""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-c", program, str(write_keys(tmp_path).private)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Run `pip install 'cryptography>=44'`"] * 3


def test_the_library_s_own_signature_is_the_one(tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(write_keys(tmp_path).private.read_bytes(), None)
    assert key.sign(b"x") == private_key().sign(b"x")  # type: ignore[union-attr, call-arg]
