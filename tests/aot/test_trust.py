"""Stores that others can write to, or that nobody may: what load, verify and precompile do about them."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import Recorder, manifest, publish
from tests.cache.support import files_below
from tests.conftest import TINY
from torch import nn

from precast.aot.compile import Compiled
from precast.aot.load import load
from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.settings import Settings
from precast.aot.sources import MegaSource, StoreSource, require_own
from precast.aot.verify import verify
from precast.cache import filesystem
from precast.cache.options import StoreOptions
from precast.cache.store import Store
from precast.errors import CorruptError, ExitCode, StoreAccessError, UntrustedError, UsageError

KEY = manifest().key
TRUSTING = StoreOptions(trust_root=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return publish(tmp_path / "root", manifest())


@pytest.fixture
def opened(store: Store) -> Store:
    """A store that everybody can write to."""
    store.root.chmod(0o777)
    return store


@pytest.fixture
def no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as a payload is handed to a loader."""
    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: pytest.fail("a payload was loaded"))


def test_load_refuses_a_store_that_others_can_write_to_before_it_loads_anything(opened: Store, no_bytes: None) -> None:
    with pytest.raises(UntrustedError) as caught:
        load(KEY, nn.Module(), cache_dir=opened.root, options=StoreOptions())
    assert str(opened.root) in caught.value.why
    assert "--trust-root" in caught.value.hint


def test_load_refuses_an_entry_that_others_can_write_to(store: Store, no_bytes: None) -> None:
    store.layout.manifest(KEY).chmod(0o666)
    with pytest.raises(UntrustedError) as caught:
        load(KEY, nn.Module(), cache_dir=store.root, options=StoreOptions())
    assert caught.value.entry == KEY


def test_load_goes_on_where_the_store_is_trusted_by_flag_or_variable(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CorruptError):  # torch has seen the payload, and it is none
        load(KEY, nn.Module(), cache_dir=opened.root, options=TRUSTING)
    again = publish(opened.root.parent / "again", manifest())
    again.root.chmod(0o777)
    monkeypatch.setenv("PRECAST_TRUST_ROOT", "1")
    with pytest.raises(CorruptError):
        load(KEY, nn.Module(), cache_dir=again.root)


def test_load_refuses_a_mega_file_that_others_can_write(store: Store, no_bytes: None) -> None:
    path = store.layout.mega(KEY)
    path.chmod(0o666)
    with pytest.raises(UntrustedError, match=r"model\.mega is not trusted"):
        load(path, nn.Module(), options=StoreOptions())


def test_a_signature_that_is_asked_for_makes_the_place_no_matter(opened: Store) -> None:
    signed = StoreOptions(required_signatures=(Path("key.pem"),))
    store_source = StoreSource(opened, opened.manifest(KEY), strict=True)
    mega = opened.layout.mega(KEY)
    mega.chmod(0o666)
    for source in (store_source, MegaSource.open(mega)):
        require_own(source, signed)
        require_own(source, TRUSTING)
        with pytest.raises(UntrustedError):
            require_own(source, StoreOptions())


def test_verify_looks_at_files_and_stamps_but_loads_nothing_that_others_can_write(
    opened: Store, no_bytes: None
) -> None:
    for level in ("files", "env"):
        assert verify(KEY, cache_dir=opened.root, level=level, options=StoreOptions()).ok
    report = verify(KEY, cache_dir=opened.root, options=StoreOptions())
    assert {s.name: s.status for s in report.stages if s.status != "skipped"} == {
        "files": "ok", "env": "ok", "load": "failed",
    }  # fmt: skip
    assert (report.exit_code, [type(p) for p in report.problems]) == (ExitCode.CORRUPT, [UntrustedError])


def test_verify_loads_it_where_it_is_trusted(opened: Store) -> None:
    report = verify(KEY, cache_dir=opened.root, options=TRUSTING)
    assert [type(p) for p in report.problems] == [CorruptError]  # the payload is none


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in (root, *root.rglob("*"))
    }


def test_a_read_only_load_writes_nothing_whether_it_works_or_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = StoreOptions(read_only=True)
    before = snapshot(store.root)
    with pytest.raises(CorruptError):  # the payload is none, and would be put aside
        load(KEY, nn.Module(), cache_dir=store.root, options=reading)
    assert snapshot(store.root) == before

    class Kind:
        def load(self, data: bytes, folder: Path | None, name: str) -> Any:
            return lambda inputs: inputs

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    load(KEY, nn.Module(), cache_dir=store.root, options=reading)
    monkeypatch.setenv("PRECAST_READ_ONLY", "1")
    load(KEY, nn.Module(), cache_dir=store.root)
    assert snapshot(store.root) == before
    load(KEY, nn.Module(), cache_dir=store.root, options=StoreOptions())
    assert snapshot(store.root) != before  # the stamp of a last use


# Precompile


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make payloads of words; returns how many pieces each compile was asked for."""
    asked: list[int] = []

    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[Compiled, ...]:
        asked.append(len(pieces))
        return tuple(Compiled(p.key, r, f"{p.key}{r}".encode() * 9, 0.5) for p in pieces for r in ranges)

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compile_pieces)
    return asked


def make(root: Path, **given: Any) -> PrecompileResult:
    given.setdefault("options", StoreOptions())
    return precompile(str(TINY), Settings(target="cpu", max_num_batched_tokens=64), cache_dir=root, **given)


def test_precompile_believes_nothing_that_others_could_have_written(tmp_path: Path, compiles: list[int]) -> None:
    key = make(tmp_path / "root").key
    layout = Store(tmp_path / "root").layout
    for path in (layout.path, layout.requests, layout.entry(key), layout.manifest(key)):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(UntrustedError):
            make(layout.path)
        assert make(layout.path, options=TRUSTING).status == "up_to_date"
        assert make(layout.path, dry_run=True).status == "up_to_date"  # it only looks
        path.chmod(mode)
    assert compiles == [3]


def test_precompile_into_a_new_root_in_a_folder_of_everybody_s_is_refused(tmp_path: Path, compiles: list[int]) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UntrustedError):
        make(tmp_path / "open" / "root")
    assert not (tmp_path / "open" / "root").exists()
    (tmp_path / "open").chmod(0o1777)
    assert make(tmp_path / "open" / "root").status == "compiled"


def test_precompile_with_a_read_only_store_is_refused_unless_it_only_looks(tmp_path: Path, compiles: list[int]) -> None:
    reading = StoreOptions(read_only=True)
    for root in (tmp_path / "new", tmp_path / "root"):
        with pytest.raises(UsageError) as caught:
            make(root, options=reading)
        assert (caught.value.code, "--dry-run" in caught.value.hint) == ("usage", True)
        assert not root.exists()
    make(tmp_path / "root")
    before = files_below(tmp_path / "root")
    assert make(tmp_path / "root", options=reading, dry_run=True).status == "up_to_date"
    assert make(tmp_path / "new", options=reading, dry_run=True).status == "planned"
    assert files_below(tmp_path / "root") == before
    assert not (tmp_path / "new").exists()


def test_all_that_cannot_be_written_is_said_before_the_lookup_also_for_a_hit(
    tmp_path: Path, compiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "root")
    (tmp_path / "out").mkdir()
    closed = {tmp_path / "out", tmp_path / "root" / "v1" / "tags"}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in closed)
    monkeypatch.setattr("precast.aot.precompile.lookup", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(StoreAccessError) as caught:
        make(tmp_path / "root", output=tmp_path / "out" / "x.mega")
    assert {Path(place["path"]) for place in caught.value.details["places"]} == closed


def test_a_hit_needs_no_temporary_folder_and_a_miss_does_before_anything_is_traced(
    tmp_path: Path, compiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    make(tmp_path / "root")
    monkeypatch.setattr(tempfile, "gettempdir", missing)
    monkeypatch.setattr("precast.aot.planning.plan_compile", lambda *_: pytest.fail("traced"))
    assert make(tmp_path / "root").status == "up_to_date"
    for given in ({"cache_dir": tmp_path / "new"}, {"cache_dir": tmp_path / "root", "force": True}):
        for dry_run in (False, True):
            with pytest.raises(StoreAccessError, match="emporary folder"):
                precompile(
                    str(TINY), Settings(target="cpu", max_num_batched_tokens=64), options=StoreOptions(),
                    dry_run=dry_run, **given,
                )  # fmt: skip


def test_a_compile_warns_of_a_place_that_does_not_last_and_a_hit_does_not(
    tmp_path: Path, compiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(f"1 0 0:1 / {tmp_path} rw - overlay a rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "mounts")
    warned = []
    for _ in range(2):
        told = Recorder()
        make(tmp_path / "root", progress=told)
        warned.append([line for line in told.told if line.startswith("warning")])
    assert warned == [["warning: store.volatile_root"], []]


def test_torch_s_own_caches_leave_nothing_behind(
    tmp_path: Path, compiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    seen: list[str] = []
    real = sys.modules["precast.aot.precompile"]._Precompile._plan

    def plan(job: Any) -> Any:
        seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        return real(job)

    monkeypatch.setattr("precast.aot.precompile._Precompile._plan", plan)
    make(tmp_path / "root", dry_run=True)
    make(tmp_path / "root")
    assert [Path(folder).parent for folder in seen] == [scratch, scratch]
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert list(scratch.iterdir()) == []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "theirs"))
    make(tmp_path / "other", dry_run=True)
    assert seen[2] == str(tmp_path / "theirs")
