"""Withdrawal: an entry that cannot be loaded is met once and never again, and nothing else is ever put aside."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.aot.support import RAW, manifest, publish
from tests.cache.support import damage, files_below, flip
from torch import nn

from precast.aot.load import load
from precast.cache.canonical import sha256
from precast.cache.options import StoreOptions
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, IncompatibleError, NoEntryError, PrecastError, StoreAccessError

KEY = manifest().key


class Kind:
    """A payload kind whose loader takes everything, or raises what it was told to, for as often as told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.loads = 0

    def load(self, data: bytes, folder: Path, name: str) -> Any:
        self.loads += 1
        if self.errors:
            raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        assert data == RAW
        return lambda inputs: [torch.stack([i.float().sum() for i in inputs]).sum()]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return publish(tmp_path / "root", manifest())


def use(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> Kind:
    kind = Kind(*errors)
    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: kind)
    return kind


def fails(store: Store, **given: Any) -> PrecastError:
    with pytest.raises(PrecastError) as caught:
        load(KEY, nn.Module(), cache_dir=store.root, **given)
    return caught.value


def object_path(store: Store) -> Path:
    return store.layout.object(sha256(RAW))


@pytest.mark.parametrize("member", ["object", "manifest"])
@pytest.mark.parametrize("how", [flip(500), lambda data: data[:-9], lambda data: b""], ids=["flip", "cut", "empty"])
def test_bytes_that_are_wrong_are_met_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, member: str, how: Any
) -> None:
    kind = use(monkeypatch)
    path = object_path(store) if member == "object" else store.layout.manifest(KEY)
    damage(path, how)
    bad = path.read_bytes()
    told = fails(store)
    assert type(told) is CorruptError
    assert (told.entry, told.path) == (KEY, str(path))
    assert "run `precast precompile`" in told.hint
    assert str(store.layout.quarantine / KEY) in told.hint
    assert kind.loads == 0
    assert not path.exists()
    assert bad in files_below(store.layout.quarantine).values()
    assert type(fails(store)) is NoEntryError


def test_a_payload_that_torch_refuses_though_its_digest_is_right_is_met_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart loop of 16 hours: digest and stamps are right, and the loader fails at every start."""
    use(monkeypatch, RuntimeError("no symbol"))
    told = fails(store)
    assert type(told) is CorruptError
    assert manifest().payloads[0].name in told.what
    assert told.path == str(store.layout.entry(KEY))
    (aside,) = store.layout.quarantine.iterdir()
    assert str(aside) in told.hint
    assert "no symbol" in json.loads((aside / "reason.json").read_text())["reason"]
    assert object_path(store).is_file()
    assert type(fails(store)) is NoEntryError


def test_a_refusal_that_does_not_come_again_is_forgiven(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = use(monkeypatch, RuntimeError("no symbol"))
    real = Kind.load

    def once(self: Kind, *given: Any) -> Any:
        try:
            return real(self, *given)
        finally:
            self.errors.clear()

    monkeypatch.setattr(Kind, "load", once)
    assert load(KEY, nn.Module(), cache_dir=store.root).manifest.key == KEY
    assert kind.loads == 2


def test_bytes_that_were_read_wrongly_only_once_are_forgiven(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    real, wrong = Path.read_bytes, [True]

    def read(path: Path) -> bytes:
        data = real(path)
        return data[:-1] if path.suffix == ".zst" and wrong and wrong.pop() else data

    monkeypatch.setattr(Path, "read_bytes", read)
    assert load(KEY, nn.Module(), cache_dir=store.root).manifest.key == KEY
    assert list(store.layout.quarantine.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreAccessError),
        (OSError(errno.EIO, "Input/output error"), StoreAccessError),
        (MemoryError(), IncompatibleError),
        (RuntimeError("libcuda.so.1: cannot open shared object file: No such file or directory"), IncompatibleError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), IncompatibleError),
        (RuntimeError("a.so: failed to map segment from shared object"), StoreAccessError),
    ],
)
def test_what_is_the_node_s_fault_puts_nothing_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[PrecastError]
) -> None:
    use(monkeypatch, error)
    assert type(fails(store)) is kind
    assert store.check(KEY) == ()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_puts_nothing_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    use(monkeypatch)
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.suffix == ".zst":
            raise OSError(code, os.strerror(code))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read)
        assert type(fails(store)) is StoreAccessError
    assert store.check(KEY) == ()


def test_damage_beside_a_file_that_cannot_be_read_puts_nothing_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails to read may have made up the damage as well."""
    use(monkeypatch)
    damage(object_path(store), flip(500))
    real = Path.open

    def opened(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == "model.mega":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        assert type(fails(store)) is CorruptError
    assert object_path(store).is_file()
    assert [line.key for line in store.entries()] == [KEY]


def test_an_entry_that_lacks_a_file_stays_to_be_mended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    object_path(store).unlink()
    told = fails(store)
    assert type(told) is CorruptError
    assert "mends this entry" in told.hint
    assert [line.key for line in store.entries()] == [KEY]
    assert list(store.layout.quarantine.iterdir()) == []


def test_a_lenient_load_that_the_mega_file_helps_puts_nothing_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    damage(object_path(store), flip(500))
    assert load(KEY, nn.Module(), cache_dir=store.root, strict=False).degraded
    assert object_path(store).is_file()
    assert list(store.layout.quarantine.iterdir()) == []


def test_a_lenient_load_that_nothing_helps_is_met_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    damage(object_path(store), flip(500))
    damage(store.layout.mega(KEY), flip(0))
    assert type(fails(store, strict=False)) is CorruptError
    assert type(fails(store, strict=False)) is NoEntryError


@pytest.mark.parametrize("how", ["read-only", "unwritable"])
def test_a_store_that_may_not_be_written_is_not_and_the_error_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    use(monkeypatch)
    damage(object_path(store), flip(500))
    before = files_below(store.root)
    if how == "unwritable":
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, mode, **n: not mode & os.W_OK and real(path, mode, **n))
    told = fails(store, options=StoreOptions(read_only=how == "read-only"))
    assert type(told) is CorruptError
    assert "stays where it is" in told.hint
    assert told.path == str(object_path(store))
    assert files_below(store.root) == before


def test_a_mega_file_by_path_is_nobody_s_to_put_aside(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, RuntimeError("no symbol"))
    mega = store.layout.mega(KEY)
    with pytest.raises(CorruptError):
        load(mega, nn.Module(), cache_dir=store.root)
    assert mega.is_file()
    assert list(store.layout.quarantine.iterdir()) == []


def test_another_format_is_no_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    damage(store.layout.manifest(KEY), lambda data: data.replace(b"precast.manifest/1", b"precast.manifest/9"))
    assert type(fails(store)) is FormatError
    assert store.layout.manifest(KEY).is_file()


def test_an_entry_that_is_pruned_while_it_is_loaded_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    real = Store.read_object

    def pruned(self: Store, *given: Any) -> bytes:
        store.quarantine(KEY, "test")
        object_path(store).unlink()
        return real(self, *given)

    monkeypatch.setattr(Store, "read_object", pruned)
    assert type(fails(store)) is NoEntryError
