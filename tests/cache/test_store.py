import errno
import multiprocessing
import os
import pwd
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cache.support import (
    PAYLOADS,
    Clock,
    damage,
    files_below,
    flip,
    make_manifest,
    numbered,
    publish,
    publish_numbered,
    renamed,
)

from precast.cache.canonical import sha256
from precast.cache.entries import EntryStore
from precast.cache.locks import dead_claims, live_claims
from precast.cache.manifest import Manifest, MegaRecord
from precast.cache.store import Store
from precast.errors import (
    AmbiguousKeyError,
    CorruptError,
    FormatError,
    LockedError,
    NoEntryError,
    PartialError,
    StoreAccessError,
    UsageError,
)

MEMBERS = ("manifest.json", "model.mega", "object 0", "object 1")
DAMAGES = {
    "cut to half": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "first byte flipped": flip(0),
    "a byte in the middle flipped": flip(500),
    "last byte flipped": flip(999),
    "a byte appended": lambda data: data + b"\0",
}


def member_path(store: Store, key: str, member: str) -> Path:
    if member.startswith("object"):
        return store.layout.object(sha256(PAYLOADS[int(member[-1])]))
    return store.layout.entry(key) / member


def test_a_published_entry_reads_back(store: Store, key: str) -> None:
    manifest = store.manifest(key)
    mega = store.layout.mega(key).read_bytes()
    assert manifest == replace(make_manifest(), mega=MegaRecord(sha256(mega), len(mega))).sealed()
    assert store.check(key) == ()
    assert store.absent(manifest) == ()
    assert [store.read_object(record.object, record.bytes) for record in manifest.payloads] == list(PAYLOADS)
    assert sorted(path.name for path in store.layout.entry(key).iterdir()) == ["manifest.json", "model.mega"]


def test_an_entry_may_have_no_mega_artifact(store: Store) -> None:
    store.put_object(PAYLOADS[0])
    manifest = make_manifest(PAYLOADS[:1], {})
    folder = store.publish(manifest)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    assert store.manifest(manifest.key).mega is None
    assert store.check(manifest.key) == ()


def test_publishing_leaves_nothing_but_the_entry_its_objects_and_its_stamp(store: Store, key: str) -> None:
    names = [name for name in files_below(store.layout.base) if not name.startswith("locks/")]
    assert sorted(name.partition("/")[0] for name in names) == ["entries", "entries", "objects", "objects", "stats"]
    assert live_claims(store.layout.locks) == ()


def test_nothing_in_entries_and_objects_names_this_machine(store: Store, key: str, tmp_path: Path) -> None:
    content = b"".join(
        data for name, data in files_below(store.layout.base).items() if name.startswith(("entries/", "objects/"))
    )
    assert str(tmp_path).encode() not in content
    assert os.uname().nodename.encode() not in content


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_to_any_member_is_found_and_named(store: Store, key: str, member: str, how: Any) -> None:
    path = member_path(store, key, member)
    damage(path, how)
    (found,) = store.check(key)
    assert found.member.partition(" ")[0] == member.partition(" ")[0]
    assert found.path == str(path)
    assert found.reason


@pytest.mark.parametrize("member", MEMBERS)
def test_a_missing_member_is_found_and_named(store: Store, key: str, member: str) -> None:
    path = member_path(store, key, member)
    path.unlink()
    (found,) = store.check(key)
    assert found.path == str(path)
    (line,) = store.entries()
    assert line.state == "damaged"
    assert "missing" in line.reason


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES.keys())
def test_publishing_again_repairs_any_damage(store: Store, key: str, member: str, how: Any) -> None:
    damage(member_path(store, key, member), how)
    publish(store, make_manifest(), PAYLOADS)
    assert store.check(key) == ()


def test_a_damaged_entry_is_put_aside_when_it_is_replaced(store: Store, key: str) -> None:
    damage(store.layout.mega(key), flip(500))
    publish(store, make_manifest(), PAYLOADS)
    (aside,) = store.layout.quarantine.iterdir()
    assert "model.mega" in (aside / "reason.json").read_text()


def test_a_good_entry_that_is_there_wins(store: Store, key: str) -> None:
    before = files_below(store.layout.entry(key))
    publish(store, replace(make_manifest(), code="def run(x):\n    return other(x)\n"), PAYLOADS)
    assert files_below(store.layout.entry(key)) == before


def test_an_entry_without_its_objects_is_not_published(store: Store) -> None:
    store.put_object(PAYLOADS[0])
    with pytest.raises(PartialError, match=sha256(PAYLOADS[1])):
        store.publish(make_manifest())
    assert list(store.entries()) == []


@pytest.mark.parametrize("failing", ["model.mega", "manifest.json", "rename"])
def test_a_failed_publication_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def broken(self: Path, target: Path) -> Path:
        if Path(target).name == failing or (failing == "rename" and Path(target).parent.name == "entries"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    rename = Path.rename
    publish_numbered(store, 1)
    monkeypatch.setattr(Path, "replace", broken)
    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(StoreAccessError, match="No space left"):
        publish(store, make_manifest(), PAYLOADS)
    assert [line.key for line in store.entries()] == [numbered(1).key]
    assert list(store.layout.staging.iterdir()) == []


def test_what_a_killed_publisher_left_in_staging_goes_with_the_next_publication(store: Store) -> None:
    store.layout.prepare()
    leftover = store.layout.staging / f"{make_manifest().key}-{'0' * 16}"
    leftover.mkdir()
    (leftover / "model.mega").write_bytes(b"half")
    other = store.layout.staging / f"{'ab' * 32}-{'0' * 16}"
    other.mkdir()
    living = Store(store.root)
    living.put_object(b"still writing")
    publish(store, make_manifest(), PAYLOADS)
    assert set(store.layout.staging.iterdir()) == {leftover, other}  # they may be the living writer's
    living.close()
    publish_numbered(store, 1)
    assert list(store.layout.staging.iterdir()) == []


def _die_while_writing(root: Path) -> None:
    store = Store(root)
    name = store.put_object(b"written before its death").sha256
    (store.layout.object(name).parent / f".{name}.zst-{'0' * 16}.tmp").write_bytes(b"half")
    (store.layout.staging / f"{'ab' * 32}-{'0' * 16}").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_writer_left_goes_with_the_last_publication_of_others(store: Store) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(store.root,))
    process.start()
    process.join(60)
    other = Store(store.root)
    other.put_object(b"still writing")
    publish_numbered(store, 1)
    assert list(store.layout.base.rglob("*.tmp")) != []
    other.close()
    publish_numbered(store, 2)
    assert list(store.layout.base.rglob("*.tmp")) == []
    assert list(store.layout.staging.iterdir()) == []
    assert dead_claims(store.layout.locks) == ()


def test_an_unknown_entry_is_absent(store: Store, key: str) -> None:
    for unknown in ("ab" * 32, "../../etc", "", key[:12]):
        with pytest.raises(NoEntryError):
            store.manifest(unknown)


def test_a_store_that_does_not_exist_is_empty_and_stays_absent(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.last_used("ab" * 32) is None
    store.touch("ab" * 32)
    with store.hold("ab" * 32), pytest.raises(NoEntryError):
        store.check("ab" * 32)
    assert not store.root.exists()


def test_an_entry_under_another_key_is_damaged(store: Store, key: str) -> None:
    store.layout.entry("ab" * 32).mkdir()
    store.layout.manifest("ab" * 32).write_bytes(store.layout.manifest(key).read_bytes())
    with pytest.raises(CorruptError, match="belongs to entry"):
        store.manifest("ab" * 32)


def test_one_bad_entry_never_stops_a_listing(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {key: "ok"}
    for number, content in enumerate([b"", b"{}", b'{"schema":"precast.manifest/9"}', None, b"\xff"]):
        bad = f"{number:064x}"
        store.layout.entry(bad).mkdir()
        states[bad] = "unreadable" if content and b"/9" in content else "damaged"
        if content is not None:
            store.layout.manifest(bad).write_bytes(content)
    locked = "f" * 64
    store.layout.entry(locked).mkdir()
    store.layout.manifest(locked).touch()
    states[locked] = "unreadable"
    read_bytes = Path.read_bytes

    def guarded(path: Path) -> bytes:
        if locked in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    assert {line.key: line.state for line in store.entries()} == states
    assert all(line.reason for line in store.entries() if line.state != "ok")


def test_a_listing_is_sorted_and_leaves_out_what_is_foreign(store: Store, key: str, tmp_path: Path) -> None:
    keys = sorted([key, *(publish_numbered(store, number) for number in range(3))])
    (store.layout.entries / "notes").mkdir()
    (store.layout.entries / ("cd" * 32)).touch()
    (store.layout.entries / ("ef" * 32)).symlink_to(store.layout.entry(key))
    assert [line.key for line in store.entries()] == keys


def test_a_listing_counts_the_bytes_of_the_entry(store: Store, key: str) -> None:
    (line,) = store.entries()
    assert line.bytes == sum(map(len, files_below(store.layout.entry(key)).values()))
    assert line.manifest == store.manifest(key)


def test_a_listing_that_may_not_be_read_says_so(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreAccessError, match="Permission denied"):
        list(store.entries())


def test_a_prefix_finds_its_key(store: Store, key: str) -> None:
    publish_numbered(store, 1)
    assert store.resolve_key(key[:6]) == store.resolve_key(key[:12].upper()) == store.resolve_key(key) == key


def test_a_prefix_of_several_keys_lists_them(store: Store) -> None:
    store.layout.prepare()
    keys = ["abcdef" + f"{number:058x}" for number in range(2)]
    for key in keys:
        store.layout.entry(key).mkdir()
    with pytest.raises(AmbiguousKeyError) as caught:
        store.resolve_key("abcdef0")
    assert all(key in caught.value.why for key in keys)


@pytest.mark.parametrize("prefix", ["", "abcde", "nothexatall", "../../..", "a" * 65])
def test_what_cannot_be_a_prefix_is_a_usage_error(store: Store, prefix: str) -> None:
    with pytest.raises(UsageError):
        store.resolve_key(prefix)


def test_a_prefix_of_no_key_is_absent(store: Store, key: str) -> None:
    with pytest.raises(NoEntryError):
        store.resolve_key("abcdef" if not key.startswith("abcdef") else "012345")


def test_a_last_use_is_the_time_of_our_own_clock(store: Store, key: str, clock: Clock) -> None:
    assert store.last_used(key) == clock.now
    clock.advance(90)
    store.manifest(key)
    assert store.last_used(key) == clock.now - 90 * 10**9
    store.touch(key)
    assert store.last_used(key) == clock.now


def test_a_damaged_stamp_tells_nothing(store: Store, key: str) -> None:
    (store.layout.stats / key).write_bytes(b"soon")
    assert store.last_used(key) is None


def test_quarantine_takes_an_entry_from_all_readers(store: Store, key: str) -> None:
    aside = store.quarantine(key, "a digest did not fit")
    assert aside is not None
    assert aside.parent == store.layout.quarantine
    assert "a digest did not fit" in (aside / "reason.json").read_text()
    assert list(store.entries()) == []
    with pytest.raises(NoEntryError):
        store.manifest(key)
    assert store.quarantine(key, "again") is None


def test_a_read_only_store_reads_everything_and_writes_nothing(store: Store, key: str) -> None:
    reader = Store(store.root, read_only=True)
    before = files_below(store.root)
    assert reader.check(key) == ()
    assert [line.key for line in reader.entries()] == [key]
    assert reader.quarantine(key, "no") is None
    reader.touch(key)
    with reader.hold(key):
        pass
    for write in (lambda: reader.put_object(b""), lambda: reader.publish(make_manifest()), lambda: reader.lock("a")):
        with pytest.raises(StoreAccessError, match="read-only"):
            write()
    assert files_below(store.root) == before


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses every write, as a read-only mount does, to root too."""
    real_open, real_mkdir = os.open, os.mkdir
    io_open = Path.open

    def refuse() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def guarded_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return real_open(path, flags, *rest, **named)

    def guarded_path_open(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if set(mode) & set("wxa+"):
            refuse()
        return io_open(path, mode, *rest, **named)

    def guarded_mkdir(path: Any, *rest: Any, **named: Any) -> None:
        if Path(path).exists():
            real_mkdir(path, *rest, **named)
        refuse()

    monkeypatch.setattr(os, "open", guarded_open)
    monkeypatch.setattr(Path, "open", guarded_path_open)
    monkeypatch.setattr(os, "mkdir", guarded_mkdir)
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)


def test_a_root_that_refuses_writes_still_serves_readers(store: Store, key: str, refusing: None) -> None:
    before = files_below(store.root)
    with store.hold(key):
        assert store.check(key) == ()
        assert [line.state for line in store.entries()] == ["ok"]
        store.touch(key)
    assert store.read_object(sha256(PAYLOADS[0])) == PAYLOADS[0]
    assert files_below(store.root) == before
    with pytest.raises(StoreAccessError, match="Read-only file system"):
        store.put_object(b"new")


def test_every_unwritable_folder_is_listed_with_owner_mode_and_own_uid(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.unwritable() == ()
    closed = {store.layout.objects, store.layout.staging}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in closed)
    found = store.unwritable()
    assert {folder.path for folder in found} == closed
    for folder in found:
        assert folder.owner in ("root", str(os.getuid()), folder.path.owner())
        assert folder.mode == stat.filemode(folder.path.stat().st_mode)
        assert f"uid {os.geteuid()}" in folder.reason


def test_a_root_that_does_not_exist_is_judged_by_its_nearest_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "deep" / "root")
    assert store.unwritable() == ()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert [folder.path for folder in store.unwritable()] == [tmp_path]


def test_a_root_that_is_a_file_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "root").touch()
    assert [folder.reason for folder in Store(tmp_path / "root").unwritable()] == ["it is not a folder"]


def test_a_held_lock_ends_in_an_error_that_says_which(store: Store) -> None:
    other = Store(store.root, lock_timeout_s=0)
    with store.lock("compile-abc"), pytest.raises(LockedError, match="compile-abc"), other.lock("compile-abc"):
        pytest.fail("two holders")
    with other.lock("compile-abc"):
        pass


def test_a_store_claims_to_write_from_its_first_object_to_its_publication(store: Store) -> None:
    for raw in PAYLOADS:
        store.put_object(raw)
        assert [claim.subject for claim in live_claims(store.layout.locks)] == ["writer"]
    store.publish(make_manifest())
    assert live_claims(store.layout.locks) == ()


def test_a_closed_store_claims_nothing_and_can_write_again(store: Store) -> None:
    store.put_object(PAYLOADS[0])
    store.close()
    store.close()
    assert live_claims(store.layout.locks) == ()
    store.put_object(PAYLOADS[1])
    store.publish(make_manifest())


def test_a_held_entry_is_claimed_while_the_block_runs(store: Store, key: str) -> None:
    with store.hold(key):
        assert [claim.subject for claim in live_claims(store.layout.locks)] == [key]
    assert live_claims(store.layout.locks) == ()


def test_a_too_new_entry_is_no_damage(store: Store, key: str) -> None:
    damage(store.layout.manifest(key), lambda data: data.replace(b"precast.manifest/1", b"precast.manifest/2"))
    with pytest.raises(FormatError):
        store.check(key)
    (line,) = store.entries()
    assert (line.state, line.manifest) == ("unreadable", None)


def test_a_manifest_of_another_key_cannot_be_published_over_an_entry(store: Store, key: str) -> None:
    before = store.manifest(key)
    publish(store, renamed(make_manifest(), "ab" * 32), PAYLOADS)
    assert store.manifest(key) == before
    assert isinstance(store.manifest("ab" * 32), Manifest)


def test_a_read_only_file_system_is_told_from_missing_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mount:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: Mount)
    assert [folder.reason for folder in Store(tmp_path).unwritable()] == ["its file system is read-only"]


def test_an_owner_without_a_name_is_shown_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert [folder.owner for folder in Store(tmp_path).unwritable()] == [str(tmp_path.stat().st_uid)]


def test_an_entry_that_cannot_be_moved_aside_says_so(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StoreAccessError, match="Read-only file system"):
        store.quarantine(key, "test")


@pytest.mark.parametrize("what", ["objects", "entries"])
def test_a_disk_that_fails_to_sync_publishes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """An error means no entry, also where the last step of all failed."""
    real = os.fsync

    def failing(descriptor: int) -> None:
        folder = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if folder.endswith("/entries") if what == "entries" else "/objects/" in folder:
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(StoreAccessError, match="Input/output error"):
            publish(store, make_manifest(), PAYLOADS)
    assert list(store.entries()) == []
    assert list(store.layout.staging.iterdir()) == []
    assert store.check(publish(store, make_manifest(), PAYLOADS)) == ()


def test_clean_up_that_fails_fails_no_publication(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreAccessError("It cannot be tidied", "Device or resource busy")

    monkeypatch.setattr(Store, "_tidy", refuse)
    assert store.check(publish(store, make_manifest(), PAYLOADS)) == ()


def test_an_entry_that_goes_while_it_is_checked_is_absent_and_not_damaged(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prune` renames the folder away first and takes the objects afterwards."""
    read = EntryStore.manifest

    def pruned_afterwards(entries: EntryStore, wanted: str) -> Manifest:
        found = read(entries, wanted)
        store.layout.entry(wanted).rename(store.layout.staging / "gone")
        for raw in PAYLOADS:
            store.layout.object(sha256(raw)).unlink()
        return found

    monkeypatch.setattr(EntryStore, "manifest", pruned_afterwards)
    with pytest.raises(NoEntryError):
        store.check(key)


def test_a_claim_to_write_lasts_as_long_as_its_block_and_no_shorter_than_an_outer_one(store: Store) -> None:
    def writers() -> int:
        return sum(claim.subject == "writer" for claim in live_claims(store.layout.locks))

    with store.writing():
        with store.writing():
            assert writers() == 1
        assert writers() == 1
    assert writers() == 0


def test_a_store_that_does_not_exist_and_one_that_is_read_only_are_not_tidied(store: Store, key: str) -> None:
    Store(store.root / "absent").tidy()
    assert not (store.root / "absent").exists()
    (store.layout.staging / f".file-{'0' * 16}.tmp").touch()
    Store(store.root, read_only=True).tidy()
    assert len(list(store.layout.staging.iterdir())) == 1
    store.tidy()
    assert list(store.layout.staging.iterdir()) == []


def test_nothing_of_a_writer_is_tidied_away(store: Store, key: str) -> None:
    unfinished = store.layout.staging / f"{'ab' * 32}-{'0' * 16}"
    with Store(store.root).writing():
        unfinished.mkdir()
        store.tidy()
        assert unfinished.is_dir()
    store.tidy()
    assert not unfinished.exists()


def test_large_entries_are_checked_in_threads_with_the_same_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    raws = tuple(os.urandom(2**20) + bytes([number]) for number in range(5))
    draft = make_manifest(raws, {})
    key = publish(store, draft, raws)
    assert store.check(key) == ()
    damage(store.layout.object(sha256(raws[1])), flip(500))
    damage(store.layout.mega(key), flip(999))
    in_threads = store.check(key)
    monkeypatch.setattr("precast.cache.checks._LARGE_BYTES", 2**40)
    assert [item.member for item in in_threads] == ["model.mega", f"object {sha256(raws[1])}"]
    assert store.check(key) == in_threads
