"""Publishing a compile: objects by content, one manifest, one mega file."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.aot.support import PIECE, manifest, plan

from precast.aot.compile import Compiled
from precast.aot.publish import publish
from precast.cache.mega import MegaFile
from precast.cache.store import Store
from precast.errors import NoEntryError, StoreAccessError


def compiled(data: bytes, span: tuple[int, int] = (1, 64)) -> Compiled:
    return Compiled(PIECE, span, data, 1.5)


def test_payloads_become_objects_named_by_piece_and_range(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"one" * 99), compiled(b"two" * 99, (65, 512))], plan())
    assert [p.name for p in made.payloads] == [f"{PIECE}:1-64", f"{PIECE}:65-512"]
    assert next((p.kind, p.range, p.used_by, p.seconds) for p in made.payloads) == ("aoti", (1, 64), 1, 1.5)
    assert [store.read_object(p.object) for p in made.payloads] == [b"one" * 99, b"two" * 99]
    assert store.check(made.key) == ()


def test_the_mega_file_holds_every_payload(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"one")], plan())
    mega = MegaFile(store.layout.entry(made.key) / "model.mega")
    assert mega.payload(made.payloads[0].object) == b"one"
    assert made.mega is not None


def test_equal_payloads_are_one_object(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"same"), compiled(b"same", (65, 512))], plan())
    assert len({p.object for p in made.payloads}) == 1
    assert len(list(store.layout.objects.rglob("*.zst"))) == 1


def test_nothing_is_visible_when_publishing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "root")

    def fail(*_: object) -> None:
        raise StoreAccessError("the disk is full")

    monkeypatch.setattr(Store, "publish", fail)
    with pytest.raises(StoreAccessError):
        publish(store, replace(manifest(), payloads=()), [compiled(b"one")], plan())
    with pytest.raises(NoEntryError):
        store.manifest(manifest().key)
