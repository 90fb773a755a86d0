"""Several processes publish one key at once, while another one reads; with locks, and without any that work."""

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pytest
from tests.cache.actors import Actor, pausing
from tests.cache.support import PAYLOADS, files_below, make_manifest, publish

from precast.cache import entries, locks
from precast.cache import store as store_module
from precast.cache.store import Store
from precast.errors import NoEntryError

WRITERS = 4
ROUNDS = 3


def _write(root: Path, barrier: Barrier) -> None:
    barrier.wait(60)
    publish(Store(root, lock_timeout_s=60), make_manifest(), PAYLOADS)


def _read(root: Path, key: str, barrier: Barrier, done: Event) -> None:
    store = Store(root)
    barrier.wait(60)
    while not done.is_set():
        try:
            store.manifest(key)
        except NoEntryError:
            continue
        damage = store.check(key)
        assert damage == (), damage


def test_writers_of_one_key_make_one_sound_entry_and_a_reader_sees_it_whole_or_not_at_all(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    key = make_manifest().key
    for attempt in range(ROUNDS):
        root = tmp_path / str(attempt)
        barrier, done = context.Barrier(WRITERS + 1), context.Event()
        writers = [context.Process(target=_write, args=(root, barrier)) for _ in range(WRITERS)]
        reader = context.Process(target=_read, args=(root, key, barrier, done))
        for process in (*writers, reader):
            process.start()
        for process in writers:
            process.join(60)
        done.set()
        reader.join(60)
        assert [process.exitcode for process in (*writers, reader)] == [0] * (WRITERS + 1)
        store = Store(root)
        assert [line.state for line in store.entries()] == ["ok"]
        assert store.check(key) == ()
        assert list(store.layout.quarantine.iterdir()) == []
        assert list(store.layout.staging.iterdir()) == []
        assert not [name for name in files_below(root) if name.endswith(".tmp")]


STEPS = 5


class TwoPublishers:
    """Two hosts that publish one key, step by step; neither sees the locks of the other, if it has any."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors = [Actor(lambda: self._publish(root)) for _ in range(2)]
        writing: Any = entries.EntryStore
        for place, name in (
            (writing, "publish"),
            (entries, "write_atomic"),
            (entries, "_sync_or_take_back"),
        ):
            for actor in self.actors:
                monkeypatch.setattr(place, name, pausing(lambda actor=actor: actor, getattr(place, name)))  # type: ignore[misc]

    def _publish(self, root: Path) -> Path:
        return Store(root).layout.entry(publish(Store(root), make_manifest(PAYLOADS[:1], {}), PAYLOADS[:1]))


@contextmanager
def _no_lock(*_: Any, **__: Any) -> Iterator[bool]:
    yield False


@pytest.mark.parametrize("blind", [False, True], ids=["locks that never wait", "claims that nobody sees, too"])
def test_publishing_is_right_even_where_no_lock_works(
    blind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts on one network folder whose locks do nothing: both succeed, and one whole entry is there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(store_module, "hold_lock", _no_lock)
    if blind:
        monkeypatch.setattr(locks, "is_held", lambda path: False)
    key = make_manifest(PAYLOADS[:1], {}).key
    for number, places in enumerate(itertools.combinations(range(2 * STEPS), STEPS)):
        if 0 in places:
            continue  # the two are alike, so one of them may begin
        root = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            both = TwoPublishers(root, patch)
            for step in range(2 * STEPS):
                both.actors[step in places].step()
            for actor in both.actors:
                actor.finish()
        store = Store(root)
        assert [actor.error for actor in both.actors] == [None, None], places
        assert [line.state for line in store.entries()] == ["ok"]
        assert store.check(key) == ()
        assert list(store.layout.quarantine.iterdir()) == []
        store.tidy()
        assert list(store.layout.staging.iterdir()) == []
        assert not [name for name in files_below(root) if name.endswith(".tmp")]
