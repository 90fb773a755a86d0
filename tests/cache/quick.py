"""Stores written file by file, as `publish` leaves them but without its locks and syncs: for tests with many."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.cache.support import FACTORS, make_manifest

from precast.cache.canonical import canonical_json, sha256
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.requests import _SCHEMA as REQUESTS
from precast.cache.store import Store

MEGA = b"mega" * 64


def quick_manifest(
    number: int, raws: Sequence[bytes] = (), *, version: str = "0.1.0", torch: str = "2.13.0"
) -> Manifest:
    """A manifest with a key of its own and, unless told otherwise, a payload of its own."""
    factors = (*FACTORS, Factor("config", "model.number", number))
    made = make_manifest(tuple(raws) or (b"payload %d" % number,), {}, factors, version)
    stamps = {"aoti": {"torch": torch, "isa": "x86-64-v3"}}
    return replace(made, key=entry_key(factors), stamps=stamps, mega=MegaRecord(sha256(MEGA), len(MEGA)))


def quick_publish(store: Store, manifest: Manifest, *, used_ns: int | None = 0, requests: Sequence[str] = ()) -> str:
    """Write an entry with its objects, its stamp and what points to it."""
    layout = store.layout
    if not layout.base.is_dir():
        layout.prepare()
        (layout.locks / "store.lock").touch()
        (layout.locks / "tags.lock").touch()
    for name in manifest.objects:
        layout.object(name).parent.mkdir(exist_ok=True)
        layout.object(name).write_bytes(name.encode() * 40)
    layout.entry(manifest.key).mkdir()
    layout.manifest(manifest.key).write_bytes(manifest.sealed().to_json())
    layout.mega(manifest.key).write_bytes(MEGA)
    if used_ns is not None:
        (layout.stats / manifest.key).write_text(f"{used_ns}\n", encoding="ascii")
    for digest in requests:
        point(layout.requests / f"{digest}.json", manifest.key)
    return manifest.key


def point(path: Path, key: str) -> None:
    """Let a request name one more entry."""
    document = {"schema": REQUESTS, "entries": [{"key": key, "hint": {}}]}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"entries":[', f'"entries":[{{"hint":{{}},"key":"{key}"}},'), encoding="utf-8")
    else:
        path.write_bytes(canonical_json(document))


def quick_tag(store: Store, name: str, key: str) -> None:
    """Let a tag name an entry."""
    (store.layout.tags / name).write_text(f"{key}\n", encoding="ascii")


def du(folder: Path) -> int:
    """What `du` says of a folder, by size or by blocks, whichever is more for each file; hard links count once."""
    seen: dict[tuple[int, int], int] = {}
    for parent, folders, files in os.walk(folder):
        for path in (parent, *(f"{parent}/{name}" for name in (*folders, *files))):
            status = os.lstat(path)
            seen[status.st_dev, status.st_ino] = max(status.st_size, status.st_blocks * 512)
    return sum(seen.values())


def count_files(folder: Path) -> int:
    """How many names below a folder are no folders."""
    return sum(
        len(files) + sum(os.path.islink(f"{parent}/{name}") for name in folders)  # noqa: PTH114
        for parent, folders, files in os.walk(folder)
    )
