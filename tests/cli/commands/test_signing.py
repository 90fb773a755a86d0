"""Signing and shipping from the command line: what is signed, exported, shown, and refused with exit 4."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cache.keys import KeyFiles, private_key, write_keys
from tests.cache.support import files_below
from tests.cli.support import FakeLibrary, FakeReport, FakeResult, FakeStage, Ran, publish

from precast.cache.mega import MegaFile
from precast.cache.mega_export import export_mega
from precast.cache.root import CacheRoot
from precast.cache.signing import sign_entry, signers
from precast.cache.store import Store
from precast.errors import ExitCode, SignatureError

Run = Callable[..., Ran]
Library = Callable[[str, object], FakeLibrary]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return write_keys(tmp_path / "keys", "one")


@pytest.fixture
def key(root: Path) -> str:
    """The key of an entry that `one` signed."""
    made = publish(root, "tiny", (b"one", b"two"))
    store = Store(root)
    sign_entry(store, store.manifest(made), private_key("one"))
    return made


def test_the_key_file_reaches_the_library_and_who_signed_is_told(
    run: Run, library: Library, root: Path, keys: KeyFiles
) -> None:
    fake = library("precompile", FakeResult("compiled", root, signed_by=(keys.id,)))
    ran = run("precompile", "m.py:f", "--sign", str(keys.private), "--json")
    assert ran.json()["data"]["signed_by"] == [keys.id]
    assert fake.kwargs["sign"] == keys.private
    assert f"signed     by {keys.id}" in run("precompile", "m.py:f", "--sign", str(keys.private)).out.splitlines()
    fake.answer = FakeResult("up_to_date", root)
    ran = run("precompile", "m.py:f", "--json")
    assert (ran.json()["data"]["signed_by"], fake.kwargs["sign"]) == ([], None)


def test_a_key_never_comes_from_a_configuration_file(run: Run, root: Path, own_place: Path) -> None:
    """A checkout could bring one along."""
    for text in ('sign = "key.pem"\n', 'signing_key = "key.pem"\n', '[settings]\nsign = "key.pem"\n'):
        (own_place / "precast.toml").write_text(text)
        assert run("precompile", "m.py:f", "--json").json()["errors"][0]["code"] == "config.unknown_key"


def test_the_exported_file_carries_the_signatures(
    run: Run, library: Library, root: Path, key: str, keys: KeyFiles, tmp_path: Path
) -> None:
    library("precompile", FakeResult("up_to_date", root, key=key))
    target = tmp_path / "out" / "model.mega"
    target.parent.mkdir()
    assert run("precompile", "m.py:f", "--output", str(target)).code == 0
    assert MegaFile(target).signatures.to_json() == (CacheRoot(root).entry(key) / "signatures.json").read_bytes()
    data = run("inspect", "show", str(target), "--json").json()["data"]
    assert data["signatures"] == [{"id": keys.id, "algorithm": "ed25519", "verdict": "valid"}]
    assert data["content_digest"] == run("inspect", "show", key, "--json").json()["data"]["content_digest"]


def test_an_entry_that_cannot_be_shipped_is_an_error_and_no_file(
    run: Run, library: Library, root: Path, key: str, tmp_path: Path
) -> None:
    library("precompile", FakeResult("up_to_date", root, key=key))
    mega = CacheRoot(root).mega(key)
    mega.chmod(0o644)
    mega.write_bytes(mega.read_bytes()[:-1])
    ran = run("precompile", "m.py:f", "--output", str(tmp_path / "model.mega"), "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (ExitCode.CORRUPT, "store.corrupt")
    assert not list(tmp_path.glob("*.mega"))


def lines(ran: Ran, *labels: str) -> list[str]:
    return [line for line in ran.out.splitlines() if line.split()[0] in labels]


def test_people_see_the_content_digest_and_who_signed(run: Run, root: Path, key: str, keys: KeyFiles) -> None:
    content = Store(root).manifest(key).content_digest
    assert lines(run("inspect", "show", key), "content", "signed") == [
        f"content    {content}",
        f"signed     by {keys.id}  valid",
    ]
    unsigned = publish(root, "other")
    assert lines(run("inspect", "show", unsigned), "signed") == []


@pytest.mark.parametrize("form", ["key", "folder", "manifest"])
def test_a_signature_that_does_not_fit_is_shown_as_such(
    run: Run, root: Path, key: str, keys: KeyFiles, form: str
) -> None:
    layout, store = CacheRoot(root), Store(root)
    layout.manifest(key).write_bytes(replace(store.manifest(key), code="other").to_json())
    name = {"key": key, "folder": str(layout.entry(key)), "manifest": str(layout.manifest(key))}[form]
    assert lines(run("inspect", "show", name), "signed") == [
        f"signed     by {keys.id}  INVALID: it does not fit the content"
    ]
    data = run("inspect", "show", name, "--json").json()["data"]
    assert [item["verdict"] for item in data["signatures"]] == ["invalid"]


def test_signatures_that_cannot_be_read_are_told(run: Run, root: Path, key: str) -> None:
    place = CacheRoot(root).entry(key) / "signatures.json"
    place.write_bytes(b"damaged")
    assert lines(run("inspect", "show", key), "signed")[0].startswith("signed     damaged: it is not canonical JSON")
    place.write_bytes(b'{"schema":"precast.signatures/2"}')
    assert "precast.signatures/2" in lines(run("inspect", "show", key), "signed")[0]


def test_without_the_library_a_signature_is_not_checked(
    run: Run, key: str, keys: KeyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.cache.signatures.can_check", lambda: False)
    assert lines(run("inspect", "show", key), "signed") == [
        f"signed     by {keys.id}  not checked: `cryptography` is not installed"
    ]


def test_verify_hands_on_the_keys_and_words_the_stage(
    run: Run, library: Library, root: Path, key: str, keys: KeyFiles
) -> None:
    stage = FakeStage("signature", "failed", 0.0, "not signed")
    problem = SignatureError("Entry is not signed by a key that was asked for", "it is not signed at all")
    fake = library("verify", FakeReport(key, "signature", (stage,), False, problem.exit_code, (problem,)))
    ran = run("verify", key, "--require-signature", str(keys.public), "--require-signature", "b.pub", "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (ExitCode.CORRUPT, "store.signature")
    assert fake.kwargs["options"].required_signatures == (keys.public, Path("b.pub"))
    assert run("verify", key).out.startswith("signature  FAILED")


def test_pruning_takes_the_signatures_along(run: Run, root: Path, key: str) -> None:
    assert run("prune", "--key", key, "--yes").code == 0
    assert not CacheRoot(root).entry(key).exists()
    assert not list(root.rglob("signatures.json*"))


def nobody(uid: int) -> Any:
    raise KeyError(uid)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no place for a cache: no variable, no home folder, no line in the passwd database."""
    for name in ("HOME", "XDG_CACHE_HOME", "PRECAST_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)


@pytest.fixture
def shipped(root: Path, key: str, tmp_path: Path) -> Path:
    (tmp_path / "ship").mkdir()
    export_mega(Store(root), key, tmp_path / "ship" / "model.mega")
    return tmp_path / "ship" / "model.mega"


def test_a_shipped_file_is_shown_and_verified_where_no_cache_can_be(
    run: Run, shipped: Path, homeless: None, key: str, keys: KeyFiles, tmp_path: Path
) -> None:
    before = files_below(tmp_path)
    assert run("inspect", "show", str(shipped), "--json").json()["data"]["key"] == key
    ran = run("verify", str(shipped), "--level", "files", "--require-signature", str(keys.public), "--json")
    data = ran.json()["data"]
    assert (ran.code, data["key"], data["verified"], data["level"]) == (0, key, True, "files")
    assert data["stages"][0]["summary"] == f"signed by {keys.id}"
    assert files_below(tmp_path) == before
    assert run("verify", key, "--json").json()["errors"][0]["code"] == "store.unwritable"


def test_a_file_in_the_working_folder_is_meant_whatever_its_name(
    run: Run, shipped: Path, homeless: None, key: str, own_place: Path
) -> None:
    (own_place / "model.bin").write_bytes(shipped.read_bytes())
    for words in (("inspect", "show"), ("verify", "--level", "files")):
        assert run(*words, "model.bin", "--json").json()["data"]["key"] == key


@pytest.mark.parametrize("what", ["entry", "file"])
def test_another_key_is_refused_with_exit_4_before_anything_else(
    run: Run, shipped: Path, root: Path, key: str, tmp_path: Path, what: str
) -> None:
    two = write_keys(tmp_path / "keys", "two")
    name = key if what == "entry" else str(shipped)
    ran = run("verify", name, "--require-signature", str(two.public), "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (ExitCode.CORRUPT, "store.signature")
    assert two.id in ran.json()["errors"][0]["message"] + ran.err
    assert [stage["name"] for stage in ran.json()["data"]["stages"]] == ["signature"]


def test_a_public_key_that_cannot_be_used_is_a_usage_error(run: Run, root: Path, key: str, tmp_path: Path) -> None:
    ran = run("verify", key, "--require-signature", str(tmp_path / "absent.pub"), "--json")
    assert (ran.code, ran.json()["errors"][0]["path"]) == (ExitCode.USAGE, str(tmp_path / "absent.pub"))


def test_no_private_key_is_in_what_any_command_writes(run: Run, root: Path, key: str, keys: KeyFiles) -> None:
    assert signers(Store(root), key) == (keys.id,)
    secret = keys.private.read_text().splitlines()[1]
    shown = [run("inspect", "show", key, "--json").out, json.dumps({k: repr(v) for k, v in files_below(root).items()})]
    assert all(secret not in text for text in shown)
