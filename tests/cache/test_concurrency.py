"""Several processes publish one key at once, while another one reads."""

import multiprocessing
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from tests.cache.support import PAYLOADS, files_below, make_manifest, publish

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
