"""Who could have written what is stored: owners and modes, on the way to it and below it."""

import grp
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cache.support import publish_numbered
from tests.users import NOBODYS, folder_for_all, needs_root, run_as

from precast.cache import trust
from precast.cache.options import StoreOptions
from precast.cache.root import CacheRoot
from precast.cache.store import Store
from precast.cache.trust import require_trusted, require_trusted_file, untrusted_file, untrusted_places
from precast.errors import ExitCode, UntrustedError


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    caches = (trust._is_own_group, trust._overflow_uid, trust._knows_all_users)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "parent" / "root")


@pytest.fixture
def key(store: Store) -> str:
    return publish_numbered(store, 1)


def member(name: str) -> Callable[[CacheRoot, str], Path]:
    places: dict[str, Callable[[CacheRoot, str], Path]] = {
        "parent": lambda root, key: root.path.parent,
        "root": lambda root, key: root.path,
        "v1": lambda root, key: root.base,
        "objects": lambda root, key: root.objects,
        "entries": lambda root, key: root.entries,
        "requests": lambda root, key: root.requests,
        "tags": lambda root, key: root.tags,
        "entry": lambda root, key: root.entry(key),
        "manifest": lambda root, key: root.manifest(key),
        "mega": lambda root, key: root.mega(key),
    }
    return places[name]


MEMBERS = ["parent", "root", "v1", "objects", "entries", "requests", "tags", "entry", "manifest", "mega"]


def refused(store: Store, key: str | None = None) -> UntrustedError:
    with pytest.raises(UntrustedError) as caught:
        require_trusted(store.layout, StoreOptions(), key)
    return caught.value


def test_a_store_of_one_s_own_is_trusted(store: Store, key: str) -> None:
    assert untrusted_places(store.layout, key) == ()
    require_trusted(store.layout, StoreOptions(), key)


def test_a_root_that_does_not_exist_is_judged_by_what_is_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert untrusted_places(CacheRoot(tmp_path / "not" / "there")) == ()
    (found,) = untrusted_places(CacheRoot(tmp_path / "open" / "not" / "there"))
    assert (found.path, found.reason) == (tmp_path / "open", "every user can write to it")


@pytest.mark.parametrize("name", MEMBERS)
def test_what_everybody_can_write_is_refused_and_named(store: Store, key: str, name: str) -> None:
    path = member(name)(store.layout, key)
    path.chmod(path.stat().st_mode | 0o002)
    error = refused(store, key)
    (told,) = error.details["places"]
    assert (told["path"], told["reason"]) == (str(path), "every user can write to it")
    assert (told["owner_uid"], told["mode"]) == (os.getuid(), error.why.partition("mode ")[2][:10])
    assert str(path) in error.why
    assert f"owner {told['owner']}" in error.why
    assert (error.code, error.exit_code, error.entry) == ("store.untrusted", ExitCode.CORRUPT, key)
    for way in ("`chmod go-w ", "--trust-root", "PRECAST_TRUST_ROOT=1", "--require-signature"):
        assert way in error.hint


@pytest.mark.parametrize("name", MEMBERS)
def test_what_a_group_can_write_is_refused(store: Store, key: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_members", lambda gid: ({os.getuid(), NOBODYS + 1}, True))
    path = member(name)(store.layout, key)
    path.chmod(path.stat().st_mode | 0o020)
    assert [place["reason"] for place in refused(store, key).details["places"]] == ["its group can write to it"]


def test_an_entry_counts_only_when_it_is_about_to_be_used(store: Store, key: str) -> None:
    store.layout.manifest(key).chmod(0o666)
    assert untrusted_places(store.layout) == ()
    assert untrusted_places(store.layout, "ab" * 32) == ()
    assert len(untrusted_places(store.layout, key)) == 1


def test_objects_are_proved_by_the_manifest_so_only_their_folder_counts(store: Store, key: str) -> None:
    for path in store.layout.objects.rglob("*"):
        path.chmod(0o777)
    assert untrusted_places(store.layout, key) == ()


def test_everything_that_is_wrong_is_told_at_once_with_one_command_that_mends_it(store: Store, key: str) -> None:
    for name in ("parent", "root", "entries", "manifest"):
        path = member(name)(store.layout, key)
        path.chmod(path.stat().st_mode | 0o002)
    error = refused(store, key)
    assert len(error.details["places"]) == 4
    command = error.details["command"]
    root = store.root
    assert command == f"chmod go-w {root.parent} {root} && chmod go-w -R {store.layout.base}"
    assert os.system(command) == 0
    assert untrusted_places(store.layout, key) == ()


def test_a_sticky_folder_on_the_way_is_no_danger_but_the_root_itself_may_not_be_one(store: Store, key: str) -> None:
    store.root.parent.chmod(0o1777)
    assert untrusted_places(store.layout, key) == ()
    store.root.chmod(0o1777)
    assert [each.path for each in untrusted_places(store.layout, key)] == [store.root]


def test_a_store_that_is_trusted_by_flag_is_not_looked_at(store: Store, key: str) -> None:
    store.root.chmod(0o777)
    require_trusted(store.layout, StoreOptions(trust_root=True), key)
    require_trusted_file(store.layout.mega(key), StoreOptions(trust_root=True))


# Links


def test_folders_on_the_way_of_a_link_count_too(store: Store, key: str, tmp_path: Path) -> None:
    (tmp_path / "links" / "deep").mkdir(parents=True)
    (tmp_path / "links" / "root").symlink_to("deep/../../parent")
    reached = CacheRoot(tmp_path / "links" / "root" / "root")
    assert untrusted_places(reached, key) == ()
    for folder in (tmp_path / "links", tmp_path / "links" / "deep", tmp_path / "parent"):
        folder.chmod(0o777)
        assert [each.path for each in untrusted_places(reached, key)] == [folder]
        folder.chmod(0o755)


def test_a_link_that_leads_in_circles_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert untrusted_places(CacheRoot(tmp_path / "a" / "root")) == ()


@needs_root
def test_a_link_that_another_user_can_turn_elsewhere_is_refused(store: Store, key: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.root)
    os.lchown(tmp_path / "link", NOBODYS, -1)
    found = untrusted_places(CacheRoot(tmp_path / "link"), key)
    assert [(each.path, each.reason) for each in found] == [
        (tmp_path / "link", "its owner is neither root nor this user")
    ]


# Owners


@needs_root
@pytest.mark.parametrize("name", MEMBERS)
def test_what_another_user_owns_is_refused_even_for_root(store: Store, key: str, name: str) -> None:
    path = member(name)(store.layout, key)
    os.chown(path, NOBODYS, -1)
    error = refused(store, key)
    (told,) = error.details["places"]
    assert (told["path"], told["owner"], told["owner_uid"]) == (str(path), str(NOBODYS), NOBODYS)
    assert told["reason"] == "its owner is neither root nor this user"
    # A folder of somebody else on the way is not ours to take.
    assert error.details["command"].startswith("chown -h 0 ") is (name != "parent")


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    with folder_for_all() as folder:
        yield folder


@needs_root
def test_a_store_of_root_or_of_one_s_own_is_fine_for_another_user(shared_folder: Path) -> None:
    store = Store(shared_folder / "root")
    key = publish_numbered(store, 1)
    assert run_as(NOBODYS, NOBODYS, lambda: untrusted_places(store.layout, key)) == ()
    for path in (store.root, *store.root.rglob("*")):
        os.chown(path, NOBODYS, NOBODYS)
    assert run_as(NOBODYS, NOBODYS, lambda: untrusted_places(store.layout, key)) == ()
    assert {each.path for each in untrusted_places(store.layout, key)} >= {store.root, store.layout.entry(key)}


# Groups


@needs_root
def test_a_group_that_nobody_else_is_in_is_no_danger_also_where_no_database_knows_it(shared_folder: Path) -> None:
    folder = shared_folder / "root"
    folder.mkdir()
    os.chown(folder, NOBODYS, NOBODYS)
    folder.chmod(0o2775)
    root = CacheRoot(folder)
    assert run_as(NOBODYS, NOBODYS, lambda: untrusted_places(root)) == ()
    os.chown(folder, NOBODYS, 4243)
    shared = run_as(NOBODYS, NOBODYS, lambda: untrusted_places(root), groups=[4243])
    assert [each.reason for each in shared] == ["its group can write to it"]


@pytest.mark.parametrize(
    ("members", "is_known", "own", "safe"),
    [
        ({7}, True, True, True),
        ({7, 0}, True, True, True),
        ({7, 8}, True, True, False),
        ({7, -1}, True, True, False),
        ({0}, True, False, True),
        (set(), True, False, False),
        ({8}, True, False, False),
        (set(), False, True, True),
        (set(), True, True, False),
        ({0}, True, True, False),
    ],
    ids=lambda value: str(value),
)
def test_a_group_is_safe_when_all_its_members_are_known_and_trusted(
    monkeypatch: pytest.MonkeyPatch, members: set[int], is_known: bool, own: bool, safe: bool
) -> None:
    monkeypatch.setattr(trust, "_members", lambda gid: (members, is_known))
    monkeypatch.setattr(os, "getgroups", lambda: [7] if own else [])
    monkeypatch.setattr(os, "getegid", lambda: 99)
    assert trust._is_own_group(7, 7) is safe


def test_a_group_of_another_number_than_the_user_s_is_not_taken_for_the_user_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust, "_members", lambda gid: (set(), False))
    monkeypatch.setattr(os, "getgroups", lambda: [2000])
    assert trust._is_own_group(2000, 7) is False


def test_members_are_those_of_both_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    def user(name: str, uid: int, gid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    def group(gid: int) -> grp.struct_group:
        if gid != 7:
            raise KeyError(gid)
        return grp.struct_group(("team", "x", 7, ["carol", "ghost"]))

    def by_name(name: str) -> pwd.struct_passwd:
        if name != "carol":
            raise KeyError(name)
        return user("carol", 3, 1)

    monkeypatch.setattr(pwd, "getpwall", lambda: [user("alice", 1, 7), user("bob", 2, 8)])
    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(grp, "getgrgid", group)
    assert trust._members(7) == ({1, 3, -1}, True)
    assert trust._members(8) == ({2}, False)


# User namespaces


@needs_root
def test_an_owner_outside_the_namespace_is_fine_on_the_way_but_not_in_the_store(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_knows_all_users", lambda: False)
    monkeypatch.setattr(trust, "_overflow_uid", lambda: 65534)
    os.chown(store.root.parent, 65534, -1)
    assert untrusted_places(store.layout, key) == ()
    store.root.parent.chmod(0o777)
    assert [each.reason for each in untrusted_places(store.layout, key)] == ["every user can write to it"]
    store.root.parent.chmod(0o755)
    os.chown(store.root, 65534, -1)
    error = refused(store, key)
    assert [place["reason"] for place in error.details["places"]] == ["its owner is not known in this user namespace"]
    assert error.details["command"] == ""
    monkeypatch.setattr(trust, "_knows_all_users", lambda: True)
    assert {each.reason for each in untrusted_places(store.layout, key)} == {"its owner is neither root nor this user"}


def test_this_machine_tells_its_namespace() -> None:
    whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    assert trust._knows_all_users() is whole
    assert trust._overflow_uid() == int(Path("/proc/sys/kernel/overflowuid").read_text())


# Files


def test_a_file_is_judged_with_the_folders_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "model.mega"
    path.parent.mkdir()
    path.touch(mode=0o600)
    assert untrusted_file(path) == ()
    require_trusted_file(path, StoreOptions())
    path.chmod(0o666)
    path.parent.chmod(0o777)
    assert [each.path for each in untrusted_file(path)] == [path.parent, path]
    with pytest.raises(UntrustedError) as caught:
        require_trusted_file(path, StoreOptions())
    assert caught.value.what.startswith(f"{path} is not trusted")
    assert caught.value.details["command"] == f"chmod go-w {path.parent} {path}"
