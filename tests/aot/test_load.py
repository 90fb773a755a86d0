"""Loading: an entry is found, checked and loaded, and what goes wrong is told as whose fault it is."""

import errno
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.aot.support import RAW, manifest, publish
from tests.cache.support import FACTORS
from torch import Tensor, nn

from precast.aot.load import load
from precast.cache.sizes import format_size
from precast.cache.store import Store
from precast.errors import (
    CorruptError,
    FormatError,
    IncompatibleError,
    NoEntryError,
    PrecastError,
    StoreAccessError,
)


def total(inputs: list[Tensor]) -> list[Tensor]:
    return [torch.stack([i.float().sum() for i in inputs]).sum()]


class FakeKind:
    """A payload kind whose payloads are words."""

    name = "aoti"

    def load(self, data: bytes, folder: Path, name: str) -> Any:
        assert folder.is_dir()
        if data != RAW:
            raise RuntimeError("Failed to initialize zip archive\nand more")
        return total


@pytest.fixture
def fake_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: FakeKind())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return publish(tmp_path / "root", manifest())


@pytest.mark.usefixtures("fake_kind")
@pytest.mark.parametrize("by", ["key", "prefix", "mega file"])
def test_an_entry_is_loaded_by_key_prefix_or_file(store: Store, by: str) -> None:
    key = manifest().key
    source = {"key": key, "prefix": key[:6], "mega file": str(store.layout.entry(key) / "model.mega")}[by]
    model = load(source, nn.Module(), cache_dir=store.root)
    assert (model.manifest.key, model.degraded) == (key, ())
    assert model(torch.ones(2, 4)) == 8


@pytest.mark.usefixtures("fake_kind")
def test_a_lenient_load_takes_a_missing_object_from_the_mega_file(store: Store) -> None:
    for path in store.layout.objects.rglob("*.zst"):
        path.unlink()
    with pytest.raises(CorruptError):
        load(manifest().key, nn.Module(), cache_dir=store.root)
    model = load(manifest().key, nn.Module(), cache_dir=store.root, strict=False)
    assert [d.payload for d in model.degraded] == [manifest().payloads[0].name]
    assert model(torch.ones(2, 4)) == 8


@pytest.mark.usefixtures("fake_kind")
def test_a_payload_that_torch_refuses_is_corrupt_and_named(tmp_path: Path) -> None:
    made = manifest(raw=b"other")
    store = publish(tmp_path / "other", made, b"other")
    with pytest.raises(CorruptError, match="RuntimeError: Failed to initialize zip archive") as caught:
        load(made.key, nn.Module(), cache_dir=store.root)
    assert made.payloads[0].name in caught.value.what
    assert "\n" not in caught.value.why


def test_stamps_are_checked_before_any_payload_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = {"aoti": {**manifest().stamps["aoti"], "torch": "0.0.0"}}
    store = publish(tmp_path / "stale", manifest(stamps=stamps))
    monkeypatch.setattr(Store, "read_object", lambda *_: pytest.fail("a byte was read"))
    with pytest.raises(IncompatibleError, match=r"torch: entry 0\.0\.0"):
        load(manifest().key, nn.Module(), cache_dir=store.root)


def test_an_absent_entry_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoEntryError):
        load("abcdef0123", nn.Module(), cache_dir=tmp_path)
    assert FACTORS


def failing(error: Exception, store: Store, monkeypatch: pytest.MonkeyPatch) -> PrecastError:
    """Load with a kind that fails, and return what the user is told."""

    class Kind:
        def load(self, data: bytes, folder: Path, name: str) -> Any:
            raise error

    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: Kind())
    with pytest.raises(PrecastError) as caught:
        load(manifest().key, nn.Module(), cache_dir=store.root)
    return caught.value


def test_an_error_of_precast_s_own_is_passed_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own = FormatError("unknown payload kind")
    assert failing(own, store, monkeypatch) is own


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_temporary_folder_that_cannot_be_used_is_named(
    number: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = failing(OSError(number, "no", "/some/tmp/file"), store, monkeypatch)
    assert type(told) is StoreAccessError
    assert "TMPDIR" in told.hint
    assert told.path == "/some/tmp/file"


def test_a_folder_mounted_noexec_is_no_faulty_build(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told = failing(RuntimeError("a.so: failed to map segment from shared object"), store, monkeypatch)
    assert type(told) is StoreAccessError
    assert "noexec" in told.why


def test_a_full_folder_is_seen_where_torch_says_only_that_it_failed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.aot.load.shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    told = failing(RuntimeError("write failed"), store, monkeypatch)
    assert type(told) is StoreAccessError
    assert "full" in told.why


def test_without_any_temporary_folder_the_variable_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(store.root / "absent"))
    with pytest.raises(StoreAccessError) as caught:
        load(manifest().key, nn.Module(), cache_dir=store.root)
    assert "TMPDIR" in caught.value.hint


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["cuda", "python", "cpu"],
)  # fmt: skip
def test_too_little_memory_is_no_faulty_build_and_the_need_is_told(
    error: Exception, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = failing(error, store, monkeypatch)
    assert type(told) is IncompatibleError
    assert "memory ran out" in told.what
    assert format_size(len(RAW)) in told.hint


def test_what_is_left_is_a_faulty_build(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(failing(RuntimeError("no symbol"), store, monkeypatch)) is CorruptError
