"""Signing by precompile: what is built and what is found, with a key that is looked at before any work."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cache.keys import KeyFiles, write_keys
from tests.cache.support import files_below
from tests.conftest import TINY

from precast.aot import compile as compile_module
from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.progress import Silent
from precast.aot.settings import Settings
from precast.cache.options import StoreOptions
from precast.cache.signing import stored_signatures
from precast.cache.store import Store
from precast.errors import SignatureError, UsageError

SETTINGS = Settings(target="cpu", max_num_batched_tokens=512)


@pytest.fixture(autouse=True)
def no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish without Inductor: a payload is its own name."""
    _fake(monkeypatch)


def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_pieces(pieces: Any, ranges: Any, *_: Any) -> tuple[compile_module.Compiled, ...]:
        return tuple(compile_module.Compiled(p.key, r, f"{p.key}{r}".encode(), 1.0) for p in pieces for r in ranges)

    monkeypatch.setattr(compile_module, "compile_pieces", compile_pieces)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> PrecompileResult:
    """A store with one entry, signed when it was built."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as monkeypatch:
        _fake(monkeypatch)
        return precompile(str(TINY), SETTINGS, cache_dir=folder / "root", sign=write_keys(folder).private)


@pytest.fixture
def root(built: PrecompileResult, tmp_path: Path) -> Path:
    """A copy of that store, not signed."""
    shutil.copytree(built.root, tmp_path / "root", ignore=shutil.ignore_patterns("signatures.json"))
    return tmp_path / "root"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return write_keys(tmp_path / "keys", "one")


def run(root: Path, *required: KeyFiles, sign: KeyFiles | None = None, **given: Any) -> PrecompileResult:
    options = StoreOptions(required_signatures=tuple(key.public for key in required))
    return precompile(
        str(TINY), SETTINGS, cache_dir=root, sign=sign.private if sign else None, options=options, **given
    )


def place(root: Path) -> Path:
    (entry,) = Store(root).layout.entries.iterdir()
    return entry / "signatures.json"


def test_what_is_built_is_signed(built: PrecompileResult, keys: KeyFiles) -> None:
    assert (built.status, built.signed_by) == ("compiled", (keys.id,))
    assert run(built.root, keys, dry_run=True).signed_by == (keys.id,)


def test_what_is_found_is_signed_once(root: Path, keys: KeyFiles, tmp_path: Path) -> None:
    assert run(root).signed_by == ()
    assert not place(root).exists()
    assert (run(root, sign=keys).status, run(root).signed_by) == ("up_to_date", (keys.id,))
    before = place(root).stat()
    run(root, sign=keys)
    assert (place(root).stat().st_ino, place(root).stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    two = write_keys(tmp_path / "keys", "two")
    assert set(run(root, sign=two).signed_by) == {keys.id, two.id}


def test_the_environment_names_the_key(root: Path, keys: KeyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_SIGNING_KEY", str(keys.private))
    assert precompile(str(TINY), SETTINGS, cache_dir=root).signed_by == (keys.id,)


@pytest.mark.parametrize("force", [True, False])
def test_a_key_that_cannot_be_used_is_refused_before_any_work(
    tmp_path: Path, keys: KeyFiles, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    for path in (keys.public, tmp_path / "absent"):
        with pytest.raises(UsageError, match="cannot be used as a key"):
            run(tmp_path / "new", sign=replace(keys, private=path), force=force)
    with pytest.raises(UsageError, match="cannot be used as a key"):
        run(tmp_path / "new", replace(keys, public=keys.private))
    assert not (tmp_path / "new").exists()


def test_a_dry_run_signs_nothing(root: Path, keys: KeyFiles) -> None:
    before = files_below(root)
    assert run(root, sign=keys, dry_run=True).signed_by == ()
    assert files_below(root) == before


def test_an_entry_that_was_found_must_have_the_signatures_that_are_asked_for(
    root: Path, keys: KeyFiles, tmp_path: Path
) -> None:
    two = write_keys(tmp_path / "keys", "two")
    with pytest.raises(SignatureError):
        run(root, keys, sign=keys)  # signing it oneself is no way around
    with pytest.raises(SignatureError):
        run(root, keys, dry_run=True)
    assert not place(root).exists()
    run(root, sign=keys)
    assert set(run(root, keys, sign=two).signed_by) == {keys.id, two.id}


def test_a_good_entry_that_stays_under_force_must_have_them_too(root: Path, keys: KeyFiles) -> None:
    before = Store(root).manifest(place(root).parent.name).content_digest
    with pytest.raises(SignatureError):
        run(root, keys, sign=keys, force=True)
    assert Store(root).manifest(place(root).parent.name).content_digest == before
    assert not place(root).exists()


class Told(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("damage", [b"", b"damaged", b'{"schema":"precast.signatures/1","signatures":[{}]}'])
def test_damaged_signatures_are_taken_away_and_told(root: Path, keys: KeyFiles, damage: bytes) -> None:
    run(root, sign=keys)
    place(root).write_bytes(damage)
    told = Told()
    assert run(root, progress=told).signed_by == ()
    assert not place(root).exists()
    assert len([note for note in told.notes if "a damaged signature was taken away" in note]) == 1


def test_damaged_signatures_are_made_again_by_who_signs(root: Path, keys: KeyFiles) -> None:
    run(root, sign=keys)
    good = place(root).read_bytes()
    place(root).write_bytes(good[:-9])
    assert run(root, sign=keys).signed_by == (keys.id,)
    assert place(root).read_bytes() == good
    assert stored_signatures(Store(root), place(root).parent.name).damage == ""
