import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cache.quick import count_files, du, quick_manifest, quick_publish, quick_tag
from tests.cache.support import Clock

from precast.cache.prune import PrunePlan, PruneRules, execute, plan_prune
from precast.cache.store import Store

DAY_NS = 86400 * 10**9
BLOCK = 4096


@pytest.fixture
def keys(store: Store, clock: Clock) -> list[str]:
    """Six entries, the least recently used first."""
    return [quick_publish(store, quick_manifest(number), used_ns=number) for number in range(6)]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The file system of the root, with as many bytes free as a test says."""
    told = SimpleNamespace(f_bavail=1000, f_frsize=BLOCK)
    monkeypatch.setattr("precast.cache.limits.os", SimpleNamespace(statvfs=lambda path: told))
    return told


def plan(store: Store, rules: PruneRules) -> PrunePlan:
    return plan_prune(store, rules, 10**18)


def removed(made: PrunePlan) -> list[str]:
    return [item.id for item in made.remove if item.kind == "entry"]


def allocated(store: Store) -> int:
    return sum(path.lstat().st_blocks * 512 for path in store.root.rglob("*"))


def test_what_is_free_already_needs_no_room(store: Store, keys: list[str], free: SimpleNamespace) -> None:
    assert plan(store, PruneRules(min_free=1000 * BLOCK)).remove == ()


def test_as_much_goes_as_the_file_system_needs_and_not_more(
    store: Store, keys: list[str], free: SimpleNamespace
) -> None:
    before = allocated(store)
    made = plan(store, PruneRules(min_free=1000 * BLOCK + 2 * BLOCK))
    assert removed(made) == keys[:1]
    assert made.unmet == ()
    execute(made)
    assert before - allocated(store) >= 2 * BLOCK


def test_a_file_with_another_name_outside_makes_no_room(
    store: Store, keys: list[str], free: SimpleNamespace, tmp_path: Path
) -> None:
    # An entry is six blocks: two folders, its stamp, and three files that have another name afterwards.
    rules = PruneRules(min_free=(1000 + 5) * BLOCK)
    assert removed(plan(store, rules)) == keys[:1]
    for number, path in enumerate([*store.layout.objects.rglob("*.zst"), *store.layout.entries.rglob("*.*")]):
        (tmp_path / str(number)).hardlink_to(path)
    assert removed(plan(store, rules)) == keys[:2]


def test_where_emptying_the_store_would_not_do_nothing_goes(
    store: Store, keys: list[str], free: SimpleNamespace
) -> None:
    made = plan(store, PruneRules(min_free=10**12))
    assert made.remove == ()
    assert [unmet.limit for unmet in made.unmet] == ["min_free"]


def test_a_hopeless_limit_does_not_keep_another_from_holding(store: Store, keys: list[str]) -> None:
    (store.root / "film").write_bytes(bytes(10**6))
    made = plan(store, PruneRules(max_size=10**6, max_files=count_files(store.root) - 1))
    assert removed(made) == keys[:1]
    assert [unmet.limit for unmet in made.unmet] == ["max_size"]
    assert "that are not the store's: move them away" in made.unmet[0].hint


def test_the_lock_file_that_pruning_makes_counts(store: Store, keys: list[str]) -> None:
    (store.layout.locks / "store.lock").unlink()
    per_entry = 4
    limit = count_files(store.root) - per_entry
    made = plan(store, PruneRules(max_files=limit))
    assert removed(made) == keys[:2]
    execute(made)
    assert count_files(store.root) <= limit
    # Where nothing goes nothing is made either.
    (store.layout.locks / "store.lock").unlink()
    assert plan(store, PruneRules(max_files=count_files(store.root))).remove == ()


def test_the_lock_of_tags_counts_where_there_are_tags(store: Store, keys: list[str]) -> None:
    quick_tag(store, "a", keys[0])
    (store.layout.locks / "tags.lock").unlink()
    files = count_files(store.root)
    rules = PruneRules(drop_tags=("a",), max_files=files - 1)
    execute(plan(store, rules))
    assert count_files(store.root) <= files - 1


def test_the_index_counts_as_it_is_afterwards(store: Store, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in store.layout.entries.rglob("manifest.json"):
        os.utime(path, ns=(0, 0))
    monkeypatch.setattr("precast.cache.inventory.STALE", 1)
    size, files = du(store.root), count_files(store.root)
    plan(Store(store.root, read_only=True), PruneRules(max_files=files, max_size=size))
    assert count_files(store.root) == files
    made = plan(store, PruneRules(max_files=files, max_size=size))
    assert (store.layout.stats / "index-summary.json").exists()
    assert made.files_before == files + 1
    assert made.bytes_before == du(store.root) > size
    execute(made)
    assert du(store.root) <= size
    assert count_files(store.root) <= files


def test_an_unmet_limit_says_what_is_in_the_way(store: Store, keys: list[str]) -> None:
    quick_tag(store, "release-40", keys[0])
    with store.hold(keys[1]):
        made = plan(store, PruneRules(max_files=1, keep_last=1))
    (unmet,) = made.unmet
    assert unmet.limit == "max_files"
    assert "files stay, more than 1" in unmet.message
    for part in ("1 in use", "1 tagged: --keep-tag", "1 among the last used: a smaller --keep-last"):
        assert part in unmet.hint


def test_the_size_is_told_in_the_same_unit_that_it_was_asked_in(store: Store, keys: list[str]) -> None:
    quick_tag(store, "a", keys[0])
    (unmet,) = plan(store, PruneRules(max_size=1500)).unmet
    assert unmet.message.endswith("kB stay, more than 1.5 kB")
