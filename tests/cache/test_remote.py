"""Fetching and pushing: whole or not at all, whatever fails, and never wrong."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cache.remotes import (
    REQUEST,
    Flaky,
    Killed,
    MemoryFiles,
    built_elsewhere,
    local_store,
    remote_on,
    with_entry,
)
from tests.cache.support import (
    CONSTANTS,
    PAYLOADS,
    damage,
    files_below,
    flip,
    make_manifest,
    numbered,
    publish,
    publish_numbered,
)

from precast.cache import mega
from precast.cache.canonical import Json, canonical_json, decode_json, digest, sha256
from precast.cache.frames import compress, decompress
from precast.cache.manifest import BuildRecord, Manifest
from precast.cache.remote import Pushed
from precast.cache.remote_calls import Limits
from precast.cache.remote_files import FolderFiles
from precast.cache.remote_store import longest_frame, manifest_name, mega_name, object_name, pointer_name
from precast.cache.store import Store
from precast.errors import CorruptError, FormatError, NoEntryError, RemoteError


def decoded(data: bytes) -> dict[str, Json]:
    document = decode_json(data)
    assert isinstance(document, dict)
    return document


def test_a_push_and_a_fetch_give_the_same_bytes(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    pushed = remote_on(files).push(here, key, [REQUEST])
    there = local_store(tmp_path / "b")
    remote = remote_on(files)
    pulled = remote.fetch(there, key)
    assert files_below(there.layout.entry(key)) == files_below(here.layout.entry(key))
    assert there.check(key) == ()
    assert (pushed.objects, pulled.objects, pulled.new, pulled.manifest) == (2, 2, True, here.manifest(key))
    assert pushed.bytes == sum(len(files.files[name]) for name in files.files if "requests" not in name)
    assert pulled.bytes == sum(len(files.files[name]) for name in files.paths("objects"))
    assert (remote.has(key), remote.candidates(REQUEST), remote.keys(key[:6])) == (True, (key,), (key,))
    assert (remote.has("0" * 64), remote.candidates("0" * 64), remote.keys("0" * 6)) == (False, (), ())


def test_objects_come_first_then_the_manifest_then_the_request(tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key, [REQUEST])
    names = [object_name(sha256(raw)) for raw in PAYLOADS]
    assert sorted(files.writes()[:2]) == sorted(names)
    assert files.writes()[2:] == [manifest_name(key), pointer_name(REQUEST, key)]


def test_the_mega_artifact_stays_at_home(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    assert files.paths("mega") == []


def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    here, key = with_entry(tmp_path / "a")
    remote = remote_on(files)
    remote.push(here, key, [REQUEST])
    before = len(files.writes())
    assert remote.push(here, key, [REQUEST]) == Pushed(0, 0, kept=False)
    assert remote.push(here, key, [REQUEST], built=False) == Pushed(0, 0, kept=False)
    assert len(files.writes()) == before


def test_an_entry_that_is_only_looked_for_costs_no_read(tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key, [REQUEST])
    files.operations.clear()
    remote_on(files).push(here, key, [REQUEST], built=False)
    assert {text.partition(" ")[0] for text in files.operations} == {"size"}


def test_another_request_gets_a_pointer_of_its_own(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key, [REQUEST])
    remote_on(files).push(here, key, ["cd" * 32], built=False)
    assert remote_on(files).candidates("cd" * 32) == (key,)


def test_shared_objects_travel_once(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    again = publish(here, numbered(1, PAYLOADS), PAYLOADS)
    assert remote_on(files).push(here, again).objects == 0
    there = local_store(tmp_path / "b")
    assert remote_on(files).fetch(there, key).objects == 2
    assert remote_on(files).fetch(there, again).objects == 0
    assert there.check(again) == ()


def test_the_first_build_stays(tmp_path: Path) -> None:
    files = MemoryFiles()
    first, key = with_entry(tmp_path / "a")
    second, _ = with_entry(tmp_path / "b", built_elsewhere)
    assert remote_on(files).push(first, key).kept is False
    assert remote_on(files).push(second, key).kept is True
    assert remote_on(files).manifest(key) == first.manifest(key)


def test_two_machines_that_push_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    files = FolderFiles(tmp_path)
    stores = [with_entry(tmp_path / name, change) for name, change in (("a", lambda m: m), ("b", built_elsewhere))]
    kept: list[bool] = []
    threads = [
        threading.Thread(target=lambda s=store, k=key: kept.append(remote_on(files).push(s, k, [REQUEST]).kept))
        for store, key in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    key = stores[0][1]
    there = local_store(tmp_path / "c")
    assert sorted(kept) == [False, True]
    assert remote_on(files).fetch(there, key).manifest in [store.manifest(key) for store, _ in stores]
    assert there.check(key) == ()


def test_a_fetch_keeps_a_sound_local_entry_and_reads_no_object(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    mine, _ = with_entry(tmp_path / "b", built_elsewhere)
    pulled = remote_on(files).fetch(mine, key)
    assert (pulled.objects, pulled.bytes, pulled.new, pulled.manifest.build.seconds) == (0, 0, False, 99.0)


def test_a_fetch_repairs_a_damaged_local_entry(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    damage(here.layout.object(sha256(PAYLOADS[0])), flip(500))
    assert here.check(key) != ()
    pulled = remote_on(files).fetch(here, key)
    assert (pulled.objects, here.check(key)) == (1, ())


def test_an_entry_without_a_mega_artifact_travels_too(tmp_path: Path) -> None:
    files = MemoryFiles()
    here = local_store(tmp_path / "a")
    manifest = make_manifest(PAYLOADS, {})
    for raw in PAYLOADS:
        here.put_object(raw)
    here.publish(manifest)
    remote_on(files).push(here, manifest.key)
    there = local_store(tmp_path / "b")
    assert remote_on(files).fetch(there, manifest.key).manifest.mega is None


def test_constants_travel_in_the_mega_artifact(tmp_path: Path) -> None:
    files = MemoryFiles()
    here = local_store(tmp_path / "a")
    key = publish(here, make_manifest(PAYLOADS, CONSTANTS), PAYLOADS)
    remote_on(files).push(here, key)
    there = local_store(tmp_path / "b")
    remote_on(files).fetch(there, key)
    assert files.paths("model.mega") == [mega_name(key)]
    assert files_below(there.layout.entry(key)) == files_below(here.layout.entry(key))


def recompressed(raw: bytes) -> bytes:
    """What another version of zstd may make of some bytes: another frame that holds the same."""
    import zstandard

    return zstandard.ZstdCompressor(level=1, write_checksum=False).compress(raw)


def test_another_version_of_zstd_where_it_is_fetched_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    monkeypatch.setattr(mega, "compress", recompressed)
    there = local_store(tmp_path / "b")
    there.put_object(PAYLOADS[0])  # compressed by the other version
    assert remote_on(files).fetch(there, key).objects == 2  # the frame of the one that was there is read after all
    assert files_below(there.layout.entry(key)) == files_below(here.layout.entry(key))


def test_another_version_of_zstd_where_it_is_built_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects were in the remote before, as another version had made them: they stay, and the file travels."""
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    frames = {name: files.files[name] for name in files.paths("objects")}
    monkeypatch.setattr(mega, "compress", recompressed)
    monkeypatch.setattr("precast.cache.objects.compress", recompressed)
    newer = local_store(tmp_path / "b")
    other = publish(newer, numbered(1, PAYLOADS), PAYLOADS)
    remote_on(files).push(newer, other)
    assert {name: files.files[name] for name in frames} == frames
    monkeypatch.undo()
    for wanted, source in ((key, here), (other, newer)):
        there = local_store(tmp_path / f"c{wanted[:6]}")
        remote_on(files).fetch(there, wanted)
        assert files_below(there.layout.entry(wanted)) == files_below(source.layout.entry(wanted))


DAMAGES: dict[str, Callable[[dict[str, bytes], str], None]] = {
    "flipped object": lambda files, key: _change(files, "objects", flip(500)),
    "flipped frame header": lambda files, key: _change(files, "objects", flip(0)),
    "truncated object": lambda files, key: _change(files, "objects", lambda data: data[:-3]),
    "empty object": lambda files, key: _change(files, "objects", lambda _: b""),
    "swapped objects": lambda files, key: _swap(files),
    "huge object": lambda files, key: _change(
        files, "objects", lambda data: data + b"\0" * longest_frame(len(data) * 9)
    ),
    "other content of the same size": lambda files, key: _change(files, "objects", _forged),
    "missing object": lambda files, key: files.__delitem__(_first(files, "objects")),
    "flipped manifest": lambda files, key: _change(files, "manifest", flip(500)),
    "truncated manifest": lambda files, key: _change(files, "manifest", lambda data: data[: len(data) // 2]),
    "empty manifest": lambda files, key: _change(files, "manifest", lambda _: b""),
    "manifest of another entry": lambda files, key: files.update({manifest_name(key): numbered(7).sealed().to_json()}),
    "manifest of no entry": lambda files, key: files.update({manifest_name(key): canonical_json({"schema": 3})}),
    "manifest with a path of somebody's": lambda files, key: files.update({manifest_name(key): _with_path(files, key)}),
    "manifest that is too long": lambda files, key: _change(files, "manifest", lambda data: data + b" " * 2**12),
}


def _forged(frame: bytes) -> bytes:
    return compress(bytes(len(decompress(frame))))


def _with_path(files: dict[str, bytes], key: str) -> bytes:
    document = decoded(files[manifest_name(key)])
    document["model"] = {"name": "tiny", "reference": "/home/somebody/model.py", "config": {}}
    body = {name: value for name, value in document.items() if name != "digest"}
    return canonical_json({**body, "digest": digest(body)})


def _first(files: dict[str, bytes], word: str) -> str:
    return min(name for name in files if word in name)


def _change(files: dict[str, bytes], word: str, how: Callable[[bytes], bytes]) -> None:
    files[_first(files, word)] = how(files[_first(files, word)])


def _swap(files: dict[str, bytes]) -> None:
    one, other = [name for name in sorted(files) if "objects" in name]
    files[one], files[other] = files[other], files[one]


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_never_stored_and_the_next_push_replaces_it(
    tmp_path: Path, how: Callable[[dict[str, bytes], str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precast.cache.remote_store._MAX_MANIFEST", 2**12)
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    how(files.files, key)
    there = local_store(tmp_path / "b")
    remote = remote_on(files)
    with pytest.raises(CorruptError) as caught:
        remote.fetch(there, key)
    assert caught.value.path.startswith("s3://bucket/prefix/v1/")
    assert list(there.entries()) == []
    mine = publish(there, built_elsewhere(make_manifest(PAYLOADS, {})), PAYLOADS)
    assert remote.push(there, mine).kept is False
    third = local_store(tmp_path / "c")
    assert remote_on(files).fetch(third, key).manifest == there.manifest(key)
    assert third.check(key) == ()


def test_all_damage_of_an_entry_is_replaced_at_once(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    for name in files.paths("objects"):
        files.files[name] = flip(500)(files.files[name])
    remote = remote_on(files)
    with pytest.raises(CorruptError):
        remote.fetch(local_store(tmp_path / "b"), key)
    assert remote.push(here, key).objects == 2
    assert remote_on(files).fetch(local_store(tmp_path / "b"), key).objects == 2


def test_a_manifest_that_names_too_much_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Flaky(MemoryFiles())
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    monkeypatch.setattr("precast.cache.remote_store._MAX_ENTRY", 100)
    files.operations.clear()
    with pytest.raises(CorruptError, match="more than 100 bytes"):
        remote_on(files).fetch(local_store(tmp_path / "b"), key)
    assert not any("objects" in text for text in files.operations)


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    name = manifest_name(key)
    newer = {**decoded(files.files[name]), "schema": "precast.manifest/2"}
    files.files[name] = canonical_json(newer)
    before = dict(files.files)
    with pytest.raises(FormatError):
        remote_on(files).fetch(local_store(tmp_path / "b"), key)
    assert remote_on(files).push(here, key).kept is True
    assert files.files == before


def test_a_manifest_that_could_not_be_stored_unchanged_is_left_alone(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    name = manifest_name(key)
    document = decoded(files.files[name])
    document = {**{k: v for k, v in document.items() if k != "digest"}, "field_of_a_later_version": 1}
    files.files[name] = canonical_json({**document, "digest": digest(document)})
    there = local_store(tmp_path / "b")
    assert remote_on(files).manifest(key).key == key
    with pytest.raises(FormatError):
        remote_on(files).fetch(there, key)
    assert list(there.entries()) == []


def test_what_is_not_there_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(NoEntryError):
        remote_on(MemoryFiles()).fetch(local_store(tmp_path / "b"), "0" * 64)


def test_a_damaged_local_entry_is_not_pushed(tmp_path: Path) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    damage(here.layout.object(sha256(PAYLOADS[1])), flip(900))
    with pytest.raises(CorruptError):
        remote_on(files).push(here, key)
    assert files.files == {}


def test_a_damaged_local_mega_artifact_is_not_pushed(tmp_path: Path) -> None:
    files = MemoryFiles()
    here = local_store(tmp_path / "a")
    key = publish(here, make_manifest(PAYLOADS, CONSTANTS), PAYLOADS)
    damage(here.layout.mega(key), flip(900))
    with pytest.raises(CorruptError):
        remote_on(files).push(here, key)
    assert files.paths("entries") == []


def test_names_that_are_no_keys_are_no_entries(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.write(f"v1/requests/{REQUEST}/readme.txt", b"")
    files.write("v1/entries/../manifest.json", b"")
    assert (remote_on(files).candidates(REQUEST), remote_on(files).keys("")) == ((), ())


def operations_of(work: Callable[[Flaky], object], files: MemoryFiles) -> int:
    """Count the operations of some work on a copy of a remote."""
    copy = MemoryFiles()
    copy.files.update(files.files)
    flaky = Flaky(copy)
    work(flaky)
    return len(flaky.operations)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("error", [ConnectionError("reset"), PermissionError(13, "no"), TimeoutError(), Killed()])
def test_a_push_that_ends_anywhere_leaves_no_half_an_entry(tmp_path: Path, error: BaseException, done: bool) -> None:
    here, key = with_entry(tmp_path / "a")
    total = operations_of(lambda files: remote_on(files).push(here, key, [REQUEST]), MemoryFiles())
    seen = set()
    for number in range(total):
        files = MemoryFiles()
        expected = Killed if isinstance(error, Killed) else RemoteError
        with pytest.raises(expected):
            remote_on(Flaky(files, number, error, done=done)).push(here, key, [REQUEST])
        reader = remote_on(files)
        seen.add(reader.has(key))
        for found in reader.candidates(REQUEST) or ((key,) if reader.has(key) else ()):
            there = local_store(tmp_path / f"{number}")
            assert reader.fetch(there, found).manifest == here.manifest(key)
        remote_on(files).push(here, key, [REQUEST])
        assert remote_on(files).candidates(REQUEST) == (key,)
        assert remote_on(files).fetch(local_store(tmp_path / f"again{number}"), key).manifest == here.manifest(key)
    assert seen == {False, True}


@pytest.mark.parametrize("error", [ConnectionError("reset"), Killed()])
def test_a_fetch_that_ends_anywhere_leaves_no_half_an_entry(tmp_path: Path, error: BaseException) -> None:
    files = MemoryFiles()
    here, key = with_entry(tmp_path / "a")
    remote_on(files).push(here, key)
    total = operations_of(lambda files: remote_on(files).fetch(local_store(tmp_path / "count"), key), files)
    for number in range(total):
        there = local_store(tmp_path / f"{number}")
        with pytest.raises(Killed if isinstance(error, Killed) else RemoteError):
            remote_on(Flaky(files, number, error)).fetch(there, key)
        assert list(there.entries()) == []
        assert list(there.layout.staging.glob("*")) == []
        assert remote_on(files).fetch(there, key).manifest == here.manifest(key)
        assert there.check(key) == ()


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What two machines, a network and bad luck do to one remote: action, which entry or file, and where it fails."""
    action = st.sampled_from(["push a", "push b", "damage", "remove"])
    return draw(st.lists(st.tuples(action, st.integers(0, 7), st.integers(0, 12)), min_size=1, max_size=7))


Builders = dict[str, tuple[Store, list[str]]]


@pytest.fixture(scope="module")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Builders:
    """Two machines that have built the same two entries."""
    folder = tmp_path_factory.mktemp("builders")
    return {"push a": _builder(folder / "a", 1.0), "push b": _builder(folder / "b", 2.0)}


@settings(max_examples=30, deadline=None)
@given(history=histories())
def test_a_reader_sees_an_entry_whole_or_not_at_all(
    builders: Builders, tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]]
) -> None:
    """Also after crashes, damage and losses in any order; and the next builder makes it whole again."""
    files = MemoryFiles()
    for action, which, fails_at in history:
        if action in builders:
            store, keys = builders[action]
            flaky = Flaky(files, fails_at, Killed() if which % 2 else None, done=which % 3 == 0)
            with suppress(RemoteError, Killed):
                remote_on(flaky).push(store, keys[which % 2], [REQUEST])
        elif files.files:
            name = sorted(files.files)[which % len(files.files)]
            if action == "damage" and files.files[name]:
                files.files[name] = flip(fails_at * 80)(files.files[name])
            elif action == "remove":
                del files.files[name]
    reader = local_store(tmp_path_factory.mktemp("reader"))
    for key in builders["push a"][1]:
        manifest = _fetched(reader, files, key, builders["push b"][0])
        assert reader.check(key) == ()
        assert manifest.digest in [store.manifest(key).digest for store, _ in builders.values()]


def _fetched(reader: Store, files: MemoryFiles, key: str, builder: Store) -> Manifest:
    """Fetch an entry; where that fails, build it here and push what was built.

    The first push believes the sizes of objects that no reader has complained of; the second one knows better.
    """
    for _ in range(2):
        remote = remote_on(files)
        try:
            return remote.fetch(reader, key).manifest
        except (CorruptError, NoEntryError):
            assert key not in [entry.key for entry in reader.entries()]
            remote.push(builder, key, [REQUEST])
    return remote_on(files).fetch(reader, key).manifest


def _builder(folder: Path, seconds: float) -> tuple[Store, list[str]]:
    """A machine that has built two entries, which share no object; its build times are its own."""
    store = local_store(folder)
    keys = []
    for number in range(2):
        raw = (f"payload {number} ".encode() * 50,)
        manifest = replace(numbered(number), build=BuildRecord("2026-11-30T18:00:00Z", seconds, "0.1.0"))
        keys.append(publish(store, manifest, raw))
    return store, keys


def test_many_objects_travel_side_by_side(tmp_path: Path) -> None:
    """Each waits until four are on their way at once; one by one it would never end."""
    files = MemoryFiles()
    raws = tuple(f"payload {number} ".encode() * 30 for number in range(8))
    here, key = with_entry(tmp_path / "a", payloads=raws)
    remote_on(files).push(here, key)
    barrier = threading.Barrier(4)

    class Meeting(MemoryFiles):
        def read(self, name: str, limit: int) -> bytes | None:
            if "objects" in name:
                barrier.wait(timeout=30)
            return super().read(name, limit)

    meeting = Meeting()
    meeting.files = files.files
    limits = Limits(workers=4, attempts=1)
    assert remote_on(meeting, limits).fetch(local_store(tmp_path / "b"), key).objects == 8


def test_a_key_that_is_given_in_full_is_not_looked_for_in_a_listing(tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    here = local_store(tmp_path / "a")
    key = publish_numbered(here, 1)
    remote_on(files).push(here, key)
    files.operations.clear()
    assert remote_on(files).keys(key) == (key,)
    assert files.operations == [f"size {manifest_name(key)}"]
