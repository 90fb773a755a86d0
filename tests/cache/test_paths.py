"""Absolute paths: found in text, libraries, pickles and archives, and not seen where there are none."""

import io
import marshal
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import PAYLOADS, make_manifest, publish, publish_sources

from precast.cache import paths
from precast.cache.paths import HeldPath, PathSearch, absolute_paths, search_paths
from precast.cache.store import Store
from precast.errors import CorruptError

PLACES = [
    "/home/ci/model.py",
    "/root/.cache/precast",
    "/tmp/precast-compile-x1/inductor",
    "/opt/a",
    "/opt/v1/lib/python3.12/site-packages/torch/include",
    "/usr/lib/gcc/x86_64-linux-gnu/12/include/immintrin.h",
    "/dev/shm/u1/x",
    "/Users/me/x.py",
    "/srv/b/R2",
    "/nix/store/abc-gcc/lib",
    "/an/unusual/place",
]

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=2, max_size=12).filter(lambda n: n.strip("."))
places = st.lists(names, min_size=1, max_size=5).map(lambda parts: "/opt/" + "/".join(parts).rstrip("."))


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return out.getvalue()


WRITINGS: dict[str, Callable[[str], bytes]] = {
    "alone": lambda p: p.encode(),
    "c string": lambda p: b"\0\x01" + p.encode() + b"\0next",
    "json": lambda p: f'{{"file": "{p}"}}'.encode(),
    "python": lambda p: f"os.environ[\"X\"] = '{p}'\n".encode(),
    "command": lambda p: f"g++ -O3 -I{p} -o x".encode(),
    "linker": lambda p: f"g++ x.o -L{p} -lx".encode(),
    "prefix map": lambda p: f"-ffile-prefix-map={p}=.".encode(),
    "search path": lambda p: f"$ORIGIN:{p}:/x".encode(),
    "traceback": lambda p: f'  File "{p}", line 3'.encode(),
    "comment": lambda p: f"# File: {p}:10 in forward".encode(),
    "address": lambda p: f"file://{p}".encode(),
    "pickle": lambda p: pickle.dumps(("x", p)),
    "old pickle": lambda p: pickle.dumps({p: 1}, protocol=2),
    "code": lambda p: marshal.dumps(compile("pass", p, "exec")),
    "archive": lambda p: archive({"a/b.so": b"\0" + p.encode() + b"\0"}),
    "stored archive": lambda p: archive({"b.txt": p.encode()}, zipfile.ZIP_STORED),
    "archive in an archive": lambda p: archive({"in.zip": archive({"b.txt": p.encode()})}),
}


@pytest.mark.parametrize("written", WRITINGS)
@pytest.mark.parametrize("place", PLACES)
def test_a_path_is_found_however_it_is_written(written: str, place: str) -> None:
    found = absolute_paths(WRITINGS[written](place))
    assert any(path.rpartition(" ")[2].startswith(place) for path in found), found


@given(places, st.sampled_from(sorted(WRITINGS)))
def test_a_path_of_any_length_is_found(place: str, written: str) -> None:
    found = absolute_paths(WRITINGS[written](place))
    assert any(path.rpartition(" ")[2].startswith(place) for path in found), found


@pytest.mark.parametrize(
    "text",
    [
        "./include/torch/csrc/inductor/cpp_prefix.h",
        "\0./inductor/cabc/piece.wrapper.cpp\0",
        "examples/configs/tiny-llama/config.json",
        "~/data/models/x",
        "See https://pytorch.org/docs/stable/library.html#torch.library.opcheck",
        "s3://bucket/home/models/x and hf://home/me/model",
        "2026/11/30 or 1/2/3, and/or, client/server/home/x",
        "x = a / home / b // opt // tmp",
        "${ROOT}/home/x and $(pwd)/build/x and {root}/data/x and %(here)s/home/x",
        "#!/usr/bin/env python\n#!/bin/sh\n",
        "/proc/self/maps /sys/fs/cgroup/cpu.max /dev/null /dev/urandom /dev/nvidia0",
        "/lib64/ld-linux-x86-64.so.2",
        "/",
        "//",
        "/x/y",
    ],
)
def test_what_is_no_path_of_a_machine_is_not_told(text: str) -> None:
    assert absolute_paths(text.encode()) == ()


def test_each_path_is_told_once_with_its_member() -> None:
    data = archive({"m/a.so": b"/opt/x/y /opt/x/y /opt/z", "m/b.json": b'"/opt/x/y"'})
    assert absolute_paths(data) == ("m/a.so: /opt/x/y", "m/a.so: /opt/z", "m/b.json: /opt/x/y")


def test_chance_is_not_a_path() -> None:
    noise = b"".join(zlib.compress(struct.pack("<Q", i) * 3) + struct.pack("<d", i / 7) for i in range(50_000))
    assert absolute_paths(noise) == ()


def test_an_archive_with_too_many_members_is_not_searched() -> None:
    with mock.patch.object(paths, "_MAX_MEMBERS", 2), pytest.raises(ValueError, match="3 members"):
        absolute_paths(archive({"a": b"", "b": b"", "c": b""}))


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked() -> None:
    bomb = archive({"a": bytes(3000), "b": bytes(3000)})
    with mock.patch.object(paths, "_MAX_BYTES", 5000), pytest.raises(ValueError, match="more than 5000 bytes"):
        absolute_paths(bomb)


@given(st.data())
def test_a_damaged_archive_is_searched_or_refused(data: st.DataObject) -> None:
    whole = bytearray(archive({"a": b"/opt/x/y" * 40, "b": b"z" * 99}))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        absolute_paths(bytes(whole))
    except ValueError:
        return


def test_archives_within_archives_end_somewhere() -> None:
    data = archive({"a": b"/opt/x/y"})
    for _ in range(2):
        data = archive({"in.zip": data})
    assert absolute_paths(data) == ("in.zip: in.zip: a: /opt/x/y",)
    with pytest.raises(ValueError, match="3 deep"):
        absolute_paths(archive({"in.zip": data}))


def test_an_entry_is_searched_whole(store: Store) -> None:
    key = publish_sources(store, make_manifest(), {"shop.model": 'WEIGHTS = "/data/weights/x"\n'})
    manifest = store.manifest(key)
    assert manifest.sources is not None
    found = search_paths(manifest, store.read_object)
    assert found == PathSearch((HeldPath(f"object {manifest.sources.object}", "/data/weights/x"),))
    assert found.json() == [{"member": f"object {manifest.sources.object}", "path": "/data/weights/x"}]


def test_a_manifest_is_searched_too(store: Store) -> None:
    made = make_manifest()
    made.model.config["weights"] = "/mnt/models/x"
    manifest = store.manifest(publish(store, made, PAYLOADS))
    assert search_paths(manifest, store.read_object).found == (HeldPath("manifest.json", "/mnt/models/x"),)


def test_an_entry_with_none_says_so(store: Store, key: str) -> None:
    assert search_paths(store.manifest(key), store.read_object).json() == []


def test_what_cannot_be_read_leaves_the_answer_open(store: Store, key: str) -> None:
    manifest = store.manifest(key)

    def read(name: str, size: int) -> bytes:
        if name == manifest.payloads[0].object:
            raise CorruptError("it is damaged")
        return b"/opt/x/y"

    found = search_paths(manifest, read)
    assert (found.problem, found.json()) == ("it is damaged", None)
    assert found.found == (HeldPath(f"object {manifest.payloads[1].object}", "/opt/x/y"),)


def test_the_sources_of_this_project_hold_none() -> None:
    folder = Path(__file__).resolve().parents[2] / "examples" / "decoder"
    held = {file.name: absolute_paths(file.read_bytes()) for file in folder.glob("*.py")}
    assert held
    assert not any(held.values()), held
