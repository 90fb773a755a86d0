"""Executing a plan on a store that is another one by now."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.cache.quick import MEGA, point, quick_manifest, quick_publish, quick_tag
from tests.cache.support import Clock, files_below

from precast.cache.locks import Holder
from precast.cache.prune import PrunePlan, PruneRules, execute, plan_prune
from precast.cache.removal import _remove_flat, _unlink
from precast.cache.store import STORE_LOCK, Store
from precast.cache.tags import all_tags
from precast.errors import LockedError, StoreAccessError

REQUEST = "12" * 32


@pytest.fixture
def keys(store: Store) -> list[str]:
    """Three entries, the least recently used first, with one request for all of them."""
    return [quick_publish(store, quick_manifest(n), used_ns=n, requests=(REQUEST,)) for n in range(3)]


def plan(store: Store, clock: Clock, rules: PruneRules | None = None) -> PrunePlan:
    return plan_prune(store, rules or PruneRules(max_age_s=0), clock.now)


def skipped(made: PrunePlan) -> dict[str, str]:
    return {each.item.id: each.reason for each in execute(made).skipped}


def test_an_entry_that_was_repaired_since_stays(store: Store, clock: Clock, keys: list[str]) -> None:
    store.layout.mega(keys[0]).unlink()
    made = plan(store, clock, PruneRules())
    store.layout.mega(keys[0]).write_bytes(MEGA)
    told = skipped(made)
    assert told[keys[0]] == "whole again"
    assert store.layout.manifest(keys[0]).exists()
    assert all(store.layout.object(name).exists() for name in store.manifest(keys[0]).objects)
    assert store.last_used(keys[0]) == 0


def test_an_entry_that_was_tagged_since_stays_unless_it_was_named(store: Store, clock: Clock, keys: list[str]) -> None:
    made, named = plan(store, clock), plan(store, clock, PruneRules(keys=(keys[1],)))
    for key in keys[:2]:
        quick_tag(store, f"release-{keys.index(key)}", key)
    assert skipped(named) == {}
    assert skipped(made)[keys[0]] == "tagged release-0 since"
    assert store.layout.manifest(keys[0]).exists()
    assert not store.layout.entry(keys[1]).exists()


def test_a_tag_that_moved_since_stays_with_its_new_entry(store: Store, clock: Clock, keys: list[str]) -> None:
    quick_tag(store, "latest", keys[0])
    made = plan(store, clock, PruneRules(keys=(keys[0],)))
    quick_tag(store, "latest", keys[2])
    assert skipped(made) == {"latest": "its entry is here now"}
    assert all_tags(store) == {"latest": keys[2]}


def test_what_went_without_us_is_no_merit_of_ours(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock)
    shutil.rmtree(store.layout.entry(keys[0]))
    store.layout.object(next(iter(store.manifest(keys[1]).objects))).unlink()
    done = execute(made)
    assert {each.reason for each in done.skipped} == {"gone already"}
    assert len(done.skipped) == 2
    assert done.freed_files == made.freed_files - sum(each.item.files for each in done.skipped)
    again = execute(made)
    assert (again.removed, len(again.skipped), again.freed_bytes) == ((), len(made.remove), 0)


def test_a_request_that_found_another_entry_since_stays(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock)
    key = quick_publish(store, quick_manifest(9), used_ns=clock.now)
    point(store.layout.requests / f"{REQUEST}.json", key)
    assert skipped(made) == {f"requests/{REQUEST}.json": "its entry is here now"}


def test_what_is_refused_keeps_nothing_else_from_going(
    store: Store, clock: Clock, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(store, clock)
    really, locked = os.access, (store.layout.entry(keys[0]), store.layout.entry(keys[1]))
    monkeypatch.setattr(os, "access", lambda path, mode: path not in locked and really(path, mode))
    with pytest.raises(StoreAccessError, match="2 things cannot be removed, the first is") as caught:
        execute(made)
    assert str(locked[0]) in str(caught.value)
    monkeypatch.undo()
    assert {path.name for path in store.layout.entries.iterdir()} == set(keys[:2])
    assert list(store.layout.staging.iterdir()) == []
    for key in keys[:2]:
        assert all(store.layout.object(name).exists() for name in store.manifest(key).objects)


@pytest.mark.parametrize("place", ["entry", "shard"])
def test_a_link_that_was_put_in_place_of_a_folder_is_not_followed(
    store: Store, clock: Clock, keys: list[str], tmp_path: Path, place: str
) -> None:
    made = plan(store, clock)
    name = next(iter(store.manifest(keys[0]).objects))
    folder = store.layout.entry(keys[0]) if place == "entry" else store.layout.object(name).parent
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = files_below(tmp_path / "outside")
    assert "gone already" in skipped(made).values()
    assert files_below(tmp_path / "outside") == before != {}
    assert folder.is_symlink()


def test_who_prunes_at_the_same_time_is_named_and_waited_for(store: Store, clock: Clock, keys: list[str]) -> None:
    made, held, told = plan(store, clock), threading.Event(), threading.Event()
    holders: list[Holder | None] = []

    def tell(holder: Holder | None) -> None:
        holders.append(holder)
        told.set()

    def hold() -> None:
        with store.lock(STORE_LOCK):
            held.set()
            told.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(60)
    assert execute(made, lock_timeout_s=60, on_wait=tell).removed == made.remove
    other.join()
    assert [holder.pid for holder in holders if holder] == [os.getpid()]


def test_who_waits_too_long_is_told_who_holds_the_lock(store: Store, clock: Clock, keys: list[str]) -> None:
    made = plan(store, clock)
    with store.lock(STORE_LOCK), pytest.raises(LockedError, match=f"process {os.getpid()}"):
        execute(made, lock_timeout_s=0)
    assert {path.name for path in store.layout.entries.iterdir()} == set(keys)


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    for remove, path in ((_unlink, tmp_path / "link" / "precious"), (_remove_flat, tmp_path / "link")):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            remove(path)
    assert (tmp_path / "outside" / "precious").exists()
