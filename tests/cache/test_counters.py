from pathlib import Path

import pytest
from tests.cache.support import files_below

from precast.cache import counters
from precast.cache.counters import LookupStats, lookup_stats, record_lookup, zero_stats
from precast.cache.store import Store
from precast.errors import StoreAccessError


@pytest.fixture
def counted(store: Store) -> Store:
    store.layout.prepare()
    record_lookup(store, "hit", "ab" * 32, 12.5, 1000)
    record_lookup(store, "factor_changed", "", 0.0, 2000)
    record_lookup(store, "hit", "ab" * 32, 0.25, 3000)
    record_lookup(store, "factor_changed", "", 0.0, 3000)
    record_lookup(store, "corrupt", "", 0.0, 3000)
    return store


def test_hits_misses_by_reason_and_saved_seconds_add_up(counted: Store) -> None:
    assert lookup_stats(counted) == LookupStats(2, {"corrupt": 1, "factor_changed": 2}, 12.75)


def test_earlier_lookups_can_be_left_out(counted: Store) -> None:
    assert lookup_stats(counted, 2000) == LookupStats(1, {"corrupt": 1, "factor_changed": 2}, 0.25)
    assert lookup_stats(counted, 3001) == LookupStats(0, {}, 0.0)


def test_an_empty_root_has_no_counts_and_stays_empty(store: Store) -> None:
    record_lookup(store, "hit", "", 1.0, 1)
    assert lookup_stats(store) == LookupStats(0, {}, 0.0)
    zero_stats(store)
    assert not store.root.exists()


def test_damaged_lines_are_left_out(counted: Store) -> None:
    path = counted.layout.stats / "lookups.jsonl"
    bad = [b"\xff\xfe", b"[]", b"{}", b'{"ns":1', b'{"ns":"x","outcome":"hit","ms":1}', b'{"ns":1,"outcome":2,"ms":1}']
    path.write_bytes(b"\n".join([*bad, path.read_bytes()]))
    assert lookup_stats(counted) == LookupStats(2, {"corrupt": 1, "factor_changed": 2}, 12.75)


def test_a_read_only_store_is_not_written(counted: Store) -> None:
    reader = Store(counted.root, read_only=True)
    before = files_below(counted.root)
    record_lookup(reader, "hit", "", 1.0, 1)
    with pytest.raises(StoreAccessError, match="read-only"):
        zero_stats(reader)
    assert files_below(counted.root) == before


def test_counts_that_cannot_be_written_are_dropped(counted: Store) -> None:
    path = counted.layout.stats / "lookups.jsonl"
    path.unlink()
    path.mkdir()
    record_lookup(counted, "hit", "", 1.0, 1)
    assert lookup_stats(counted).hits == 0
    with pytest.raises(StoreAccessError):
        zero_stats(counted)


def test_counts_can_be_zeroed(counted: Store) -> None:
    zero_stats(counted)
    assert lookup_stats(counted) == LookupStats(0, {}, 0.0)


def test_the_file_does_not_grow_without_end(counted: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_LIMIT", 2000)
    for number in range(200):
        record_lookup(counted, "hit", "ab" * 32, 0.0, number)
    assert sum(path.stat().st_size for path in counted.layout.stats.glob("lookups*")) < 5000
    assert 0 < lookup_stats(counted).hits < 200
    zero_stats(counted)
    assert list(Path(counted.layout.stats).glob("lookups*")) == []
