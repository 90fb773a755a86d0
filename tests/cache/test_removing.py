"""One remover and one reader in every order that their steps can fall: what is read is there, or it is not."""

import itertools
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pytest
from tests.cache.actors import Actor, pausing
from tests.cache.support import PAYLOADS, make_manifest, publish, publish_numbered

from precast.cache import removal, removing
from precast.cache import store as store_module
from precast.cache.atomic import write_atomic
from precast.cache.inventory import take_inventory
from precast.cache.locks import Claim, live_claims, make_claim
from precast.cache.prune import PruneRules, execute, plan_prune
from precast.cache.removing import REMOVER, announced, is_going
from precast.cache.store import Store
from precast.errors import NoEntryError, StoreAccessError

# More than either ever takes, would only repeat orders.
READER_STEPS, REMOVER_STEPS = 5, 7
PAYLOAD = b"the only payload " * 40


class Meeting:
    """A reader of an entry and a remover of it, each step by step."""

    def __init__(self, root: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.key = Store(root), key
        plan = plan_prune(self.store, PruneRules(keys=(key,)), time.time_ns())
        taking: Any = removal._Removal
        for place, name in ((store_module, "make_claim"), (store_module, "is_going")):
            monkeypatch.setattr(place, name, pausing(lambda: self.reader, getattr(place, name)))
        for place, name in (
            (removing, "_announce"),
            (removing, "live_claims"),
            (removing, "_withdraw"),
            (taking, "_take_entry"),
            (taking, "_take_object"),
        ):
            monkeypatch.setattr(place, name, pausing(lambda: self.remover, getattr(place, name)))
        self.reader = Actor(self._read)
        self.remover = Actor(lambda: execute(plan))

    def _read(self) -> bool:
        """Tell whether the entry was found; once it is, under its claim, it must stay to the end."""
        reader, manifest = Store(self.store.root), None
        try:
            with reader.hold(self.key):
                self.reader.pause()
                manifest = reader.manifest(self.key)
                self.reader.pause()
                assert [reader.read_object(name) for name in manifest.objects] == [PAYLOAD]
                assert reader.manifest(self.key) == manifest
        except NoEntryError:
            assert manifest is None
        return manifest is not None


def orders() -> Iterator[str]:
    """Every order of the steps of the two after their first ones, which touch nothing; and one after the other."""
    total = READER_STEPS + REMOVER_STEPS - 2
    for places in itertools.combinations(range(total), READER_STEPS - 1):
        yield "rp" + "".join("r" if n in places else "p" for n in range(total))
    yield "p" * REMOVER_STEPS + "r" * READER_STEPS


def test_a_reader_and_a_remover_agree_in_every_order_of_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    origin = Store(tmp_path / "origin")
    origin.put_object(PAYLOAD)
    origin.publish(manifest := make_manifest((PAYLOAD,), {}))
    outcomes = set()
    for order in orders():
        root = shutil.copytree(origin.root, tmp_path / "root", dirs_exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            meeting = Meeting(root, manifest.key, patch)
            for who in order:
                (meeting.reader if who == "r" else meeting.remover).step()
            meeting.remover.finish()
            meeting.reader.finish()
        assert (meeting.reader.error, meeting.remover.error) == (None, None), order
        outcomes.add((meeting.reader.result, left_whole(meeting.store, manifest.key)))
    # Read, and it stays; read, and it went after that; sent away; sent away from one that stays after all.
    assert outcomes == {(True, True), (True, False), (False, False), (False, True)}


def left_whole(store: Store, key: str) -> bool:
    """Tell whether an entry stayed; either way nothing may be left of the meeting itself."""
    there = store.layout.entry(key).exists()
    assert store.check(key) == () if there else not list(store.layout.objects.rglob("*.zst"))
    assert not list(store.layout.staging.iterdir())
    assert {p.name for p in store.layout.locks.iterdir()} <= {"store.lock"}
    return there


def test_only_the_keys_that_nobody_uses_are_going(tmp_path: Path) -> None:
    claim = make_claim(tmp_path, "ab" * 32)
    with announced(tmp_path, ["ab" * 32, "cd" * 32]) as used:
        assert used == {"ab" * 32}
        assert not is_going(tmp_path, "ab" * 32)
        assert is_going(tmp_path, "cd" * 32)
        assert not is_going(tmp_path, "ef" * 32)
    assert not is_going(tmp_path, "cd" * 32)
    claim.release()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_remover_announced_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "going").write_text("ab" * 32 + "\n")
    assert not is_going(tmp_path, "ab" * 32)
    with announced(tmp_path, ["cd" * 32]):
        assert not is_going(tmp_path, "ab" * 32)


def test_a_full_disk_keeps_nobody_from_removing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, *, durable: bool) -> None:
        if data:
            raise StoreAccessError("There is no space")
        write_atomic(path, data, durable=durable)

    monkeypatch.setattr(removing, "write_atomic", full)
    with announced(tmp_path, ["cd" * 32]) as used:
        assert used == frozenset()
        assert is_going(tmp_path, "cd" * 32)
        assert is_going(tmp_path, "ef" * 32)  # it cannot be told which
    assert not is_going(tmp_path, "ef" * 32)


def test_a_reader_does_not_wait_for_the_store_s_lock(tmp_path: Path) -> None:
    store = Store(tmp_path, lock_timeout_s=0)
    key = publish(store, make_manifest(), PAYLOADS)
    with store.lock("store"), Store(tmp_path, lock_timeout_s=0).hold(key):
        assert key in {claim.subject for claim in live_claims(store.layout.locks)}


def test_objects_of_an_entry_that_came_into_use_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    key, other = publish(store, make_manifest(), PAYLOADS), publish_numbered(store, 1)
    plan = plan_prune(store, PruneRules(keys=(key, other)), time.time_ns())
    claims: list[Claim] = []

    def inventory_then_claim(*args: Any) -> Any:
        found = take_inventory(*args)
        if not claims:
            claims.append(make_claim(store.layout.locks, key))
        return found

    monkeypatch.setattr(removal, "take_inventory", inventory_then_claim)
    summary = execute(plan)
    claims[0].release()
    assert (store.check(key), store.layout.entry(other).exists()) == ((), False)
    assert {item.item.kind for item in summary.skipped} >= {"entry", "object"}
    assert set(summary.removed).isdisjoint({skipped.item for skipped in summary.skipped})


def test_an_object_that_a_writer_took_up_after_the_inventory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Store(tmp_path)
    orphan = writer.put_object(b"nobody refers to it yet")
    other = writer.put_object(b"nor to this one")
    writer.close()
    for name in (orphan.sha256, other.sha256):
        os.utime(writer.layout.object(name), (1, 1))
    plan = plan_prune(writer, PruneRules(), time.time_ns())
    assert {item.id for item in plan.remove if item.kind == "object"} == {orphan.sha256, other.sha256}
    writer.put_object(b"a living writer")

    def inventory_then_put(*args: Any) -> Any:
        found = take_inventory(*args)
        writer.put_object(b"nobody refers to it yet")
        return found

    monkeypatch.setattr(removal, "take_inventory", inventory_then_put)
    execute(plan)
    assert writer.read_object(orphan.sha256) == b"nobody refers to it yet"
    assert not writer.layout.object(other.sha256).exists()
    assert not list(tmp_path.rglob("*.tmp"))
    writer.close()


def _read(root: Path, key: str, ready: Barrier, done: Event) -> None:
    """Read with a claim and, more often, without one."""
    store, whole = Store(root), 0
    ready.wait(60)
    while not done.is_set():
        for _ in range(10):
            assert {line.state for line in store.entries()} <= {"ok"}
            with suppress(NoEntryError):
                found = store.check(key)
                assert found == (), found
        with suppress(NoEntryError), store.hold(key):
            names = store.manifest(key).objects
            assert [len(store.read_object(name)) for name in names] == [len(raw) for raw in PAYLOADS]
            whole += 1
    assert whole


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_readers_in_other_processes_see_an_entry_whole_or_not_at_all(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECAST_LOCKS", kind)
    context = multiprocessing.get_context("spawn")
    done, ready = context.Event(), context.Barrier(3)
    store, key = Store(tmp_path), make_manifest((), {}).key
    publish(store, make_manifest(PAYLOADS, {}), PAYLOADS)
    readers = [context.Process(target=_read, args=(tmp_path, key, ready, done)) for _ in range(2)]
    for process in readers:
        process.start()
    ready.wait(60)
    went = 0
    for attempt in range(300):
        if went and attempt >= 15:
            break
        publish(store, make_manifest(PAYLOADS, {}), PAYLOADS)
        execute(plan_prune(store, PruneRules(keys=(key,)), time.time_ns()))
        if store.layout.entry(key).exists():
            assert store.check(key) == ()
        else:
            went += 1
    publish(store, make_manifest(PAYLOADS, {}), PAYLOADS)
    done.set()
    for process in readers:
        process.join(60)
    assert [p.exitcode for p in readers] == [0, 0]
    assert went
    assert all(claim.subject != REMOVER for claim in live_claims(store.layout.locks))
