"""Publishing a compile: objects by content, one manifest, one mega file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.aot.support import PIECE, manifest, plan

from precast.aot.compile import Compiled
from precast.aot.publish import publish
from precast.cache.manifest import Manifest
from precast.cache.mega import MegaFile
from precast.cache.store import Store
from precast.errors import NoEntryError, StoreAccessError

SOURCES = {"shop.model": "width = 4\n"}


def compiled(data: bytes, span: tuple[int, int] = (1, 64)) -> Compiled:
    return Compiled(PIECE, span, data, 1.5)


def test_payloads_become_objects_named_by_piece_and_range(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(
        store, manifest(payloads=()), [compiled(b"one" * 99), compiled(b"two" * 99, (65, 512))], plan(), SOURCES
    )
    assert [p.name for p in made.payloads] == [f"{PIECE}:1-64", f"{PIECE}:65-512"]
    assert next((p.kind, p.range, p.used_by, p.seconds) for p in made.payloads) == ("aoti", (1, 64), 1, 1.5)
    assert [store.read_object(p.object) for p in made.payloads] == [b"one" * 99, b"two" * 99]
    assert store.check(made.key) == ()


def test_the_mega_file_holds_every_payload(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"one")], plan(), SOURCES)
    mega = MegaFile(store.layout.entry(made.key) / "model.mega")
    assert mega.payload(made.payloads[0].object) == b"one"
    assert made.mega is not None


def test_equal_payloads_are_one_object(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"same"), compiled(b"same", (65, 512))], plan(), SOURCES)
    assert len({p.object for p in made.payloads}) == 1
    assert len(list(store.layout.objects.rglob("*.zst"))) == 2  # the payload, and the sources


def test_nothing_is_visible_when_publishing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "root")

    def fail(*_: object) -> None:
        raise StoreAccessError("the disk is full")

    monkeypatch.setattr(Store, "publish", fail)
    with pytest.raises(StoreAccessError):
        publish(store, replace(manifest(), payloads=()), [compiled(b"one")], plan(), SOURCES)
    with pytest.raises(NoEntryError):
        store.manifest(manifest().key)


def test_the_text_of_the_model_s_sources_is_an_object_and_in_the_mega_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "root")
    made = publish(store, manifest(payloads=()), [compiled(b"one")], plan(), SOURCES)
    assert made.sources is not None
    assert json.loads(store.read_object(made.sources.object)) == SOURCES
    assert json.loads(MegaFile(store.layout.entry(made.key) / "model.mega").payload(made.sources.object)) == SOURCES


def stamped(glibc: str) -> Manifest:
    return manifest(payloads=(), stamps={"aoti": {"device": "cpu", "glibc": glibc}})


@pytest.mark.parametrize(("needed", "kept"), [("9.99", "new"), ("2.2", "old")])
def test_an_entry_that_needs_newer_libraries_than_this_node_has_makes_way(
    needed: str, kept: str, tmp_path: Path
) -> None:
    store = Store(tmp_path / "root")
    old = publish(store, stamped(needed), [compiled(b"old")], plan(), SOURCES)
    made = publish(store, stamped("2.2.5"), [compiled(b"new")], plan(), SOURCES)
    assert store.read_object(made.payloads[0].object) == kept.encode()
    assert store.check(made.key) == ()
    told = [file.read_text(encoding="utf-8") for file in store.layout.quarantine.rglob("reason.json")]
    assert len(told) == (kept == "new")
    assert all(f"glibc {needed}" in text and old.key in text for text in told)
