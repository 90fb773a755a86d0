"""Precompile over a damaged store: nothing damaged passes for up to date, and what can be mended is not compiled."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cache.support import damage, files_below, flip
from tests.conftest import MAX_TOKENS, TINY
from tests.models import Layers, make_spec

from precast.aot.compile import Compiled
from precast.aot.mending import checked, damaged_keys
from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.progress import Silent
from precast.aot.settings import Settings
from precast.cache.lookup import Lookup, MissReason
from precast.cache.store import Store
from precast.errors import FormatError, StoreAccessError

SETTINGS = Settings(target="cpu", max_num_batched_tokens=MAX_TOKENS)
SPEC = make_spec(lambda: Layers(1), config={"layers": 1})


class Told(Silent):
    """Keeps what is noted and warned of."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, code: str, message: str, hint: str = "") -> None:
        self.warnings.append(f"{code}: {message}")


@pytest.fixture(autouse=True)
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make payloads of words; returns how many pieces each compile was asked for."""
    asked: list[int] = []

    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[Compiled, ...]:
        asked.append(len(pieces))
        return tuple(Compiled(p.key, r, f"{p.key}{r}".encode() * 9, 0.5) for p in pieces for r in ranges)

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compile_pieces)
    return asked


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one entry; tests work on copies."""
    patch = pytest.MonkeyPatch()
    patch.setattr(
        "precast.aot.compile.compile_pieces",
        lambda pieces, ranges, *_: tuple(
            Compiled(p.key, r, f"{p.key}{r}".encode() * 9, 0.5) for p in pieces for r in ranges
        ),
    )
    root = tmp_path_factory.mktemp("made")
    precompile(str(TINY), SETTINGS, cache_dir=root)
    patch.undo()
    return root


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    import shutil

    return Store(Path(shutil.copytree(made, tmp_path / "root")))


def again(store: Store, progress: Told | None = None, **given: Any) -> PrecompileResult:
    return precompile(str(TINY), SETTINGS, cache_dir=store.root, progress=progress, **given)


def only_key(store: Store) -> str:
    (line,) = store.entries()
    return line.key


def member(store: Store, name: str) -> Path:
    key = only_key(store)
    found = {"mega": store.layout.mega(key), "manifest": store.layout.manifest(key)}
    return found.get(name) or store.layout.object(store.manifest(key).payloads[0].object)


@pytest.mark.parametrize("name", ["mega", "manifest", "object"])
def test_a_flipped_bit_is_mended_with_no_trace_and_no_compile(
    store: Store, compiles: list[int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("precast.aot.planning.plan_compile", lambda *_: pytest.fail("traced"))
    key, path = only_key(store), member(store, name)
    sound = path.read_bytes()
    damage(path, flip(700))
    result = again(store)
    assert (result.status, result.key, compiles) == ("repaired", key, [])
    (item,) = result.repaired
    assert (item.damage.path, item.damage.code) == (str(path), "altered")
    assert path.read_bytes() == sound
    assert result.saved_seconds > 0
    assert again(store).status == "up_to_date"


def test_a_dry_run_over_damage_says_that_there_is_work_and_touches_nothing(store: Store) -> None:
    damage(member(store, "mega"), flip(700))
    before = files_below(store.root)
    assert again(store, dry_run=True).status == "planned"
    assert files_below(store.root) == before


def test_what_cannot_be_mended_is_compiled_again_and_told(store: Store, compiles: list[int]) -> None:
    key = only_key(store)
    for name in ("object", "mega"):
        damage(member(store, name), lambda data: data[:20])
    told = Told()
    result = again(store, told)
    assert (result.status, result.key, len(compiles)) == ("compiled", key, 1)
    assert any("beyond repair" in line for line in told.warnings)
    assert store.check(key) == ()
    assert [path for path in store.layout.quarantine.iterdir() if path.name.startswith(key)]


def test_a_spec_in_python_is_mended_once_its_key_is_known(tmp_path: Path, compiles: list[int]) -> None:
    first = precompile(SPEC, SETTINGS, cache_dir=tmp_path)
    damage(Store(tmp_path).layout.mega(first.key), flip(700))
    second = precompile(SPEC, SETTINGS, cache_dir=tmp_path)
    assert (second.status, second.key, len(compiles)) == ("repaired", first.key, 1)


def test_a_damaged_entry_of_an_older_source_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers nothing, so nothing is done to it."""
    path = member(store, "mega")
    damage(path, lambda data: data[:-1])
    bad = path.read_bytes()
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert again(store).status == "compiled"
    assert path.read_bytes() == bad


def test_an_answer_that_cannot_be_remembered_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreAccessError("no", "Disk quota exceeded")

    monkeypatch.setattr("precast.aot.precompile.remember_answer", refuse)
    told = Told()
    result = precompile(str(TINY), SETTINGS, cache_dir=tmp_path, progress=told)
    assert result.status == "compiled"
    assert Store(tmp_path).check(result.key) == ()
    assert any("Disk quota exceeded" in line for line in told.notes)


@pytest.mark.parametrize("what", ["room", "rename"])
def test_a_root_that_could_not_take_the_result_is_refused_before_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("precast.aot.planning.plan_compile", lambda *_: pytest.fail("traced"))
    if what == "room":
        monkeypatch.setattr("precast.cache.preflight.ROOT_BYTES", 2**62)
    else:

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StoreAccessError, match=r"too little space|cannot hold one"):
        precompile(str(TINY), SETTINGS, cache_dir=tmp_path)
    assert list(Store(tmp_path).entries()) == []
    assert not (tmp_path / "v1" / "staging").exists() or not list((tmp_path / "v1" / "staging").iterdir())


def test_what_killed_processes_left_goes_with_the_next_precompile(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that finds the entry up to date, so that it makes nothing itself."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    layout = store.layout
    left = [
        layout.staging / f"{'ab' * 32}-{'0' * 16}",
        layout.staging / f".manifest.json-{'0' * 16}.tmp",
        layout.requests / f".{'ab' * 32}.json-{'0' * 16}.tmp",
        layout.tags / f".release-{'0' * 16}.tmp",
        layout.stats / f".{'ab' * 32}-{'0' * 16}.tmp",
        tmp_path / "precast-compile-abcdefgh",
    ]
    left[0].mkdir()
    left[-1].mkdir()
    (left[-1] / "owner.lock").touch()
    for path in left[1:-1]:
        path.write_bytes(b"half")
    assert again(store).status == "up_to_date"
    assert [path for path in left if path.exists()] == []


def test_a_newer_format_under_the_same_key_is_refused_before_the_compile(store: Store, compiles: list[int]) -> None:
    path = member(store, "manifest")
    newer = path.read_bytes().replace(b"precast.manifest/1", b"precast.manifest/2")
    member(store, "mega").unlink()
    path.write_bytes(newer)
    with pytest.raises(FormatError):
        again(store)
    assert (compiles, path.read_bytes()) == ([], newer)


def test_only_damage_makes_an_entry_one_to_mend(store: Store) -> None:
    key = only_key(store)
    damaged = MissReason("artifact_missing", key, "model.mega is missing")
    assert damaged_keys(store, Lookup(None, (damaged,))) == (key,)
    assert damaged_keys(store, Lookup(None, (damaged, MissReason("factor_changed", key, "env/CFLAGS")))) == ()
    assert damaged_keys(store, Lookup(None, (MissReason("artifact_missing", "ab" * 32),))) == ()
    assert damaged_keys(store, Lookup(None, (MissReason("no_entry_for_model"),))) == ()


def test_a_hit_is_none_where_a_byte_is_wrong(store: Store) -> None:
    manifest = store.manifest(only_key(store))
    sound = Lookup(manifest, ())
    assert checked(store, sound) is sound
    damage(member(store, "mega"), flip(700))
    found = checked(store, sound)
    assert found.hit is None
    assert [(reason.code, reason.b) for reason in found.reasons] == [("corrupt", "altered")]
    store.quarantine(manifest.key, "test")
    assert [reason.code for reason in checked(store, sound).reasons] == ["artifact_missing"]
